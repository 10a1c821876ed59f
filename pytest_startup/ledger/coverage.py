"""Coverage of the tuning records: has every rank its own, as many as expected, for the same ops and buckets?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pytest_startup.ledger.case import Case, Holding
from pytest_startup.ledger.model import LedgerFinding
from pytest_startup.ledger.records import PRIME, TIER
from pytest_startup.ledger.use import NO_HELP
from pytest_startup.observe.autotune_keys import CUTLASS_MOE_OPS, Key, render
from pytest_startup.observe.autotune_records import TuningRecord
from pytest_startup.ranks import called

#: One op of one layer shape: op, runner, the profile without its bucket, the extras without ranks.
Group = tuple[str, str, str, str]
SHOWN = 6


def coverage(case: Case) -> Iterator[LedgerFinding]:
    """``rank-missing``, ``rank-incomplete`` and ``rank-surplus``."""
    wanted = case.expect.records_per_rank
    held = any(h.records for h in case.holdings)
    alone = case.record.kind == "none" and bool(wanted or case.expect.ranks)  # a folder that was asked about, no start
    if not alone and (
        not case.watched or not (held or (case.warm and wanted and case.tuning.saves not in ("memory", None)))
    ):
        return
    groups = [buckets_of(h.records) for h in case.holdings]
    counts = tuple(f"{h.worker.name}: {len(h.records)} records" for h in case.holdings)
    expected = f"{wanted} own records per rank" if wanted else "own records on every rank, ops and buckets alike"
    for holding, mine in zip(case.holdings, groups, strict=True):
        name, number = holding.worker.name, len(holding.records)
        files = tuple(f.evidence() for f in {id(f): f for f, _ in (*holding.own, *holding.free)}.values())
        if number == 0:
            yield LedgerFinding(
                "rank-missing",
                TIER,
                f"{called(name)} has no records of its own; {_others(case, holding)}",
                expected,
                counts,
                name,
                tuple(f.evidence(f"{len(f.file.records)} records, none for {name}") for f in case.used),
                _missing_help(case),
            )
            continue
        gaps, extra = compare(mine, groups)
        if gaps or (wanted is not None and number < wanted):
            yield LedgerFinding(
                "rank-incomplete",
                TIER,
                f"{called(name)} has {number} records" + (f" of {wanted}" if wanted else "") + _named(gaps),
                expected,
                (*counts, *gaps[:SHOWN], *extra[:SHOWN]),
                name,
                files,
                ("the missing buckets are tuned again or fall back to a default kernel", PRIME),
            )
        elif extra or (wanted is not None and number > wanted):
            yield LedgerFinding(
                "rank-surplus",
                TIER,
                f"{called(name)} has {number} records" + (f", {wanted} are expected" if wanted else f": {extra[0]}"),
                expected,
                (*counts, *extra[:SHOWN]),
                name,
                files,
                ("records of another shape, backend or layout lie in the same file",),
            )


def buckets_of(records: Iterable[TuningRecord]) -> dict[Group, set[int]]:
    """The token buckets of each op and layer shape."""
    found: dict[Group, set[int]] = {}
    for record in records:
        key = record.parsed
        if key is not None and key.bucket is not None:
            found.setdefault(_group(key), set()).add(key.bucket)
    return found


def compare(mine: dict[Group, set[int]], every: Sequence[dict[Group, set[int]]]) -> tuple[list[str], list[str]]:
    """What this rank lacks, and what it has beyond the others; one text per op and bucket.

    The two GEMMs of the CUTLASS MoE are tuned over the same buckets for every layer shape, so each group of them must
    have the buckets that most of these groups have: one rewritten key leaves a gap in one group and makes a lonely
    other. All other ops are only compared with the same op and shape on the other ranks.
    """
    moe = [b for groups in every for g, b in groups.items() if g[0] in CUTLASS_MOE_OPS]
    usual = {b for b, n in Counter(b for buckets in moe for b in buckets).items() if 2 * n >= len(moe)}
    gaps: list[str] = []
    extra: list[str] = []
    for group, buckets in sorted(mine.items(), key=lambda item: -len(item[1])):
        wanted = usual if group[0] in CUTLASS_MOE_OPS else _elsewhere(group, every)
        lacking = sorted(wanted - buckets)
        if 2 * len(lacking) > len(wanted):
            extra.append(
                f"{len(buckets)} of {group[0]} with another shape, type or layout: {group[2]} {group[3]}"[:300]
            )
            gaps += [f"{group[0]} bucket {lacking[0]}"] if not gaps else []
            continue
        gaps += [f"{group[0]} bucket {b}" for b in lacking]
        extra += [f"{group[0]} bucket {b}, which no other op or rank has" for b in sorted(buckets - wanted)]
    ops = {g[0] for groups in every for g in groups}
    gaps += [f"{op}: no record" for op in sorted(ops - {g[0] for g in mine})]
    return gaps, extra


def _elsewhere(group: Group, every: Sequence[dict[Group, set[int]]]) -> set[int]:
    return set().union(*(groups.get(group, set()) for groups in every))


def _group(key: Key) -> Group:
    op, runner, _, extras = key.without_ranks()
    first = key.profile[0]
    rest = (first[1:] if isinstance(first, tuple) else first, *key.profile[1:])
    return op, runner, render(rest), extras


def _others(case: Case, holding: Holding) -> str:
    rest = [f"{h.worker.name} has {len(h.records)}" for h in case.holdings if h is not holding]
    return ", ".join(rest) or "the cache is empty"


def _missing_help(case: Case) -> tuple[str, ...]:
    helps = ["prime the cache once per rank, with keys of its own: records of another rank are never hit", NO_HELP]
    if case.tuning.saves == "leader":
        helps.insert(0, f"{case.tuning.name()} saves rank 0's records only: the others miss, tune and wait for rank 0")
    return tuple(helps)


def _named(gaps: Sequence[str]) -> str:
    if not gaps:
        return ""
    return f": lacks {gaps[0]}" + (f" and {len(gaps) - 1} more" if len(gaps) > 1 else "")
