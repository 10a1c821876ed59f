"""autotune: every rank uses its own tuned records on a restart; nothing is tuned again, nothing is missed."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.ledger import log as ledger_log
from pytest_startup.ledger.book import build as build_ledger
from pytest_startup.ledger.log import RankLog, TuningLog
from pytest_startup.ledger.model import Ledger, LedgerFinding
from pytest_startup.profile.expect import ExpectAutotune
from pytest_startup.profile.model import Profile
from pytest_startup.ranks import called
from pytest_startup.record import JSON, StartRecord

#: Findings about what the ranks did with their records: told as one, since one causes the other.
USE = ("ranks-diverge", "tuned-again", "saved-again", "not-hit", "refused")
#: Findings about a change since the start before.
MOVED = ("key-hash-changed", "path-moved", "changed-between-starts")


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges the rank ledger's tier ``autotune``: cache files and the lines of each rank; then the baseline's count."""
    judging = common.Judging("autotune", "an autotune line of any rank in the log, or tuned records in a watched cache")
    wanted = profile.expect.autotune or ExpectAutotune()
    restart = common.restart_of(profile, start)
    warm = reference is not None and "autotune" not in common.wiped_kinds(profile, restart, reference)
    book = build_ledger(start, profile.expect.autotune, profile.expect.artifacts, reference, warm)
    log = ledger_log.read(start, book.workers)
    before = ledger_log.read(reference, book.workers) if reference else None
    lines = log.lines
    findings = book.of("autotune")
    judging.saw(*lines)
    for row in book.tier("autotune"):
        if row.own is not None or row.loaded is not None:
            judging.numbers[f"{row.rank} records"] = row.loaded if row.loaded is not None else row.own or 0
    known = common.population(baseline, start)
    if known is not None and warm and wanted.hits == "all":
        _as_accepted(judging, known.values.get("autotune.records"), log)
    if not lines and not findings:
        _silent(judging, before)
        return judging.verdict()
    unused = [f for f in findings if f.kind == "never-used"]
    strict = warm and wanted.hits == "all"
    if log.refused and strict:
        _refused(judging, wanted, log)
    elif not log.any and not (strict and any(r.refused for r in log.ranks.values())):
        _not_exercised(judging, wanted, log, unused)
    change = common.changed_on_purpose(restart)
    use = [f for f in findings if f.kind in USE and wanted.hits == "all"]
    rest = [f for f in findings if f.kind not in (*USE, "never-used")]
    if use and not unused:
        _use(judging, profile, book, log, use)
    for finding in rest:
        if not (change and finding.kind == "key-hash-changed"):
            _one(judging, finding)
    _by_log_alone(judging, wanted, book, log, warm, told={f.rank for f in (*use, *rest)})
    if wanted.hits == "none" and any(r.hit for r in log.ranks.values()):
        judging.failed(
            "records of a file were used, every start is expected to tune",
            "nothing loaded and nothing hit",
            told_of(log),
            [f for r in log.ranks.values() for f in r.hit.values()],
            source="expect.autotune.hits",
        )
    return judging.verdict()


def records_loaded(record: StartRecord) -> dict[str, int]:
    """Rank → records that it loaded before it tuned anything; ranks that loaded none are left out."""
    book = build_ledger(record)
    return {name: r.loaded for name, r in ledger_log.read(record, book.workers).ranks.items() if r.loaded}


def told_of(log: TuningLog) -> list[str]:
    """``TP0: 42 loaded; gemm1 hit`` for every rank, then the lines that no rank can be named for."""
    out = [f"{name}: {r.text()}" for name, r in log.ranks.items()]
    return out + [f"no rank named: {common.excerpt(f.evidence.text)}" for f in log.stray[:2]]


def _rank(name: str, book: Ledger) -> str:
    """An engine of one rank needs no rank's name."""
    return called(name) if len(book.workers) > 1 else "the engine"


def _own(wanted: ExpectAutotune, book: Ledger) -> str:
    """``its own 42 records``, with the number where it is expected or known from the ranks themselves."""
    known = wanted.records_per_rank or max((r.own or 0 for r in book.tier("autotune")), default=0)
    return f"its own {known} records" if known else "its own records"


def _expected(wanted: ExpectAutotune) -> str:
    count = wanted.records_per_rank
    return f"{f'{count} own records' if count else 'own records'} per rank, every op hit, nothing tuned"


def _as_accepted(judging: common.Judging, accepted: JSON, log: TuningLog) -> None:
    """No rank loads fewer records than on the start that was accepted; one that is silent is the identity's."""
    counts = accepted if isinstance(accepted, dict) else {}
    have = {name: rank.loaded or 0 for name, rank in log.ranks.items()}
    fewer = {n: have[n] for n, count in counts.items() if n in have and have[n] < (common.number(count) or 0)}
    if fewer:
        first = next(iter(fewer))
        judging.failed(
            f"{first} loaded {fewer[first]} records, the baseline has {counts[first]}",
            ", ".join(f"{name}: {count} records" for name, count in counts.items()),
            told_of(log) or ["no autotune line"],
            [f for r in log.ranks.values() for f in r.facts],
            ("prime the cache with one complete start of this very engine, backend and rank layout",),
            "baseline",
        )


def _silent(judging: common.Judging, before: TuningLog | None) -> None:
    if before is None or not before.any:
        return
    judging.failed(
        "the reference start tuned or used tuned records, this start shows no autotune line at all",
        "; ".join(told_of(before)),
        ["no autotune line"],
        [f for r in before.ranks.values() for f in r.facts],
        ("another backend that needs no tuning may be in use, or autotuning was switched off",),
        "reference",
    )


def _not_exercised(
    judging: common.Judging, wanted: ExpectAutotune, log: TuningLog, unused: Sequence[LedgerFinding]
) -> None:
    if unused:
        first = unused[0]
        judging.not_exercised(first.summary, first.expected, first.observed, first.evidence, first.helps)
    elif log.lines:
        judging.not_exercised(
            "records were refused, and nothing was tuned in their place"
            if log.refused or any(r.refused for r in log.ranks.values())
            else "the autotuner opened and closed and did nothing: no operator of this model uses tuned records",
            _expected(wanted),
            told_of(log),
            log.lines,
            ("waive the check for such a model and backend, with this as the reason",),
            "expect.autotune",
        )


def _refused(judging: common.Judging, wanted: ExpectAutotune, log: TuningLog) -> None:
    judging.failed(
        "records were refused: another environment wrote them",
        _expected(wanted),
        told_of(log),
        log.refused,
        ("prime the cache with one complete start of this very engine, backend and rank layout",),
        "expect.autotune",
    )


def _use(
    judging: common.Judging, profile: Profile, book: Ledger, log: TuningLog, findings: Sequence[LedgerFinding]
) -> None:
    """One finding for all that the ranks did wrong: who tuned, missed or refused, and what every rank showed."""
    wanted = profile.expect.autotune or ExpectAutotune()

    def named(kinds: tuple[str, ...]) -> list[str]:
        return [f.rank for f in findings if f.kind in kinds and f.rank]

    tuned, refused = named(("tuned-again", "saved-again")), named(("refused",))
    missed = [f for f in findings if f.kind == "not-hit" and f.rank not in (*tuned, *refused)]
    said = []
    if tuned:
        who = " and ".join(name.removeprefix("rank ") for name in tuned) if len(book.workers) > 1 else ""
        said.append(f"rank{'s' if len(tuned) > 1 else ''} {who} tuned again" if who else "the engine tuned again")
    if refused:
        said.append(f"{_rank(refused[0], book)} refused its records: another environment wrote them")
    said += [f.summary for f in missed[:2]]
    if not said:
        said = [findings[0].summary]
    judging.failed(
        f"{'; '.join(said)}; every rank must use {_own(wanted, book)}",
        _expected(wanted),
        [*told_of(log), *_files(book)],
        [e for f in findings for e in f.evidence],
        common.unique(h for f in findings for h in f.helps),
        "expect.autotune",
    )


def _files(book: Ledger) -> list[str]:
    """What the cache held for each rank before the start, where that was watched and the keys tell."""
    rows = [r for r in book.tier("autotune") if r.own is not None]
    return [f"cache: {r.own} own records of {r.rank}" for r in rows]


def _one(judging: common.Judging, finding: LedgerFinding) -> None:
    source = "reference" if finding.kind in MOVED else "expect.autotune"
    judging.failed(finding.summary, finding.expected, finding.observed, finding.evidence, finding.helps, source)


def _by_log_alone(
    judging: common.Judging,
    wanted: ExpectAutotune,
    book: Ledger,
    log: TuningLog,
    warm: bool,
    told: set[str | None],
) -> None:
    """Numbers that the lines of each rank give where no cache is watched, and ranks that say nothing at all."""
    watched = {r.rank for r in book.tier("autotune") if r.found is not None}
    for name, rank in log.ranks.items():
        if name in told or not log.any:
            continue
        # A bar loses its prefix now and then; that a worker began and ended is a line of its own.
        nameless = any(f.name != "autotune.tuned" for f in log.stray)
        if not rank.facts and nameless and len(book.workers) > 1:
            judging.not_observable(
                f"no autotune line names {_rank(name, book)}, and {len(log.stray)} name no rank",
                _expected(wanted),
                f"autotune lines of {_rank(name, book)}",
                log.stray,
                source="expect.autotune",
            )
        elif not rank.facts and (wanted.ranks is not None or len(book.workers) > 1):
            judging.failed(
                f"no autotune line of {_rank(name, book)}",
                f"{wanted.ranks or len(book.workers)} ranks with {_own(wanted, book)[4:]}",
                told_of(log),
                [r.facts[0] for r in log.ranks.values() if r.facts],
                ("every rank prints its own lines: a silent rank did not take part",),
                "expect.autotune.ranks",
            )
        least = wanted.records_per_rank
        have = rank.loaded or 0 if warm and wanted.hits == "all" else _came_to(rank)
        if least is not None and rank.facts and have < least and name not in watched and not log.stray:
            judging.failed(
                f"{_rank(name, book)} has {have} records, {least} are expected",
                _expected(wanted),
                told_of(log),
                rank.facts,
                ("prime the cache with one complete start of this very engine, backend and rank layout",),
                "expect.autotune.records_per_rank",
            )


def _came_to(rank: RankLog) -> int:
    """Records that a rank came to have in this start: loaded, saved, or tuned (one per profile of its bars)."""
    tuned = sum(ledger_log.count(f.member("done")) or 0 for f in rank.tuned.values())
    return max(rank.loaded or 0, rank.saved or 0, tuned)
