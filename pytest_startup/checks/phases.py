"""phases: no phase of a start takes longer than its deadline, and the whole start is ready in time."""

from __future__ import annotations

from statistics import median

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.record import PHASES, Evidence, PhaseSpan, StartRecord


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges each span against ``deadlines.phases``, and the first completion against ``deadlines.ready``."""
    judging = common.Judging("phases", "a line, a stamp or a receive time that bounds any phase of this start")
    failed_in = start.failure.phase if start.failure else None
    for phase, limit in profile.deadlines.phases.items():
        spans = [s for s in start.phases if s.phase == phase]
        late = [s for s in spans if (t := s.taken) is not None and t > limit]
        usual = _usual(phase, reference, start, baseline)
        if late:
            longest = max(late, key=lambda s: s.taken or 0.0)
            _overrun(judging, start, phase, limit, longest.taken or 0.0, longest.rank or longest.node, usual, late)
        elif failed_in == phase and start.failure and (start.failure.after_seconds or 0.0) > limit:
            failure = start.failure
            _overrun(judging, start, phase, limit, failure.after_seconds or 0.0, failure.rank, usual, spans)
        elif not any(s.taken is not None for s in spans):
            _unseen(judging, profile, start, phase, limit, spans)
    for span in start.phases:
        if (taken := span.taken) is not None:
            judging.saw(_evidence(span))
            name = f"{span.phase} s"
            judging.numbers[name] = max(round(taken, 2), float(judging.numbers.get(name, 0.0)))
    _ready_in_time(judging, profile, reference, start, baseline)
    return judging.verdict()


def _usual(phase: str, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> str:
    known = common.population(baseline, start)
    samples = known.samples.get(f"phase.{phase}", ()) if known else ()
    if samples:
        return f"usually {median(samples):.1f} s (baseline)"
    took = [t for s in (reference.phases if reference else ()) if s.phase == phase and (t := s.taken) is not None]
    return f"{max(took):.1f} s on the reference start" if took else "its usual time is not known"


def _evidence(span: PhaseSpan) -> Evidence:
    begin = "?" if span.begin is None else f"{span.begin:.1f}"
    end = "?" if span.end is None else f"{span.end:.1f}"
    lines = f"lines {span.first_line} to {span.last_line}, " if span.first_line is not None else ""
    text = f"{span.phase}: {lines}from {begin} s to {end} s ({span.source or 'no source'})"
    return Evidence("log", "phases", text, node=span.node, rank=span.rank)


def _overrun(
    judging: common.Judging,
    start: StartRecord,
    phase: str,
    limit: float,
    taken: float,
    rank: str | None,
    usual: str,
    spans: list[PhaseSpan],
) -> None:
    where = f" on rank {rank}" if rank else ""
    last = [f.evidence for f in start.facts if f.evidence.source == "log" and rank in (None, f.rank)][-2:]
    judging.failed(
        f"phase {phase}{where} took {taken:.1f} s, its deadline is {limit:g} s; {usual}",
        f"at most {limit:g} s",
        [f"{s.rank or s.node or 'engine'}: {s.taken or 0.0:.1f} s" for s in spans] or [f"{taken:.1f} s until the end"],
        (start.failure.last_lines if start.failure and start.failure.last_lines else last) or map(_evidence, spans),
        ("look at what it waits for: storage, another rank, or a compilation that should have been a cache hit",),
        f"deadlines.{phase.replace('-', '_')}",
    )


def _unseen(
    judging: common.Judging, profile: Profile, start: StartRecord, phase: str, limit: float, spans: list[PhaseSpan]
) -> None:
    """A deadline that the user wrote for a phase that nothing times, in a start that as a whole took longer than it."""
    keys = (f"deadlines.{phase}", f"deadlines.{phase.replace('-', '_')}", f"deadlines.phases.{phase}")
    whole = start.ready_seconds if start.ready_seconds is not None else start.wall_seconds
    if not any(k in profile.origin for k in keys) or (whole is not None and whole <= limit):
        return
    judging.not_observable(
        f"phase {phase} has a deadline of {limit:g} s, and nothing shows how long it took",
        f"at most {limit:g} s",
        f"lines that begin and end phase {phase}; seen were " + (common.listed(_names(start)) or "no phases"),
        map(_evidence, spans),
        ("a log level above INFO hides the phases",),
        keys[1],
    )


def _names(start: StartRecord) -> list[str]:
    return sorted({s.phase for s in start.phases}, key=lambda p: PHASES.index(p) if p in PHASES else len(PHASES))


def _ready_in_time(
    judging: common.Judging,
    profile: Profile,
    reference: StartRecord | None,
    start: StartRecord,
    baseline: Baseline | None,
) -> None:
    limit = profile.deadlines.ready
    taken = start.ready_seconds if start.ready_seconds is not None else start.wall_seconds
    if start.ready_seconds is not None:
        judging.saw(Evidence("workload", "first completion", f"after {start.ready_seconds:.2f} s"))
    if taken is None or taken <= limit or (start.ready_seconds is None and start.ready):
        return
    known = common.population(baseline, start)
    samples = known.samples.get("ready_seconds", ()) if known else ()
    if samples:
        usual = f"usually {median(samples):.1f} s (baseline)"
    elif reference and reference.ready_seconds is not None:
        usual = f"{reference.ready_seconds:.1f} s on the reference start"
    else:
        usual = "its usual time is not known"
    longest = max(start.phases, key=lambda s: s.taken or 0.0, default=None)
    most = f"; the longest phase was {longest.phase} with {longest.taken or 0.0:.1f} s" if longest else ""
    state = "ready" if start.ready_seconds is not None else "still not ready"
    judging.failed(
        f"{state} after {taken:.1f} s, the deadline is {limit:g} s; {usual}{most}",
        f"ready within {limit:g} s",
        [f"{s.phase}: {s.taken or 0.0:.1f} s" for s in start.phases if s.taken is not None] or ["no phase is timed"],
        start.failure.last_lines if start.failure else (),
        source="deadlines.ready",
    )
