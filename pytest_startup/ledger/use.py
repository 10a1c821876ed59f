"""Autotune findings of a warm start: every op hit on every rank, nothing tuned, saved, refused or left unused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_startup.ledger.case import Case
from pytest_startup.ledger.log import RankLog, op_of, progress, short_op
from pytest_startup.ledger.model import LedgerFinding
from pytest_startup.ledger.records import TIER
from pytest_startup.ranks import called
from pytest_startup.record import Evidence, Fact

NO_HELP = "raising the KV budget, the memory utilisation or a timeout does not help"


def findings(case: Case, wanted: Sequence[str]) -> Iterator[LedgerFinding]:
    """``wanted``: the ops that every rank must hit."""
    yield from _use(case, wanted)
    yield from _never_used(case)


def _use(case: Case, wanted: Sequence[str]) -> Iterator[LedgerFinding]:
    """A warm start: every op hit on every rank, nothing tuned, saved or refused."""
    logs = case.log.ranks
    told = tuple(f"{name}: {log.text()}" for name, log in logs.items())
    unclear = {op_of(f) for f in case.log.stray if f.name in ("autotune.hit", "autotune.tuned")}
    yield from _diverge(logs, told)
    yield from _stray(case, told)
    for name, log in logs.items():
        if log.refused:
            yield _of_log(
                "refused",
                f"{called(name)} refused its records: another environment wrote them",
                "records of this library, CUDA and GPU",
                tuple(f.evidence.text for f in log.refused[:3]),
                name,
                tuple(f.evidence for f in log.refused[:3]),
                ("a refused file is never overwritten: delete it and prime again",),
            )
        if log.tuned:
            bars = ", ".join(f"{short_op(o)}{progress(f)}" for o, f in log.tuned.items())
            yield _of_log(
                "tuned-again",
                f"{called(name)} tuned again: {bars}",
                "nothing tuned",
                told,
                name,
                tuple(f.evidence for f in log.tuned.values()),
                ("prime the cache once per rank, or use a release that keeps records per rank", NO_HELP),
            )
        elif log.new:
            yield _of_log(
                "saved-again",
                f"{called(name)} saved {log.new} new records on a warm start",
                "nothing saved",
                told,
                name,
                tuple(f.evidence for f in log.facts if f.name == "autotune.saved"),
            )
        missed = [op for op in wanted if op not in log.hit and op not in log.tuned and op not in unclear]
        if missed and hits_are_logged(case):
            yield _of_log(
                "not-hit",
                f"{called(name)} shows no hit of {', '.join(short_op(op) for op in missed)}",
                "every op hit on every rank",
                told,
                name,
                log.evidence[:3] or tuple(e for o in logs.values() for e in o.evidence[:1]),
                ("another rank's hit says nothing about this one", NO_HELP),
            )


def hits_are_logged(case: Case) -> bool:
    """Would a hit be seen? SGLang prints none; and where no rank printed any tuning line, nothing ran."""
    return case.tuning.engine != "SGLang" and (case.log.any or any(log.facts for log in case.log.ranks.values()))


def _diverge(logs: Mapping[str, RankLog], told: tuple[str, ...]) -> Iterator[LedgerFinding]:
    hitting = [n for n, log in logs.items() if log.hit and not log.tuned]
    tuning = [n for n, log in logs.items() if log.tuned]
    if hitting and tuning:
        lines = (*logs[hitting[0]].hit.values(), *logs[tuning[0]].tuned.values())
        yield _of_log(
            "ranks-diverge",
            f"{hitting[0]} used its records while {tuning[0]} tuned again",
            "the same on all ranks",
            told,
            None,
            (lines[0].evidence, lines[-1].evidence),
            ("tuning is a collective: such a start can hang until the process group gives up (30 min)", NO_HELP),
        )


def _stray(case: Case, told: tuple[str, ...]) -> Iterator[LedgerFinding]:
    """Tuning bars that name no rank: some rank tuned. SGLang says when it throws all ranks' records away."""
    bars = [f for f in case.log.stray if f.name == "autotune.tuned"]
    if bars:
        yield _of_log(
            "tuned-again",
            f"some rank tuned again: {short_op(op_of(bars[0]))}{progress(bars[0])}",
            "nothing tuned",
            told,
            None,
            tuple(f.evidence for f in bars[:3]),
            ("the lines name no rank: compare the record files of the ranks", NO_HELP),
        )
    thrown = [f for f in (*case.log.stray, *_all_facts(case)) if f.name == "autotune.discarded"]
    if thrown:
        yield _of_log(
            "refused",
            "the records of all ranks were thrown away, because the ranks' files differ",
            "records that are used again",
            tuple(f.evidence.text[:200] for f in thrown[:1]),
            None,
            tuple(f.evidence for f in thrown[:2]),
            ("under expert parallel the files always differ: SGLang from 0.5.19 tunes at every start there",),
        )


def _all_facts(case: Case) -> list[Fact]:
    return [f for log in case.log.ranks.values() for f in log.facts]


def _never_used(case: Case) -> Iterator[LedgerFinding]:
    """Records are there and nothing shows that they were read; or another file than theirs was used."""
    full = [f for f in case.files if f.file.records]
    outside = [f for f in full if f not in case.used]
    if case.log.paths and outside and not any(f.file.records for f in case.used):
        yield LedgerFinding(
            "never-used",
            TIER,
            f"{len(outside[0].file.records)} records in {outside[0].file.path} were never used",
            "the file that holds the records",
            tuple(sorted(case.log.paths)[:3]),
            None,
            tuple(f.evidence(f"{len(f.file.records)} records") for f in outside[:3]),
            ("an argument or variable that enters the key changed, or the cache root moved",),
        )
    elif full and not case.log.any and case.tuning.engine != "SGLang" and not _refusing(case):
        started = [log.started for log in case.log.ranks.values() if log.started]
        yield LedgerFinding(
            "never-used",
            TIER,
            f"{sum(len(f.file.records) for f in full)} records are in the cache, and nothing shows that any was used",
            "records loaded and hit",
            ("the autotuner opened and closed empty",) if started else ("no autotune line",),
            None,
            tuple(s.evidence for s in started[:2]) or tuple(f.evidence() for f in full[:2]),
            ("this backend may need no tuning, or autotuning is switched off",),
        )


def _refusing(case: Case) -> bool:
    return any(log.refused for log in case.log.ranks.values())


def _of_log(
    kind: str,
    summary: str,
    expected: str,
    observed: tuple[str, ...],
    rank: str | None,
    evidence: tuple[Evidence, ...],
    helps: tuple[str, ...] = (),
) -> LedgerFinding:
    return LedgerFinding(kind, TIER, summary, expected, observed, rank, evidence, helps)
