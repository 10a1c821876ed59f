"""One live start: launch, wait, observe, workload, stop; and the record of all that was seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_startup import assemble
from pytest_startup.artifacts import RunFolder, utc_now
from pytest_startup.divergence import Watcher
from pytest_startup.engines.base import Dialect
from pytest_startup.launch.base import LaunchError, StartPlan
from pytest_startup.observe import caches, endpoints, gpus, host
from pytest_startup.observe.follow import Follower
from pytest_startup.observe.http import Http
from pytest_startup.observe.ready import ReadyWatch
from pytest_startup.observe.sampler import MemorySampler
from pytest_startup.record import Completion, Evidence, Fact, Failure, Leftover, StartRecord, ThroughputSample
from pytest_startup.waiting import Follow, Usual, Wait
from pytest_startup.workload import quality, throughput
from pytest_startup.workload.completions import Target, ask, ready_completions

if TYPE_CHECKING:
    from pytest_startup.launch.base import Launcher, Running
    from pytest_startup.profile.model import Profile


@dataclass(frozen=True)
class Tools:
    """What the starts of a run have in common."""

    profile: Profile
    dialect: Dialect
    launcher: Launcher
    run: RunFolder
    tell: Callable[[str], None]


@dataclass
class Seen:
    """What has been observed of a start so far, beside its logs."""

    facts: list[Fact] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    throughput: Sequence[ThroughputSample] = ()
    caches_before: Mapping[str, caches.Snapshot] = field(default_factory=dict)
    caches_after: Mapping[str, caches.Snapshot] = field(default_factory=dict)
    health_seconds: float | None = None
    ready_seconds: float | None = None
    wall_seconds: float | None = None
    failure: Failure | None = None
    notes: list[str] = field(default_factory=list)


class LiveStart:
    """A start that is made now. ``run()`` does all up to the end of the workload; ``finish()`` stops the engine.

    ``record`` is complete but for ``cleanup`` after ``run()``, and complete after ``finish()``. Neither raises for
    what the engine does; a start that could not be made has a record whose failure is of kind ``refused``.
    """

    def __init__(self, tools: Tools, plan: StartPlan, population: str, usual: Usual, notes: Iterable[str] = ()) -> None:
        self.tools, self.plan, self.population, self._usual = tools, plan, population, usual
        self.running: Running | None = None
        self.record: StartRecord | None = None
        self.snapshots: Mapping[str, caches.Snapshot] = {}
        self._seen = Seen(notes=list(notes))
        self._started_at = utc_now()
        self._follow: Follow | None = None
        self._followers: list[Follower] = []
        self._finished = False

    def run(self, earlier: Mapping[str, caches.Snapshot]) -> StartRecord:
        """Make the start. ``earlier``: cache snapshots of the start before, so that only what changed is hashed."""
        profile, seen = self.tools.profile, self._seen
        seen.caches_before = caches.snapshots(profile.caches, earlier)
        nvml = gpus.Nvml(profile.launch.gpus or None) if profile.launch.gpus or profile.host.gpu else None
        seen.facts += host.host_facts()
        if nvml is not None:
            seen.facts += gpus.identity_facts(nvml)
        sampler = MemorySampler(nvml, time.monotonic())
        try:
            try:
                self.running = self.tools.launcher.start(self.plan)
            except LaunchError as refused:
                seen.failure = Failure("launch", "refused", str(refused))
                return self._write()
            sampler.start(self.running.launched_at)
            if self._wait():
                self._observe(self.running)
            seen.wall_seconds = self._now()
            seen.facts += sampler.facts(after=seen.failure is None)
        finally:
            sampler.stop()
            if nvml is not None:
                nvml.close()
        if seen.failure is not None:
            return self.finish()
        seen.caches_after = self.snapshots = caches.snapshots(profile.caches, seen.caches_before)
        return self._write()

    def finish(self) -> StartRecord:
        """Stop the engine, prove it gone, and complete the record. Idempotent."""
        if self._finished and self.record is not None:
            return self.record
        self._finished = True
        left: Sequence[Leftover] | None = None
        if self.running is not None:
            left = self.running.stop()
        if self._seen.failure is not None or not self._seen.caches_after:
            profile = self.tools.profile
            self._seen.caches_after = self.snapshots = caches.snapshots(profile.caches, self._seen.caches_before)
        record = self._write(left)
        for follower in self._followers:
            follower.close()
        return record

    def _wait(self) -> bool:
        """Follow the logs until ready; False: not ready, and the failure is noted."""
        running, profile, seen = self.running, self.tools.profile, self._seen
        if running is None:
            return False
        self._followers = [Follower(log) for log in running.logs]
        self._follow = Follow(running.logs, self._followers, self.tools.dialect.reader())
        watch = ReadyWatch(
            running.base_url,
            self.tools.dialect.endpoints,
            served_name(profile),
            profile.expect.completion,
            launched_at=running.launched_at,
            pids=getattr(running, "pids", None),
            request_timeout=profile.deadlines.request,
        )
        watcher = Watcher()
        with watch:
            watch.start()
            wait = Wait(
                running=running,
                follow=self._follow,
                deadlines=profile.deadlines,
                usual=self._usual,
                ready=lambda: watch.result is not None,
                why_not_ready=lambda: attempts_text(watch),
                diverged=lambda facts, now: watcher.feed(facts, now),
                tell=self.tools.tell,
                name=self.plan.name,
            )
            seen.failure = wait.run()
            result = watch.stop()
        seen.health_seconds, seen.ready_seconds = result.health_seconds, result.ready_seconds
        if result.proof is not None:
            seen.facts.append(Fact("endpoint.owner", result.proof.text, replace(result.proof, source="endpoint"),
                                   detail={"keep": True}))  # fmt: skip
        if result.completion is not None:
            seen.completions.append(replace(result.completion, purpose="first"))
        if seen.failure is None and not result.ready:
            progress = self._follow.reader.progress()
            seen.failure = Failure(
                phase=progress.phase,
                kind="not-serving",
                summary=f"the engine answers, but not with a completion: {result.reason}",
                after_seconds=round(self._now() or 0.0, 3),
                last_lines=self._follow.last_lines(),
            )
        return seen.failure is None

    def _observe(self, running: Running) -> None:
        """Everything that is asked of a ready engine. Ends early when the engine ends."""
        profile, seen, dialect = self.tools.profile, self._seen, self.tools.dialect
        self.tools.tell(f"{self.plan.name}: ready after {seen.ready_seconds:.1f} s; completions and workload")
        http = Http(running.base_url)
        target = Target(http, dialect.endpoints, served_name(profile), running.launched_at, profile.deadlines.request)
        try:
            seen.completions += ready_completions(target, profile.expect.completion)
            folder = self.plan.folder / "endpoints"
            answers = endpoints.collect(http, dialect.endpoints, folder, self.tools.run.redactor)
            seen.facts += assemble.endpoint_facts(dialect, dialect.endpoints, answers, self._now())
            if profile.expect.throughput is not None and not self._ended():
                measured = throughput.measure(target, profile.expect.throughput)
                seen.throughput = measured.samples
                seen.facts += measured.facts
                seen.completions += measured.failures
                if measured.stopped is not None:
                    seen.notes.append(f"throughput: {measured.stopped}")
            if profile.expect.quality is not None and not self._ended():
                seen.completions += quality.answers(target, profile.expect.quality)
            self._still_alive(http, target)
        finally:
            http.close()

    def _still_alive(self, http: Http, target: Target) -> None:
        """Health and one more completion behind the workload: an engine that died while serving is found here."""
        seen, path = self._seen, self.tools.dialect.endpoints.health
        health = http.get(path)
        last = ask(target, self.tools.profile.expect.completion, "last")
        seen.completions.append(last)
        text = f"{path} {health.status or health.error}; completion {last.status or last.error}"
        where = Evidence("endpoint", f"GET {path}", text, seconds=self._now())
        fine = health.ok and last.status == 200
        seen.facts.append(Fact("endpoint.health_after", fine, where, detail={"keep": True}))
        if not fine:
            self._follow_rest()
            seen.failure = Failure(
                "serving",
                "ended",
                f"the engine served no more after the workload: {text}",
                after_seconds=round(self._now() or 0.0, 3),
                last_lines=self._follow.last_lines() if self._follow else (),
            )

    def _ended(self) -> bool:
        """Has the engine ended while it served? Then the failure is noted."""
        ended = self.running.exited() if self.running is not None else None
        if ended is None:
            return False
        self._seen.failure = Failure(
            "serving", "ended", f"the engine ended while it served: {ended.text}", node=ended.node,
            after_seconds=round(self._now() or 0.0, 3),
        )  # fmt: skip
        return True

    def _follow_rest(self) -> None:
        if self._follow is not None:
            self._follow.look()

    def _now(self) -> float | None:
        return None if self.running is None else time.monotonic() - self.running.launched_at

    def _write(self, cleanup: Sequence[Leftover] | None = None) -> StartRecord:
        """Build the record from what is there, write it, and keep it."""
        seen, profile, running = self._seen, self.tools.profile, self.running
        logs = running.logs if running is not None else ()
        reading = assemble.read_logs(logs, self.tools.dialect)
        ended = running.exited() if running is not None else None
        facts = [*reading.facts, *assemble.pattern_facts(profile, logs, seen.wall_seconds), *seen.facts]
        facts += running.facts() if running is not None else []
        facts += caches.facts_of(seen.caches_before, seen.caches_after)
        self.record = StartRecord(
            profile=profile.name,
            name=self.plan.name,
            kind=self.plan.kind,
            population=self.population,
            started_at=self._started_at,
            argv=tuple(self.tools.run.redactor.text(a) for a in self.plan.argv),
            ready=seen.ready_seconds is not None,
            health_seconds=seen.health_seconds,
            ready_seconds=seen.ready_seconds,
            wall_seconds=seen.wall_seconds,
            exit_code=None if ended is None else ended.code,
            failure=assemble.explained(seen.failure, reading, seen.ready_seconds is not None, logs),
            facts=tuple(facts),
            phases=assemble.phases_of(reading, logs),
            completions=tuple(seen.completions),
            throughput=tuple(seen.throughput),
            caches_before=tuple(s.tree for s in seen.caches_before.values()),
            caches_after=tuple(s.tree for s in seen.caches_after.values()),
            cleanup=None if cleanup is None else tuple(cleanup),
            notes=tuple(seen.notes),
        )
        self.tools.run.write_record(self.record)
        return self.record


def served_name(profile: Profile) -> str:
    """The name under which the engine serves its model."""
    return profile.engine.served_name or profile.engine.model


def attempts_text(watch: ReadyWatch) -> str:
    """The last unsuccessful attempts, newest last."""
    return "; ".join(f"{a.what}: {a.reason}" for a in watch.attempts()[-2:])
