"""The wait: ready, ended, too late, parted, silent; each with its words. A clock and an engine that are scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_startup import stages, waiting
from pytest_startup.engines.base import Progress
from pytest_startup.launch.base import Exit, NodeLog
from pytest_startup.profile.model import Deadlines
from pytest_startup.record import Evidence, Fact, Failure
from pytest_startup.waiting import Usual, Wait

LINE = Evidence("log", "head/engine.log", "Loading weights", 7, "head", "TP1", 3.0)
LAST = (Evidence("log", "head/engine.log", "the last line", 9, "head"),)


class Clock:
    """Monotonic time that only passes while something waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: self.now))


class Engine:
    """Ends at ``ends`` seconds after launch; each wait for it lets the clock go on by ``step``."""

    base_url = "http://127.0.0.1:1"

    def __init__(self, clock: Clock, ends: float | None = None, code: int | None = 1, step: float = 0.5) -> None:
        self.clock, self.ends, self.code, self.step = clock, ends, code, step
        self.launched_at = clock.now
        self.logs: Sequence[NodeLog] = (NodeLog("head", Path("engine.log"), Path("lines.tsv")),)

    def exited(self) -> Exit | None:
        if self.ends is None or self.clock.now - self.launched_at < self.ends:
            return None
        return Exit("head", self.code, "exited", "the engine's process ended")

    def wait_exit(self, timeout: float) -> Exit | None:
        assert timeout <= waiting.LOOK
        self.clock.now += self.step
        return self.exited()

    def facts(self) -> Sequence[Fact]:
        return ()

    def stop(self) -> Sequence[Any]:
        return ()


class Log:
    """A followed log whose reader says ``phase`` since ``since``; ``changes`` tells whether new lines keep coming."""

    def __init__(self, clock: Clock, phase: str, since: float, rank: str | None = "TP1", changes: bool = True) -> None:
        self.clock, self.changes = clock, changes
        self.changed_at = clock.now
        self._progress = Progress(phase, rank, since, LINE)

    def look(self) -> list[Fact]:
        if self.changes:
            self.changed_at = self.clock.now
        return []

    def progress(self) -> Progress:
        return self._progress

    def last_lines(self, _: int = 5) -> tuple[Evidence, ...]:
        return LAST


def wait_for(engine: Engine, log: Log, **more: Any) -> Wait:
    given: dict[str, Any] = {
        "running": engine,
        "follow": log,
        "deadlines": Deadlines(ready=60.0, silence=1e9, phases={"weights": 20.0}),
        "usual": Usual(),
        "ready": lambda: False,
        "why_not_ready": lambda: "POST /v1/completions: HTTP 503",
        "diverged": lambda *_: None,
        "tell": lambda _: None,
        "name": "restart-1",
    }
    return Wait(**{**given, **more})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_ready_ends_the_wait(clock: Clock) -> None:
    wait = wait_for(Engine(clock), Log(clock, "weights", 0.0), ready=lambda: clock.now > 1005)
    assert wait.run() is None
    assert clock.now == 1005.5


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, " (exit code 0)"), (1, " (exit code 1)"), (-9, " (exit code -9)"), (None, "")],
)
def test_an_end_with_any_code_is_a_failure_at_once(clock: Clock, code: int | None, text: str) -> None:
    failure = wait_for(Engine(clock, ends=5.0, code=code), Log(clock, "weights", 0.0)).run()
    assert failure == Failure(
        "weights",
        "ended",
        f"the engine ended before it was ready{text}: the engine's process ended",
        rank="TP1",
        node="head",
        after_seconds=5.0,
    )


def test_an_end_just_after_it_was_ready_is_left_to_what_follows(clock: Clock) -> None:
    wait = wait_for(Engine(clock, ends=5.0), Log(clock, "weights", 0.0), ready=lambda: clock.now >= 1005)
    assert wait.run() is None


USUAL = {
    "unknown": (Usual(), ""),
    "baseline": (Usual({"weights": 12.0}, 41.0), "; it usually takes {} s"),
    "reference": (Usual({"weights": 12.0}, 41.0, "reference"), "; it took {} s on the reference start"),
}


@pytest.mark.parametrize("name", USUAL)
def test_a_phase_that_takes_too_long(clock: Clock, name: str) -> None:
    usual, text = USUAL[name]
    failure = wait_for(Engine(clock), Log(clock, "weights", 3.0), usual=usual).run()
    assert failure is not None
    assert failure.summary == "phase weights on rank TP1 ran 20.5 s, its deadline is 20 s" + text.format("12.0")
    assert (failure.kind, failure.phase, failure.rank, failure.node) == ("deadline", "weights", "TP1", "head")
    assert (failure.after_seconds, failure.last_lines) == (23.5, LAST)
    assert "what does it wait for?" in failure.helps[0]
    assert failure.no_help == ("a longer deadline, where the last lines stand still",)


@pytest.mark.parametrize(
    ("phase", "ready", "ends", "words"),
    [
        (
            "compile",
            1800.0,
            900.5,
            "phase compile on rank TP1 ran 900.5 s, its deadline is 900 s (none is given for it",
        ),
        ("graph-capture", 900.0, 600.5, "its deadline is 600 s (none is given for it: half of ready)"),
        ("weights", 1800.0, 1800.5, "not ready after 1800.5 s, the deadline is 1800 s"),
        ("serving", 1800.0, 1800.5, "not ready after 1800.5 s, the deadline is 1800 s"),
        ("compile", 300.0, 300.5, "not ready after 300.5 s, the deadline is 300 s"),
    ],
)
def test_a_phase_without_a_deadline_has_one_by_default(
    clock: Clock, phase: str, ready: float, ends: float, words: str
) -> None:
    failure = wait_for(Engine(clock), Log(clock, phase, 0.0), deadlines=Deadlines(ready=ready, silence=1e9)).run()
    assert failure is not None
    assert words in failure.summary
    assert (failure.kind, failure.phase, failure.after_seconds) == ("deadline", phase, ends)


@pytest.mark.parametrize("name", USUAL)
def test_a_start_that_takes_too_long(clock: Clock, name: str) -> None:
    usual, text = USUAL[name]
    failure = wait_for(Engine(clock), Log(clock, "serving", 30.0, rank=None), usual=usual).run()
    assert failure is not None
    assert failure.summary == (
        f"not ready after 60.5 s, the deadline is 60 s{text.format('41.0')}; in phase serving for 30.5 s; "
        "POST /v1/completions: HTTP 503"
    )
    assert failure.rank is None
    assert failure.helps[0].startswith("the API server is up")


def test_fractions_of_a_deadline_are_shown(clock: Clock) -> None:
    deadlines = Deadlines(ready=60.0, phases={"weights": 0.25})
    failure = wait_for(Engine(clock), Log(clock, "weights", 0.0), deadlines=deadlines).run()
    assert failure is not None
    assert "its deadline is 0.25 s" in failure.summary


def test_parted_ranks_end_the_wait(clock: Clock) -> None:
    parted = Failure("warm-up", "divergence", "ranks part")
    seen: list[float] = []

    def diverged(_: Sequence[Fact], now: float) -> Failure | None:
        seen.append(now)
        return parted if now >= 2.0 else None

    assert wait_for(Engine(clock), Log(clock, "weights", 0.0), diverged=diverged).run() is parted
    assert seen == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_a_line_every_twenty_seconds(clock: Clock) -> None:
    told: list[str] = []
    usual = Usual({"warm-up": 12.0})
    wait = wait_for(
        Engine(clock, ends=50.0), Log(clock, "warm-up", 10.0), tell=told.append, usual=usual, name="restart-2"
    )
    assert wait.run() is not None
    assert told == [
        "restart-2: warm-up on TP1, 10 s (usually 12 s); 20 s since launch",
        "restart-2: warm-up on TP1, 30 s (usually 12 s); 40 s since launch",
    ]


def test_a_silence_is_told_and_noted_once(clock: Clock) -> None:
    told: list[str] = []
    wait = wait_for(
        Engine(clock, ends=19.0),
        Log(clock, "weights", 0.0, changes=False),
        deadlines=Deadlines(silence=5.0),
        tell=told.append,
    )
    assert wait.run() is not None
    assert wait.notes == ["no new log line for 5 s, 6 s after launch, in phase weights"]
    assert told == [f"restart-1: {wait.notes[0]}"]


# Stages


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def told() -> list[str]:
    return []


def test_a_long_stage_is_told_again_and_again(told: list[str]) -> None:
    with stages.Stages(told.append, "restart-1", 0.02) as step:
        step.now("quality prompts")
        until(lambda: len(told) >= 2)
        step.now("")
        count = len(told)
        told.append("quiet")
        step.now("stopping the engine")
        until(lambda: told[-1] != "quiet")
    assert told[:count] == ["restart-1: quality prompts, 0 s"] * count
    assert told[-1] == "restart-1: stopping the engine, 0 s"
    assert not [t for t in threading.enumerate() if t.name == "startup-stages"]


def test_short_stages_are_silent(told: list[str]) -> None:
    with stages.Stages(told.append, "restart-1", 60.0) as step:
        step.now("one")
        step.now("two")
    assert told == []
