"""One live start: launch, wait, observe, workload, stop; and the record of all that was seen."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_startup import assemble
from pytest_startup.artifacts import ArtifactsError, RunFolder, utc_now
from pytest_startup.asking import allowed_hosts, api_key, served_name
from pytest_startup.deaths import Deaths, first_of
from pytest_startup.divergence import Watcher
from pytest_startup.ends import ENDED, late_losses, with_loss, with_memory
from pytest_startup.intake import Intake, LogReading, read_logs
from pytest_startup.launch.base import HoldsCaches, Hurries, LaunchError, StartPlan, only_node
from pytest_startup.launch.listeners import owner_of, pids_of
from pytest_startup.observation import Observation, Seen
from pytest_startup.observe import caches, gpus, host
from pytest_startup.observe.follow import Follower
from pytest_startup.observe.ready import ReadyWatch
from pytest_startup.observe.sampler import MemorySampler
from pytest_startup.record import OWN_END, Evidence, Fact, Failure, Leftover, StartRecord
from pytest_startup.stages import Stages
from pytest_startup.waiting import SERVING_NO_HELP, Follow, Usual, Wait, serving_helps

if TYPE_CHECKING:
    from pytest_startup.engines.base import Dialect
    from pytest_startup.launch.base import Exit, Launcher, Running
    from pytest_startup.profile.model import Profile


@dataclass(frozen=True)
class Tools:
    """What the starts of a run have in common."""

    profile: Profile
    dialect: Dialect
    launcher: Launcher
    run: RunFolder
    tell: Callable[[str], None]


class LiveStart:
    """A start that is made now. ``run()`` does all up to the end of the workload; ``finish()`` stops the engine.

    After ``run()`` the record says all that any check but ``cleanup`` judges; ``finish()`` adds what the stop released,
    and nothing else. A start that failed is finished at once. Neither raises for what the engine does. When the run is
    interrupted, or a defect of ours ends it, the engine is stopped and the record says so before it is raised on.
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
        self._reading: LogReading | None = None
        self._process_facts: Sequence[Fact] | None = None
        self._finished = False
        self._hurried = False
        self._stopping = False
        self._alone: Exit | None = None

    def run(self, earlier: Mapping[str, caches.Snapshot]) -> StartRecord:
        """Make the start. ``earlier``: cache snapshots of the start before, so that only what changed is hashed.

        Raises ArtifactsError when the record can't be written; the engine is stopped then.
        """
        with Stages(self.tools.tell, self.plan.name) as stages:
            try:
                self._make(earlier, stages)
                if self._seen.failure is None:
                    self._close_logs()
                    return self._write()
                if self._seen.failure.kind not in ENDED:
                    self._close_logs()  # the log of an engine that has ended is read to its end
                stages.now("")
                return self.finish()
            except ArtifactsError:
                if self.running is not None:
                    self.running.stop()
                raise
            except BaseException as stopped:
                self._interrupted(stopped)
                raise

    def finish(self) -> StartRecord:
        """Stop the engine, prove it gone, and complete the record. Idempotent."""
        if self._finished and self.record is not None:
            return self.record
        self._finished = True
        if self._insist(self._end):
            raise KeyboardInterrupt
        return self.record or self._write()

    def losses(self, until: float) -> list[Leftover]:
        """Ranks that ended behind the observation, up to ``until`` (seconds since launch)."""
        if self.running is None or self._process_facts is None or self._seen.failure is not None:
            return []
        return late_losses(self._process_facts, self.running.facts(), until)

    def _end(self) -> None:
        left: Sequence[Leftover] | None = None
        if self.running is not None:
            if not self._stopping:
                self._stopping, self._alone = True, self.running.exited()
            begun = self._now() or 0.0
            if not self.tools.profile.nodes:
                begun = math.inf  # who watches it looks once more before anybody is told to stop
            with Stages(self.tools.tell, self.plan.name) as stages:
                stages.now("stopping the engine")
                left = self.running.stop()
            alone, behind = self._alone, self.running.exited()
            if alone is None and behind is not None and behind.alone:
                alone = behind
            if self.record is not None and alone is not None:
                left = (*left, Leftover(OWN_END, alone.text, released=False, node=alone.node))
            else:
                left = (*left, *self.losses(begun))
        self._close_logs(anew=self._hurried)
        failure = self._seen.failure
        if failure is not None and failure.kind in ENDED and not failure.last_lines:
            self._seen.failure = replace(failure, last_lines=self._last())
        self._write(left)

    def _insist(self, step: Callable[[], None]) -> bool:
        """Do it, and again if Ctrl-C comes meanwhile: that asks for haste, not for half a record. True: it came."""
        try:
            step()
        except KeyboardInterrupt:
            self._hurried = True
            if isinstance(self.running, Hurries):
                self.running.hurry()
            step()
            return True
        return False

    def _make(self, earlier: Mapping[str, caches.Snapshot], stages: Stages) -> None:
        """Everything up to the end of the observation; what went wrong is in ``seen.failure``."""
        profile, seen = self.tools.profile, self._seen
        stages.now("looking at the caches")
        seen.caches_before = self._caches(earlier, fresh=self.plan.fresh)
        stages.now("looking at the host")
        here = not profile.nodes  # nodes look at themselves
        pins = (profile.host.gpu, profile.host.driver, profile.host.gpu_count)
        nvml = gpus.Nvml(profile.launch.gpus or None) if here and (profile.launch.gpus or any(pins)) else None
        seen.facts += host.host_facts() if here else []
        if nvml is not None:
            seen.facts += gpus.identity_facts(nvml)
        shm = host.SHM if here and profile.launch.process is not None else None  # a container has its own
        sampler = MemorySampler(nvml, time.monotonic(), pids=self._pids, shm=lambda: shm)
        try:
            stages.now("launching")
            try:
                self.running = self.tools.launcher.start(self.plan)
            except LaunchError as refused:
                seen.failure = Failure("launch", "refused", str(refused))
                return
            sampler.start(self.running.launched_at)
            seen.launch_clock = time.time() - (time.monotonic() - self.running.launched_at)
            stages.now("")
            with Deaths(pids_of(self.running), self._phase, only_node(self.running.logs)) as deaths:
                if self._wait(self.running, deaths):
                    deaths.ready()
                    self._observe(self.running, deaths, stages)
            stages.now("looking at memory and caches")
            seen.wall_seconds = self._now()
            seen.facts += sampler.facts(after=seen.failure is None) if here else []
            if seen.failure is None:
                seen.caches_after = self._caches(seen.caches_before)
                self._process_facts = self.running.facts()
        finally:
            sampler.stop()
            if nvml is not None:
                nvml.close()

    def _observe(self, running: Running, deaths: Deaths, stages: Stages) -> None:
        """Ask the engine for everything, as long as it lives."""
        self.tools.tell(f"{self.plan.name}: ready after {self._seen.ready_seconds:.1f} s; completions and workload")
        profile, dialect, port = self.tools.profile, self.tools.dialect, self.plan.port
        observation = Observation(profile, dialect, running, deaths, port, self._seen, self._last)
        observation.run(self.plan.folder / "endpoints", self.tools.run.redactor, stages)

    def _phase(self) -> str:
        return self._follow.progress().phase if self._follow is not None else "launch"

    def _wait(self, running: Running, deaths: Deaths) -> bool:
        """Follow the logs until ready; False: not ready, and the failure is noted."""
        profile, seen, dialect = self.tools.profile, self._seen, self.tools.dialect
        self._followers = [Follower(log) for log in running.logs]
        follow = self._follow = Follow(self._followers, Intake(running.logs, dialect.reader(), profile.expect.log))
        watch = ReadyWatch(
            running.base_url,
            dialect.endpoints,
            served_name(profile),
            profile.expect.completion,
            launched_at=running.launched_at,
            request_timeout=profile.deadlines.request,
            allowed=allowed_hosts(running),
            api_key=api_key(profile),
            owner=owner_of(running),
        )
        with watch:
            wait = Wait(
                running=running,
                follow=follow,
                deadlines=profile.deadlines,
                usual=self._usual,
                ready=lambda: watch.result is not None,
                why_not_ready=lambda: attempts_text(watch),
                diverged=first_of(Watcher().feed, deaths.feed),
                tell=self.tools.tell,
                name=self.plan.name,
                notes=seen.notes,
            )
            seen.failure = wait.run()
            result = watch.stop()
        seen.health_seconds = result.health_seconds
        if result.proof is not None:
            proof = replace(result.proof, source="endpoint")
            seen.facts.append(Fact("endpoint.owner", proof.text, proof, detail={"keep": True}))
        if result.completion is not None:
            seen.completions.append(replace(result.completion, purpose="first"))
        if seen.failure is None and result.ready:
            seen.ready_seconds = result.ready_seconds
        elif seen.failure is None:
            seen.failure = Failure(
                phase=follow.progress().phase,
                kind="not-serving",
                summary=f"the engine answers, but not with a completion: {result.reason}",
                node=only_node(running.logs),
                after_seconds=self._now(),
                helps=serving_helps(result.reason),
                no_help=SERVING_NO_HELP,
                last_lines=follow.last_lines(),
            )
        return seen.failure is None

    def _interrupted(self, stopped: BaseException) -> None:
        """Stop the engine and leave a record of how far the start had come."""
        self._insist(lambda: self._note(stopped))
        with contextlib.suppress(ArtifactsError, KeyboardInterrupt):  # what stopped us is told, and nothing else
            self.finish()

    def _note(self, stopped: BaseException) -> None:
        """What stopped the start, as its failure."""
        self._close_logs(anew=True)
        if self._seen.failure is not None:
            return
        summary = self._reading.summary if self._reading else None
        phase = "serving" if self._seen.ready_seconds is not None else summary.last_phase if summary else None
        ours, ctrl_c = isinstance(stopped, Exception), isinstance(stopped, KeyboardInterrupt)
        what = "the start ended by a defect of pytest-startup" if ours else "the start was interrupted"
        said = "Ctrl-C" if ctrl_c else f"{type(stopped).__name__}: {stopped}"
        self._seen.wall_seconds = self._now()
        self._seen.failure = Failure(
            phase or "launch", "defect" if ours else "interrupted", f"{what}: {said}", after_seconds=self._now(),
            last_lines=self._last(),
        )  # fmt: skip
        if ctrl_c and self.running is not None and not self._finished:
            limit = f"KILL after {self.tools.profile.deadlines.stop:g} s (Ctrl-C again: at once)"
            self.tools.tell(f"{self.plan.name}: Ctrl-C; stopping the engine, {limit}")

    def _close_logs(self, anew: bool = False) -> None:
        """Take what the logs say up to now; later lines don't belong to the record.

        ``anew``: read them again, where the reader may have been interrupted in the middle of a line. Several logs are
        read again as a replay will read them: in one order, whatever was seen first.
        """
        if self._follow is None or self._reading is not None or self.running is None:
            return
        logs = self.running.logs
        if anew:
            ends = {log.node: log.path.stat().st_size if log.path.exists() else 0 for log in logs}
        else:
            self._follow.look()
            self._reading = self._follow.close()
            ends = dict(self._reading.ends)
        for follower in self._followers:
            follower.close()
        if anew or len(logs) > 1:
            self._reading = read_logs(logs, self.tools.dialect, self.tools.profile.expect.log, ends)

    def _pids(self) -> set[int] | None:
        known = pids_of(self.running) if self.running is not None else None
        return known() if known is not None else None

    def _caches(self, earlier: Mapping[str, caches.Snapshot], fresh: bool = False) -> Mapping[str, caches.Snapshot]:
        launcher, profile = self.tools.launcher, self.tools.profile
        if isinstance(launcher, HoldsCaches):
            return launcher.snapshots(profile, earlier, fresh)
        return caches.snapshots(profile.caches, earlier)

    def _last(self) -> tuple[Evidence, ...]:
        return self._follow.last_lines() if self._follow is not None else ()

    def _now(self) -> float | None:
        return None if self.running is None else round(time.monotonic() - self.running.launched_at, 3)

    def _write(self, cleanup: Sequence[Leftover] | None = None) -> StartRecord:
        """Build the record from what is there, write it, and keep it as it was written."""
        seen, profile, running = self._seen, self.tools.profile, self.running
        logs = running.logs if running is not None else ()
        reading = self._reading or LogReading()
        if seen.caches_after is None:
            seen.caches_after = self._caches(seen.caches_before)
        self.snapshots = seen.caches_after
        if self._process_facts is None:
            self._process_facts = running.facts() if running is not None else ()
        if seen.failure is not None:
            said = reading.summary.failure if reading.summary else None
            seen.failure = with_loss(seen.failure, self._process_facts, seen.ready_seconds, said)
            seen.failure = with_memory(seen.failure, [*seen.facts, *self._process_facts])
        kept = [*seen.facts, *self._process_facts, *caches.facts_of(seen.caches_before, seen.caches_after)]
        ended = running.exited() if running is not None else None
        record = StartRecord(
            profile=profile.name,
            name=self.plan.name,
            kind=self.plan.kind,
            population=self.population,
            started_at=self._started_at,
            argv=tuple(self.tools.run.redactor.argv(self.plan.argv)),
            ready=seen.ready_seconds is not None,
            health_seconds=seen.health_seconds,
            ready_seconds=seen.ready_seconds,
            wall_seconds=seen.wall_seconds,
            exit_code=None if ended is None else ended.code,
            facts=assemble.in_order(reading.facts, seen.asked, kept),
            completions=tuple(seen.completions),
            throughput=tuple(seen.throughput),
            caches_before=tuple(s.tree for s in seen.caches_before.values()),
            caches_after=tuple(s.tree for s in seen.caches_after.values()),
            cleanup=None if cleanup is None else tuple(cleanup),
            notes=tuple(seen.notes),
            outside=seen.failure,
        )
        self.record = self.tools.run.write_record(assemble.log_parts(record, reading, logs))
        return self.record


def attempts_text(watch: ReadyWatch) -> str:
    """What the wait for readiness is at, and the last attempts that were not successful, newest last.

    That nothing listened before is no news once something answers.
    """
    pending = watch.pending
    tried = watch.attempts()[-2:]
    answered = [a for a in tried if a.what != "connect"]
    shown = [f"{a.what}: {a.reason}" for a in (answered if answered or pending else tried)]
    return "; ".join([*shown, pending] if pending else shown)
