"""The phases check: overruns named with rank, usual time and last lines; what nothing times is no pass."""

from __future__ import annotations

from typing import Any

import pytest
from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, Outcome, fact, profile, record, reference, says

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.phases import check
from pytest_startup.profile.model import Deadlines
from pytest_startup.record import Evidence, Failure, PhaseSpan

WEIGHTS = PhaseSpan("weights", "TP1", None, 20, 31, 2.0, 42.0, None, "received")

CASES: dict[str, tuple[Deadlines, dict[str, Any], Outcome, tuple[str, ...]]] = {
    "in time": (Deadlines(phases={"weights": 60}), {"phases": (WEIGHTS,), "ready_seconds": 50.0}, PASSED, ()),
    "a phase overruns": (
        Deadlines(phases={"weights": 30}),
        {"phases": (WEIGHTS,), "ready_seconds": 50.0},
        FAILED,
        (
            "phase weights on rank TP1 took 40.0 s, its deadline is 30 s; its usual time is not known",
            "weights: lines 20 to 31, from 2.0 s to 42.0 s (received)",
            "from deadlines.weights",
        ),
    ),
    "a stated duration counts before the stamps": (
        Deadlines(phases={"weights": 30}),
        {"phases": (PhaseSpan("weights", begin=0.0, end=100.0, seconds=12.0, source="stated"),)},
        PASSED,
        (),
    ),
    "the start ended in a phase that overran": (
        Deadlines(phases={"graph-capture": 300}),
        {
            "ready": False,
            "failure": Failure(
                "graph-capture", "deadline", "no end", None, "TP0", None, 301.0, (), (),
                (Evidence("log", "head/engine.log", "Capturing CUDA graphs: 3/19", 53),),
            ),
        },
        FAILED,
        ("phase graph-capture on rank TP0 took 301.0 s, its deadline is 300 s", "Capturing CUDA graphs: 3/19",
         "from deadlines.graph_capture"),
    ),
    "ready too late": (
        Deadlines(ready=45),
        {"phases": (WEIGHTS,), "ready_seconds": 50.0},
        FAILED,
        ("ready after 50.0 s, the deadline is 45 s", "the longest phase was weights with 40.0 s"),
    ),
    "never ready": (
        Deadlines(ready=45),
        {"phases": (WEIGHTS,), "ready": False, "wall_seconds": 46.0},
        FAILED,
        ("still not ready after 46.0 s, the deadline is 45 s",),
    ),
    "nothing is timed": (Deadlines(), {}, NOT_OBSERVABLE, ("a line, a stamp or a receive time",)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(case: tuple[Deadlines, dict[str, Any], Outcome, tuple[str, ...]]) -> None:
    deadlines, fields, outcome, words = case
    says(check(profile(deadlines=deadlines), None, record(**fields), None), outcome, *words)


def test_usual_time_is_the_baselines_else_the_references() -> None:
    limits = profile(deadlines=Deadlines(phases={"weights": 30}))
    slow, quick = record(phases=(WEIGHTS,)), reference(phases=(PhaseSpan("weights", seconds=3.0),))
    says(check(limits, quick, slow, None), FAILED, "took 40.0 s, its deadline is 30 s; 3.0 s on the reference start")
    accepted = Baseline("p", {}, {"process": Population({}, {"phase.weights": (2.0, 4.0, 9.0)})})
    says(check(limits, quick, slow, accepted), FAILED, "usually 4.0 s (baseline)")


def test_a_deadline_that_the_user_wrote_for_a_phase_that_nothing_times() -> None:
    limits = Deadlines(phases={"preparation": 30})
    asked = profile(deadlines=limits, origin={"deadlines.preparation": 12})
    seen = {"phases": (WEIGHTS,)}
    says(
        check(asked, None, record(**seen, ready_seconds=50.0), None),
        NOT_OBSERVABLE,
        "phase preparation has a deadline of 30 s, and nothing shows how long it took",
        "seen were weights",
    )
    # a whole start that was shorter than the deadline can't have overrun it; a built-in deadline is no wish of the user
    says(check(asked, None, record(**seen, ready_seconds=29.0), None), PASSED)
    says(check(profile(deadlines=limits), None, record(**seen, ready_seconds=50.0), None), PASSED)


def test_last_lines_are_those_of_the_late_rank() -> None:
    lines = [fact("weights.read", 1.0, "TP0", line=5), fact("weights.read", 2.0, "TP1", line=6, text="TP1 reads")]
    late = record(*lines, phases=(PhaseSpan("weights", "TP1", seconds=40.0),))
    verdict = check(profile(deadlines=Deadlines(phases={"weights": 30})), None, late, None)
    assert [e.text for e in verdict.findings[0].evidence] == ["TP1 reads"]


def test_numbers_hold_the_longest_rank() -> None:
    spans = (PhaseSpan("weights", "TP0", seconds=1.0), PhaseSpan("weights", "TP1", seconds=3.0), PhaseSpan("api"))
    assert check(profile(), None, record(phases=spans), None).numbers == {"weights s": 3.0}
    assert PhaseSpan("api", begin=1.0).taken is None
