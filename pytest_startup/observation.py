"""What is asked of an engine that is ready: completions, endpoints, the workload; and whether it still serves then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_startup import assemble
from pytest_startup.asking import target_of
from pytest_startup.ends import failure_of
from pytest_startup.launch.base import only_node
from pytest_startup.launch.listeners import pids_of, who_listens
from pytest_startup.observe import caches, endpoints
from pytest_startup.observe.ready import start_time
from pytest_startup.record import Completion, Evidence, Fact, Failure, ThroughputSample
from pytest_startup.vigil import Vigil
from pytest_startup.workload import quality, sessions, throughput
from pytest_startup.workload.completions import Target, ask, completions_together, ready_completions

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_startup.deaths import Deaths
    from pytest_startup.engines.base import Dialect
    from pytest_startup.launch.base import Running
    from pytest_startup.profile.expect import ExpectSessions
    from pytest_startup.profile.model import Profile
    from pytest_startup.redact import Redactor
    from pytest_startup.stages import Stages

#: Seconds that an engine which has stopped serving gets to end, so that its end is told and not only its silence.
LAST_BREATH = 2.0
#: Seconds by which clocks may differ: the kernel gives a process's start time in whole seconds after boot.
CLOCK_SLACK = 5.0
#: Completions asked at once where the profile has no throughput workload, and the most of them where it has one.
TOGETHER = 4
MOST_TOGETHER = 64


@dataclass
class Seen:
    """What has been observed of a start so far, beside its logs. ``asked`` are facts of endpoints that are kept as
    files; ``facts`` can't be had again. ``failure`` is as seen from outside, without the logs. ``launch_clock`` is the
    wall clock's time of the launch, as it told it then."""

    facts: list[Fact] = field(default_factory=list)
    asked: list[Fact] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    throughput: Sequence[ThroughputSample] = ()
    caches_before: Mapping[str, caches.Snapshot] = field(default_factory=dict)
    caches_after: Mapping[str, caches.Snapshot] | None = None
    launch_clock: float | None = None
    health_seconds: float | None = None
    ready_seconds: float | None = None
    wall_seconds: float | None = None
    failure: Failure | None = None
    notes: list[str] = field(default_factory=list)


class Observation:
    """Asks a ready engine for everything. ``seen.failure`` is set when it does not serve to the end."""

    def __init__(
        self,
        profile: Profile,
        dialect: Dialect,
        running: Running,
        deaths: Deaths,
        port: int,
        seen: Seen,
        last_lines: Callable[[], tuple[Evidence, ...]],
    ) -> None:
        self._profile, self._dialect, self._running, self._port, self._seen = profile, dialect, running, port, seen
        self._last_lines = last_lines
        self._target = target_of(profile, dialect, running)
        self._vigil = Vigil(running, deaths, self._target.http.cancel)

    def run(self, folder: Path, redactor: Redactor, stages: Stages) -> None:
        """All of it, in order; what comes behind the engine's end is left out. ``folder`` keeps the answers."""
        seen, expect = self._seen, self._profile.expect
        target = self._target
        with target.http, self._vigil:
            stages.now("first completions")
            seen.completions += ready_completions(target, expect.completion)
            stages.now("endpoints")
            answers = endpoints.collect(target.http, self._dialect.endpoints, folder, redactor)
            seen.asked += assemble.endpoint_facts(self._dialect, answers, round(target.since_launch(), 3))
            self._not_older(answers.metrics)
            if expect.throughput is not None and self._serves():
                self._throughput(target, stages)
            if expect.tiers is not None and expect.tiers.sessions is not None and self._serves():
                self._sessions(target, expect.tiers.sessions, stages)
            if self._serves():
                levels = expect.throughput.concurrency if expect.throughput is not None else (TOGETHER,)
                count = min(max(levels), MOST_TOGETHER)
                stages.now(f"{count} completions at once")
                others = expect.quality.prompts if expect.quality is not None else ()
                seen.completions += completions_together(target, expect.completion, count, others)
            if expect.quality is not None and self._serves():
                stages.now(f"{len(expect.quality.prompts)} quality prompts")
                seen.completions += quality.answers(target, expect.quality)
            if not self._ended() and seen.failure is None:
                stages.now("health after the workload")
                self._still_serves(target)
        self._ended()

    def _serves(self) -> bool:
        """Is there still something to measure? Not when the engine has ended, or has left a request unanswered."""
        return not self._ended() and self._seen.failure is None and self._seen.completions[-1].status != 0

    def _not_older(self, metrics: str) -> None:
        """A process of ours may only pass requests on: the server behind it must not be older than this start."""
        started = start_time(metrics)
        if started is None or self._seen.failure is not None:
            return
        now = time.time() - self._now()  # the same moment, unless the clock was set in between
        launched = min(now, now if self._seen.launch_clock is None else self._seen.launch_clock)
        age = launched - started
        if age > CLOCK_SLACK:
            path = self._dialect.endpoints.metrics
            text = f"process_start_time_seconds of {path} is {age:.0f} s before this launch"
            seen = Evidence("endpoint", f"GET {path}", text, seconds=self._now())
            self._seen.failure = Failure(
                "serving", "not-serving", f"another server answers, one that is older than this start: {text}",
                cause=seen, node=only_node(self._running.logs), after_seconds=self._now(),
                helps=("something of the launch command passes requests on to an engine that was up before",),
            )  # fmt: skip

    def _throughput(self, target: Target, stages: Stages) -> None:
        expect = self._profile.expect.throughput
        if expect is None:
            return
        batches = len(expect.concurrency) * expect.repeats
        stages.now(f"throughput workload, warm-up before {batches} batches")
        done = 0

        def told(_: ThroughputSample) -> None:
            nonlocal done
            done += 1
            stages.now(f"throughput workload, {done} of {batches} batches done")

        measured = throughput.measure(target, expect, on_batch=told)
        self._seen.throughput = measured.samples
        self._seen.facts += measured.facts
        self._seen.completions += measured.failures
        if measured.stopped is not None and not self._ended():
            self._seen.notes.append(f"throughput: {measured.stopped}")

    def _sessions(self, target: Target, expect: ExpectSessions, stages: Stages) -> None:
        def told(turn: int) -> None:
            what = f"{expect.count} sessions of {expect.prompt_tokens:,} tokens"
            stages.now(f"{what}, turn {turn} of {expect.turns}")

        held = sessions.run(target, expect, on_turn=told)
        self._seen.facts += held.facts
        self._seen.completions += held.failures
        if held.stopped is not None and not self._ended():
            self._seen.notes.append(f"sessions: {held.stopped}")

    def _still_serves(self, target: Target) -> None:
        """Health and one more completion behind the workload, of a server that is still ours alone."""
        seen, path = self._seen, self._dialect.endpoints.health
        health = target.http.get(path)
        last = ask(target, self._profile.expect.completion, "last")
        seen.completions.append(last)
        texts = [f"{path} {health.status or health.error}", f"completion {last.status or last.error}"]
        fine = health.ok and last.status == 200 and not last.error
        pids = pids_of(self._running)
        if pids is not None and (found := who_listens(self._port, pids())).who == "foreign":
            fine = False
            texts.append(found.text)
        where = Evidence("endpoint", f"GET {path}", "; ".join(texts), seconds=self._now())
        seen.facts.append(Fact("endpoint.health_after", fine, where, detail={"keep": True}))
        if fine:
            return
        if not self._ended():
            self._running.wait_exit(LAST_BREATH)
        if not self._ended():
            text = f"the engine served no more after the workload: {'; '.join(texts)}"
            seen.failure = Failure(
                "serving", "not-serving", text, node=only_node(self._running.logs), after_seconds=self._now(),
                last_lines=self._last_lines(),
            )  # fmt: skip

    def _ended(self) -> bool:
        """Has the engine, or a rank of it, ended while it served? Then the failure is noted."""
        ended, lost = self._running.exited(), self._vigil.failure
        if self._seen.failure is None:
            self._seen.failure = lost
        if self._seen.failure is None and ended is not None:
            self._seen.failure = failure_of(ended, "while it served", "serving", self._now())
        return ended is not None or lost is not None

    def _now(self) -> float:
        return round(time.monotonic() - self._running.launched_at, 3)
