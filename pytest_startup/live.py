"""The live gate: makes a profile's starts in order, each when its first item asks for it, and judges them."""

from __future__ import annotations

import math
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup import planning
from pytest_startup.artifacts import ArtifactsError, RunFolder, run_folder, utc_now
from pytest_startup.asking import target_of
from pytest_startup.clean import sweep
from pytest_startup.ends import lost_after
from pytest_startup.gate import ENDED, NOT_RELEASED, REFERENCE, StartFailed
from pytest_startup.launch.base import Keeps, LaunchError, StartPlan
from pytest_startup.launch.choose import choose_launcher
from pytest_startup.profile.nodes import clean_command
from pytest_startup.profile.resolve import resolved_json
from pytest_startup.record import OWN_END
from pytest_startup.recorded import RecordedGate
from pytest_startup.redact import Redactor
from pytest_startup.start import LiveStart, Tools
from pytest_startup.waiting import Usual
from pytest_startup.workload.completions import ask

if TYPE_CHECKING:
    from pytest_startup.launch.base import Launcher, Running
    from pytest_startup.observe.caches import Snapshot
    from pytest_startup.options import Options
    from pytest_startup.profile.expect import Prompt
    from pytest_startup.profile.model import Profile, Restart
    from pytest_startup.record import JSON, Completion, StartRecord


class LiveGate(RecordedGate):
    """See ``gate.Gate``. Nothing is touched before the first record is asked for."""

    def __init__(self, profile: Profile, options: Options) -> None:
        super().__init__(profile, options)
        self._options = options
        self._steps: dict[str, Restart | None] = {REFERENCE: None, **{r.name: r for r in profile.restarts}}
        self._planned = tuple(self._steps)
        self._run_id = uuid.uuid4().hex[:12]
        self._tools: Tools | None = None
        self._launcher: Launcher | None = None
        self._current: LiveStart | None = None
        self._snapshots: Mapping[str, Snapshot] = {}
        self._interrupted: str | None = None
        self._closed = False
        self._notes: list[str] = [*profile.warnings, *self._judge.notes()]
        self._telling = threading.Lock()
        self._redactor = Redactor(profile.secrets)

    def start_names(self) -> Sequence[str]:
        return list(self._planned)

    @property
    def folder(self) -> Path | None:
        return None if self._tools is None else self._tools.run.path

    def preflight(self) -> Sequence[str]:
        from pytest_startup.preflight import problems

        try:
            profile = planning.with_gpus(self.profile)
            return problems(profile, self._launch(profile))
        except LaunchError as error:
            return [str(error)]

    def _to_judge(self, start: str, check: str) -> StartRecord:
        """The check ``cleanup`` needs the stop, so it makes it, unless the engine is to be left up."""
        record = super()._to_judge(start, check)
        kept = self._options.keep and start == self._planned[-1]
        if check == "cleanup" and not kept and self._current is not None and self._current.plan.name == start:
            return self._finish_current() or record
        return record

    def engine(self) -> Running:
        """Raises LaunchError also where it ended by itself since: a new one in its place would hide that."""
        current = self._current
        if current is not None and (end := self._own_end(current)):
            raise LaunchError(f"{current.plan.name}: the engine ended by itself: {end}")
        if current is None or current.running is None or self._is_over(current):
            current = self._extra_start(None)
        if current.running is None:
            raise LaunchError("the engine could not be started")
        return current.running

    def complete(self, prompt: Prompt) -> Completion:
        target = target_of(self.profile, self._judge.dialect, self.engine())
        with target.http:
            return ask(target, prompt, "user")

    def notes(self) -> Sequence[str]:
        return list(self._notes)

    def restart(self, kind: str | None = None) -> tuple[StartRecord, StartRecord]:
        step = planning.extra_step(self.profile, kind)
        if self._current is None or self._own_end(self._current) is None:
            self.engine()
        before = self._latest()
        self._extra_start(step)
        return before, self._latest()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._end_current()
        finally:
            self._tell_ends()
            if self._launcher is not None:
                self._notes += [f"{NOT_RELEASED}{left.kind} {left.what}" for left in self._launcher.close()]
            if self._options.baseline == "propose":
                whole = [r for name, r in self._records.items() if name in self._planned]
                self._notes += self._judge.propose(whole, os.environ)
            self._manifest()

    def _end_current(self) -> None:
        """Stop what runs, or leave it up as asked."""
        current = self._current
        if current is None or current.running is None or self._is_over(current):
            return
        running = current.running
        if self._options.keep:
            lost = current.losses(math.inf)
            self._notes += [f"{ENDED}{current.plan.name}: {left.what}" for left in lost]
        if self._options.keep and running.exited() is None and isinstance(running, Keeps) and running.keep():
            text = f"{current.plan.name}: left running at {running.base_url} as asked"
            self._notes.append(f"{text}; end it with: {clean_command(self.profile)}")
            return
        self._finish_current()

    def _launch(self, profile: Profile) -> Launcher:
        if self._launcher is None:
            self._launcher = choose_launcher(profile, self._options, self._tell)
        return self._launcher

    def _open(self) -> Tools:
        """What the starts have in common, when the first one is made. Raises LaunchError: nothing is to be started."""
        if self._tools is None:
            profile = planning.with_gpus(self.profile)
            launcher = self._launch(profile)
            self._notes += sweep()
            if reasons := self.preflight():
                raise LaunchError("; ".join(reasons))
            root = self._options.artifacts or self._options.root / ".startup"
            run = RunFolder(run_folder(root, profile.name, utc_now()), self._redactor)
            run.write_profile(_source(profile), resolved_json(self.profile))
            self._tools = Tools(profile, self._judge.dialect, launcher, run, self._tell)
            self._manifest()
        return self._tools

    def _obtain(self, name: str) -> None:
        """Make one start, whatever comes of it. Raises LaunchError when this host should not be touched at all."""
        with self._told(name):
            tools, step = self._open(), self._steps[name]
            if self._current is not None:
                self._finish_current()
                time.sleep(self.profile.settle)
            notes = planning.prepare(self.profile, step, self._tell, tools.launcher)
            again = step is not None and step.kind == "same-container"
            before = self._current.plan.port if again and self._current is not None else None
            with planning.port_of(self.profile, self._run_id, before) as port:
                plan = StartPlan(
                    profile=tools.profile,
                    name=name,
                    kind=step.kind if step else planning.first_kind(self.profile),
                    folder=tools.run.start_folder(name),
                    run_id=self._run_id,
                    port=port,
                    argv=planning.command_line(self.profile, step, tools.dialect, port),
                    env=dict(step.change.env) if step else {},
                    fresh=step is None or step.kind != "same-container",
                    node_argv=planning.node_commands(self.profile, step, tools.dialect, port),
                )
                population = step.population if step else REFERENCE
                self._current = LiveStart(tools, plan, population, self._usual(population), notes)
                try:
                    self._current.run(self._snapshots)
                finally:
                    self._keep_record(self._current)
            self._manifest()

    def _finish_current(self) -> StartRecord | None:
        """Stop the current start; its record is then complete."""
        current = self._current
        if current is None:
            return None
        if current.running is not None and current.record is not None and current.record.failure is None:
            planning.spare(self.profile, current.running, self._next_step(current.plan.name))
        with self._told(current.plan.name):
            try:
                current.finish()
            finally:
                self._keep_record(current)
        return self._records.get(current.plan.name)

    def _own_end(self, current: LiveStart) -> str | None:
        """How the engine of this start ended before it was stopped; None: it did not, or that failed the start."""
        if current.running is not None and not self._is_over(current) and current.running.exited() is not None:
            self._finish_current()
        record = current.record
        if record is None or record.failure is not None:
            return None
        return next((left.what for left in record.cleanup or () if left.kind == OWN_END), None)

    def _tell_ends(self) -> None:
        """How those starts ended that no check has judged: of the user's own tests, or with ``cleanup`` left out."""
        judged = self._judge.said()
        for name, record in self._records.items():
            if name in self._planned and (f"{name}::cleanup" in judged or record.failure is not None):
                continue
            if record.failure is not None:
                self._notes.append(f"{ENDED}{name}: {record.failure.summary}")
                continue
            for left in record.cleanup or ():
                own = left.kind == OWN_END
                if not left.released:
                    self._notes.append(
                        f"{ENDED if own else NOT_RELEASED}{name}: {'' if own else f'{left.kind} '}{left.what}"
                    )
            if name not in self._planned:
                lost = lost_after(record.facts, record.ready_seconds or 0.0)
                self._notes += [f"{ENDED}{name}: {fact.value}: {fact.evidence.text}" for fact in lost]

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """What breaks off the start ``name``: artifacts that can't be written are a LaunchError; Ctrl-C and a time
        limit (which pytest raises as no Exception) are noted for the manifest."""
        try:
            yield
        except ArtifactsError as error:
            raise LaunchError(str(error)) from None
        except Exception:
            raise
        except BaseException:
            self._interrupted = name
            raise

    def _next_step(self, name: str) -> Restart | None:
        """The restart that follows the start ``name``; None: none does, or it has been made already."""
        names = list(self._steps)
        after = names[names.index(name) + 1 :]
        return self._steps[after[0]] if after and after[0] not in self._records else None

    def _keep_record(self, start: LiveStart) -> None:
        self._snapshots = start.snapshots or self._snapshots
        if start.record is not None:
            self._records[start.plan.name] = start.record

    def _extra_start(self, step: Restart | None) -> LiveStart:
        """A start beyond the profile's, for the user's own tests. Raises StartFailed, also for one that failed before:
        the engine is not started again for each test."""
        for record in self._records.values():
            if record.failure is not None:
                raise StartFailed(record)
        name = f"extra-{sum(1 for known in self._steps if known.startswith('extra-')) + 1}"
        self._steps[name] = replace(step, name=name) if step else None
        self._obtain(name)
        if self._records[name].failure is not None or self._current is None:
            raise StartFailed(self._records[name])
        return self._current

    def _latest(self) -> StartRecord:
        return list(self._records.values())[-1]

    def _is_over(self, start: LiveStart) -> bool:
        return start.record is None or start.record.cleanup is not None or start.record.failure is not None

    def _usual(self, population: str) -> Usual:
        """What a start usually takes: a baseline knows its own population; else the reference of this run."""
        known = self._judge.usual(population)
        reference = self._records.get(REFERENCE)
        if known is not None or reference is None:
            return known or Usual()
        return Usual(reference.phase_seconds(), reference.ready_seconds, REFERENCE)

    def _manifest(self) -> None:
        if self._tools is None:
            return
        failed: dict[str, JSON] = {n: r.failure.kind for n, r in self._records.items() if r.failure is not None}
        data: dict[str, JSON] = {
            "schema": 1,
            "profile": self.profile.name,
            "profile_file": str(self.profile.path),
            "run": self._run_id,
            "starts": list(self._records),
            "planned": list(self._planned),
            "failed": failed,
            "interrupted": self._interrupted,
            "verdicts": self._judge.said(),
        }
        try:
            self._tools.run.write_manifest(data)
        except ArtifactsError as error:
            if str(error) not in self._notes:
                self._notes.append(str(error))

    def _tell(self, text: str) -> None:
        if self._options.on_progress is not None:
            with self._telling:
                self._options.on_progress(self._redactor.text(text))


def _source(profile: Profile) -> bytes:
    """The profile's text; if it has gone since it was read, the copy stays empty: how it was understood is kept too."""
    try:
        return profile.path.read_bytes()
    except OSError:
        return b""
