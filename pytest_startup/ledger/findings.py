"""Autotune findings of several files: ranks against each other and against the log of the priming start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_startup.ledger import use as ledger_use
from pytest_startup.ledger.case import Case, Holding, file_owner, key_index, place_in_stage, stage_size
from pytest_startup.ledger.coverage import coverage
from pytest_startup.ledger.log import ops, short_op
from pytest_startup.ledger.model import LedgerFinding, Unknown
from pytest_startup.ledger.records import PRIME, TIER
from pytest_startup.ranks import Worker, called
from pytest_startup.record import Evidence

#: From this many records on, full equality of independently tuned ranks can't be chance: near ties differ.
COPY_LEAST = 20


def findings(case: Case) -> Iterator[LedgerFinding]:
    """All of them, in no particular order."""
    yield from _foreign_ranks(case)
    yield from coverage(case)
    yield from _copies(case)
    if case.warm and case.expect.hits == "all":
        yield from ledger_use.findings(case, expected_ops(case))


def expected_ops(case: Case) -> list[str]:
    """The ops that every rank must hit: those of the profile, else those that any rank used now or in the reference."""
    logs = list(case.log.ranks.values())
    if case.before_log:
        logs += case.before_log.ranks.values()
    seen = ops(logs)
    wanted = [next((o for o in seen if short_op(o) == short_op(w)), w) for w in case.expect.ops]
    held = {r.parsed.op for h in case.holdings for r in h.records if r.parsed}
    return sorted(set(wanted)) or seen or sorted(held)


def provenance(case: Case, worker: Worker) -> str | None:
    """Where a recorded start shows this worker tuning: this one, else the reference."""
    for log in (case.log, case.before_log):
        mine = log.ranks.get(worker.name) if log else None
        if mine and mine.tuned:
            first = next(iter(mine.tuned.values()))
            return f"tuned by {worker.name}: {first.evidence.place()}"
    return None


def unknowns(case: Case) -> Iterator[Unknown]:
    """What this release or this evidence can't show."""
    team = case.workers
    held = [h for h in case.holdings if h.records]
    if len(team) > 1 and held and not any(h.own for h in held):
        libraries = sorted({(f.file.metadata or {}).get("flashinfer_version", "?") for f in case.used})
        yield Unknown(
            TIER,
            "which rank the records are for",
            f"no rank in the keys of FlashInfer {', '.join(libraries)} (only 0.6.18 to 0.7.1 put it there), and one"
            " file for all ranks: only the ranks' own load and hit lines count",
        )
    for holding in held:
        if provenance(case, holding.worker) is None:
            yield Unknown(
                TIER,
                "whether these records were measured on this rank",
                "no recorded start shows this rank tuning them, and a record file holds no host or time of its origin",
                holding.worker.name,
            )
    for one, other, same, total in _twins(case):
        if case.tuning.averaged is not False and same == total:
            reason = (
                f"{case.tuning.name()} averages timings over the ranks: equal tactics are by design"
                if case.tuning.averaged
                else f"{case.tuning.name()}: equal tactics may be by design (timings averaged over the ranks)"
            )
            yield Unknown(TIER, f"whether the records of {other} are copies of {one}'s ({same} equal)", reason, other)
    if case.tuning.saves == "leader" and len(team) > 1 and sum(1 for h in held if h.own) > 1 and _one_file(held):
        yield Unknown(
            TIER,
            "who put the records of several ranks into one file",
            f"{case.tuning.name()} saves rank 0's records only: someone merged them",
        )
    if case.tuning.saves == "memory" and not case.files:
        yield Unknown(
            TIER, "records in a cache", f"{case.tuning.name()} keeps tuning in memory: every start tunes again"
        )
    if case.tuning.saves == "single" and len(team) > 1 and not case.files:
        yield Unknown(TIER, "records in a cache", f"{case.tuning.name()} keeps records of one-rank engines only")
    if case.warm and held and case.tuning.engine == "SGLang":
        reason = "SGLang prints no line for a hit: only the absence of tuning bars and unchanged files show it"
        yield Unknown(TIER, "which ops were hit", reason)
    if case.log.stray:
        yield Unknown(TIER, f"which rank printed {len(case.log.stray)} tuning lines", "the lines name no rank")


def _one_file(held: Sequence[Holding]) -> bool:
    return len({f.file.path for h in held for f, _ in h.own}) == 1


def _foreign_ranks(case: Case) -> Iterator[LedgerFinding]:
    """A rank's own file must not hold another rank's keys."""
    stage = stage_size(case.workers)
    for file in case.used:
        owner = file_owner(file, case.workers)
        if owner is None:
            continue
        mine = place_in_stage(owner, case.workers)
        foreign = [r for r in file.file.records if key_index(r, stage) not in (None, mine)]
        if foreign:
            others = Counter(key_index(r, stage) for r in foreign)
            yield LedgerFinding(
                "foreign-rank",
                TIER,
                f"the file of {owner.name} holds {len(foreign)} records that are keyed for another rank",
                f"keys of rank {mine} only",
                tuple(f"{n} keyed for rank {rank}" for rank, n in sorted(others.items(), key=str)),
                owner.name,
                file.quote(foreign),
                (f"a copied file gives {owner.name} no hit: the rank is in the key", PRIME),
            )


def _twins(case: Case) -> Iterator[tuple[str, str, int, int]]:
    """Pairs of ranks whose own records are for the same things: names, equal results, compared records."""
    owners = [h for h in case.holdings if h.own]
    for at, one in enumerate(owners):
        left = {r.parsed.without_ranks(): (r.tactic, r.rest) for _, r in one.own if r.parsed}
        for other in owners[at + 1 :]:
            right = {r.parsed.without_ranks(): (r.tactic, r.rest) for _, r in other.own if r.parsed}
            shared = left.keys() & right.keys()
            if len(shared) >= COPY_LEAST:
                same = sum(1 for k in shared if left[k] == right[k])
                yield one.worker.name, other.worker.name, same, len(shared)


def _copies(case: Case) -> Iterator[LedgerFinding]:
    """Records of one rank under another's key: proven by equality where ranks tune apart, or by the priming log."""
    for one, other, same, total in _twins(case):
        if same == total and case.tuning.averaged is False:
            yield _copied(case, other, f"all {total} records equal those of {one}, though ranks tune on their own here")
    log = case.before_log
    if log is None or log.stray or not case.reference or not any(r.tuned for r in log.ranks.values()):
        return
    for holding in case.holdings:
        mine = log.ranks[holding.worker.name]
        if not holding.own or mine.tuned or mine.loaded:
            continue
        tuners = ", ".join(f"{n} {r.text()}" for n, r in log.ranks.items() if r.tuned)
        yield _copied(
            case,
            holding.worker.name,
            f"{case.reference.name} shows {tuners}; {holding.worker.name} never tuned or loaded any",
            tuple(f.evidence for r in log.ranks.values() for f in r.tuned.values())[:2],
        )


def _copied(case: Case, name: str, why: str, lines: tuple[Evidence, ...] = ()) -> LedgerFinding:
    holding = next(h for h in case.holdings if h.worker.name == name)
    records = [r for _, r in holding.own]
    return LedgerFinding(
        "records-copied",
        TIER,
        f"the {len(records)} records of {called(name)} are not genuine: copied under its key",
        "records that this rank tuned itself",
        (why,),
        name,
        (*lines, *holding.own[0][0].quote(records[:2])),
        ("a tactic that another rank measured may be slow or invalid here", PRIME),
    )
