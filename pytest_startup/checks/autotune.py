"""autotune: every rank uses its own tuned records on a restart; nothing is tuned again, nothing is missed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.model import ExpectAutotune, Profile
from pytest_startup.record import Fact, StartRecord

FACTS = ("autotune.started", "autotune.ended", "autotune.loaded", "autotune.saved", "autotune.hit", "autotune.tuned")
_NEW = re.compile(r"\((\d+) new\b")


@dataclass
class RankTuning:
    """What one rank's lines say, in their order. ``loaded`` counts only before this rank tuned or saved anything."""

    facts: list[Fact] = field(default_factory=list)
    loaded: int | None = None
    hits: list[str] = field(default_factory=list)
    tuned: dict[str, str] = field(default_factory=dict)
    records: int = 0
    saved: int | None = None

    @property
    def used(self) -> bool:
        return bool(self.hits or self.tuned or self.loaded or self.saved)

    def text(self) -> str:
        parts = [f"{'nothing' if self.loaded is None else self.loaded} loaded"]
        parts += [f"{op} hit" for op in self.hits]
        parts += [f"{op} tuned {state}".strip() for op, state in self.tuned.items()]
        if self.saved:
            parts.append(f"{self.saved} saved")
        return "; ".join(parts)


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, _baseline: Baseline | None) -> Verdict:
    """Judges the tuning lines of each rank; on a warm restart against ``expect.autotune.hits``."""
    judging = common.Judging("autotune", "an autotune line of any rank in the log, or tuned records in a watched cache")
    wanted = profile.expect.autotune or ExpectAutotune()
    ranks = tunings(start)
    for name, tuning in ranks.items():
        judging.saw(*tuning.facts)
        if tuning.loaded is not None:
            judging.numbers[f"{name} records loaded"] = tuning.loaded
    restart = common.restart_of(profile, start)
    before = tunings(reference) if reference else {}
    if not ranks:
        if any(t.used for t in before.values()):
            judging.failed(
                "the reference start tuned or used tuned records, this start shows no autotune line at all",
                "; ".join(f"{r}: {t.text()}" for r, t in before.items()),
                ["no autotune line"],
                [f for t in before.values() for f in t.facts],
                ("another backend that needs no tuning may be in use, or autotuning was switched off",),
                "reference",
            )
        return judging.verdict()
    if not any(t.used for t in ranks.values()):
        judging.not_exercised(
            "the autotuner opened and closed and did nothing: no operator of this model uses tuned records",
            _expected_text(wanted),
            [f"{r}: {t.text()}" for r, t in ranks.items()],
            [f for t in ranks.values() for f in t.facts],
            source="expect.autotune",
        )
        return judging.verdict()
    _enough_ranks(judging, wanted, before, ranks)
    warm = reference is not None and "autotune" not in common.wiped_kinds(profile, restart)
    for name, tuning in ranks.items():
        if warm and wanted.hits == "all":
            _must_hit(judging, wanted, name, tuning, before.get(name), ranks)
        elif wanted.records_per_rank is not None and (n := _records(tuning)) < wanted.records_per_rank:
            _too_few(judging, wanted, name, tuning, n)
        if wanted.hits == "none" and tuning.hits:
            judging.failed(
                f"{_on(name)} used records of a file, every start is expected to tune",
                "nothing loaded and nothing hit",
                [f"{name}: {tuning.text()}"],
                tuning.facts,
                source="expect.autotune.hits",
            )
    return judging.verdict()


def _on(rank: str) -> str:
    return "the engine" if rank == "engine" else f"rank {rank}"


def operator(fact: Fact) -> str:
    """``gemm1`` of ``trtllm::fused_moe::gemm1``: value, detail or the text names it."""
    named = common.member(fact, "op") or common.member(fact, "kind")
    if named is None and isinstance(fact.value, str):
        named = fact.value
    if not isinstance(named, str):
        found = re.search(r"\b\w+(?:::\w+)+", fact.evidence.text)
        named = found[0] if found else "an operator"
    return named.rpartition("::")[2]


def tunings(record: StartRecord) -> dict[str, RankTuning]:
    """Per rank what its autotune lines say. ``autotune.loaded`` after tuning or saving is a reload, not a hit."""
    ranks: dict[str, RankTuning] = {}
    for name, facts in common.by_rank(record.named(*FACTS)).items():
        ordered = sorted(facts, key=lambda f: (f.evidence.where, f.evidence.line or 0))  # bars are told late
        tuning = ranks.setdefault(name, RankTuning(ordered))
        for fact in ordered:
            _take(tuning, fact)
    return ranks


def _take(tuning: RankTuning, fact: Fact) -> None:
    count = common.number(fact.value)
    if fact.name == "autotune.loaded" and count is not None and not tuning.tuned and tuning.saved is None:
        tuning.loaded = max(int(count), tuning.loaded or 0)
    elif fact.name == "autotune.hit":
        op = operator(fact)
        if op not in tuning.hits:
            tuning.hits.append(op)
    elif fact.name == "autotune.tuned":
        done, total = common.number(common.member(fact, "done")), common.number(common.member(fact, "total"))
        tuning.tuned[operator(fact)] = f"{done:.0f}/{total:.0f}" if done is not None and total is not None else ""
        tuning.records += int(done or 0)
    elif fact.name == "autotune.saved" and count is not None:
        new = common.number(common.member(fact, "new"))
        said = _NEW.search(fact.evidence.text)
        fresh = int(new) if new is not None else int(said[1]) if said else int(count)
        if fresh:
            tuning.saved = int(count)


def _records(tuning: RankTuning) -> int:
    """Records that a rank came to have, loaded, saved or tuned."""
    return max(tuning.loaded or 0, tuning.saved or 0, tuning.records)


def _expected_text(wanted: ExpectAutotune, before: RankTuning | None = None) -> str:
    count = wanted.records_per_rank or (_records(before) if before else None)
    own = f"{count} own records per rank" if count else "own records on every rank"
    return f"{own}, every op hit, nothing tuned"


def _enough_ranks(
    judging: common.Judging, wanted: ExpectAutotune, before: dict[str, RankTuning], ranks: dict[str, RankTuning]
) -> None:
    silent = sorted(set(before) - set(ranks), key=common.natural)
    if silent or (wanted.ranks is not None and len(ranks) < wanted.ranks):
        missing = common.listed(silent) if silent else f"{(wanted.ranks or 0) - len(ranks)} of {wanted.ranks} ranks"
        judging.failed(
            f"no autotune line of {missing}",
            f"{wanted.ranks or len(before)} ranks with records of their own",
            [f"{r}: {t.text()}" for r, t in ranks.items()],
            [t.facts[0] for t in ranks.values()],
            ("every rank prints its own lines: a silent rank did not take part",),
            "expect.autotune.ranks" if not silent else "reference",
        )


def _must_hit(
    judging: common.Judging,
    wanted: ExpectAutotune,
    name: str,
    tuning: RankTuning,
    before: RankTuning | None,
    ranks: dict[str, RankTuning],
) -> None:
    observed = [f"{r}: {t.text()}" for r, t in ranks.items()]
    source = "expect.autotune"
    if tuning.tuned or tuning.saved:
        lines = [f for f in tuning.facts if f.name in ("autotune.tuned", "autotune.saved")]
        judging.failed(
            f"{_on(name)} tuned again; every rank must use its own records",
            _expected_text(wanted, before),
            observed,
            lines or tuning.facts,
            (
                "prime the cache once per rank, or use a release that keeps records per rank;"
                " raising the KV budget or a timeout does not help",
            ),
            source,
        )
        return
    least = wanted.records_per_rank or 1
    if (tuning.loaded or 0) < least:
        _too_few(judging, wanted, name, tuning, tuning.loaded or 0)
    ops = {op.rpartition("::")[2] for op in wanted.ops} | (set(before.hits) | set(before.tuned) if before else set())
    missed = sorted(ops - set(tuning.hits))
    if missed or not tuning.hits:
        judging.failed(
            f"{_on(name)} loaded records and hit none for {common.listed(missed) or 'any operator'}",
            _expected_text(wanted, before),
            observed,
            tuning.facts,
            ("records under other keys (backend, shape, rank, library version) are never used, and say nothing",),
            source,
        )


def _too_few(judging: common.Judging, wanted: ExpectAutotune, name: str, tuning: RankTuning, count: int) -> None:
    judging.failed(
        f"{_on(name)} has {count} records, {wanted.records_per_rank or 'at least one'} are expected",
        _expected_text(wanted),
        [f"{name}: {tuning.text()}"],
        tuning.facts,
        ("prime the cache with one complete start of this very engine, backend and rank layout",),
        "expect.autotune.records_per_rank",
    )
