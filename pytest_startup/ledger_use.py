"""Autotune findings of a warm start: every op hit on every rank, nothing tuned, saved, refused or left unused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_startup.ledger import LedgerFinding
from pytest_startup.ledger_case import Case
from pytest_startup.ledger_log import RankLog, progress, short_op
from pytest_startup.ledger_records import TIER
from pytest_startup.record import Evidence

NO_HELP = "raising the KV budget, the memory utilisation or a timeout does not help"


def findings(case: Case, wanted: Sequence[str]) -> Iterator[LedgerFinding]:
    """``wanted``: the ops that every rank must hit."""
    yield from _use(case, wanted)
    yield from _never_used(case)


def _use(case: Case, wanted: Sequence[str]) -> Iterator[LedgerFinding]:
    """A warm start: every op hit on every rank, nothing tuned, saved or refused."""
    logs = case.log.ranks
    told = tuple(f"{name}: {log.text()}" for name, log in logs.items())
    active = case.log.any or any(log.facts for log in logs.values())
    hitting = [n for n, log in logs.items() if log.hit and not log.tuned]
    tuning = [n for n, log in logs.items() if log.tuned]
    if hitting and tuning:
        one, other = logs[hitting[0]], logs[tuning[0]]
        yield _of_log(
            "ranks-diverge",
            f"{hitting[0]} used its records while {tuning[0]} tuned again",
            "the same on all ranks",
            told,
            None,
            (*_lines(one)[:1], *(f.evidence for f in list(other.tuned.values())[:1])),
            ("tuning is a collective: such a start can hang until the process group gives up (30 min)", NO_HELP),
        )
    for name, log in logs.items():
        if log.refused:
            yield _of_log(
                "refused",
                f"rank {name} refused its records: another environment wrote them",
                "records of this library, CUDA and GPU",
                tuple(f.evidence.text[:200] for f in log.refused[:3]),
                name,
                tuple(f.evidence for f in log.refused[:3]),
                ("a refused file is never overwritten: delete it and prime again",),
            )
        if log.tuned:
            bars = ", ".join(f"{short_op(o)}{progress(f)}" for o, f in log.tuned.items())
            yield _of_log(
                "tuned-again",
                f"rank {name} tuned again: {bars}",
                "nothing tuned",
                told,
                name,
                tuple(f.evidence for f in log.tuned.values()),
                ("prime the cache once per rank, or use a release that keeps records per rank", NO_HELP),
            )
        elif log.new:
            yield _of_log(
                "saved-again",
                f"rank {name} saved {log.new} new records on a warm start",
                "nothing saved",
                told,
                name,
                tuple(f.evidence for f in log.facts if f.name == "autotune.saved"),
            )
        missed = [op for op in wanted if op not in log.hit and op not in log.tuned]
        if active and missed:
            yield _of_log(
                "not-hit",
                f"rank {name} shows no hit of {', '.join(short_op(op) for op in missed)}",
                "every op hit on every rank",
                told,
                name,
                log.evidence[:3] or tuple(e for o in logs.values() for e in o.evidence[:1]),
                ("another rank's hit says nothing about this one", NO_HELP),
            )


def _lines(log: RankLog) -> list[Evidence]:
    return [f.evidence for f in (*log.hit.values(), *log.tuned.values())]


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
    elif full and not case.log.any and not any(log.refused for log in case.log.ranks.values()):
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
