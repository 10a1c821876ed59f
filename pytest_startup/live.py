"""The live gate: makes a profile's starts in order, each when its first item asks for it, and judges them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup import assemble
from pytest_startup.artifacts import RunFolder, run_folder, utc_now
from pytest_startup.clean import sweep
from pytest_startup.gate import SELF_JUDGED, StartFailed
from pytest_startup.judging import Judging
from pytest_startup.launch.base import LaunchError, StartPlan
from pytest_startup.launch.choose import choose_launcher
from pytest_startup.launch.pagecache import drop_page_cache
from pytest_startup.launch.ports import free_port
from pytest_startup.launch.wiping import wipe
from pytest_startup.observe.http import Http
from pytest_startup.profile.model import Restart
from pytest_startup.profile.resolve import resolved_json
from pytest_startup.redact import Redactor
from pytest_startup.start import LiveStart, Tools, served_name
from pytest_startup.waiting import Usual
from pytest_startup.workload.completions import Target, ask

if TYPE_CHECKING:
    from pytest_startup.baseline import Baseline
    from pytest_startup.checks.base import Verdict
    from pytest_startup.launch.base import Launcher, Running
    from pytest_startup.observe.caches import Snapshot
    from pytest_startup.options import Options
    from pytest_startup.profile.model import Profile, Prompt
    from pytest_startup.record import Completion, StartRecord

REFERENCE = "reference"


class LiveGate:
    """See ``gate.Gate``. Nothing is touched before the first record is asked for."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile = profile
        self._options = options
        self._judging = Judging(profile, options)
        self._steps: dict[str, Restart | None] = {REFERENCE: None, **{r.name: r for r in profile.restarts}}
        self._run_id = uuid.uuid4().hex[:12]
        self._run: RunFolder | None = None
        self._launcher: Launcher | None = None
        self._records: dict[str, StartRecord] = {}
        self._current: LiveStart | None = None
        self._snapshots: Mapping[str, Snapshot] = {}
        self._extra = 0
        self._closed = False
        self._notes: list[str] = []

    def start_names(self) -> Sequence[str]:
        return [name for name in self._steps if not name.startswith("extra-")]

    def check_names(self) -> Sequence[str]:
        return self._judging.check_names()

    def records(self) -> Mapping[str, StartRecord]:
        return dict(self._records)

    @property
    def folder(self) -> Path | None:
        return None if self._run is None else self._run.path

    @property
    def baseline(self) -> Baseline | None:
        return self._judging.baseline

    def preflight(self) -> Sequence[str]:
        from pytest_startup.preflight import problems

        return problems(self.profile, self._launch())

    def record(self, start: str) -> StartRecord:
        for name in self._steps:
            if name not in self._records:
                self._make(name)
            if self._records[name].failure is not None:
                raise StartFailed(self._records[name])
            if name == start:
                break
        return self._records[start]

    def verdict(self, start: str, check: str) -> Verdict:
        try:
            record = self.record(start)
        except StartFailed as failed:
            if failed.record.name != start or check not in SELF_JUDGED:
                raise
            record = failed.record
        if check == "cleanup" and not self._options.keep:
            record = self._finish_current(start) or record
        reference = None if start == REFERENCE else self._records[REFERENCE]
        return self._judging.judge(check, reference, record)

    def engine(self) -> Running:
        current = self._current
        if current is None or current.running is None or current.running.exited() is not None or self._is_over(current):
            current = self._extra_start(None)
        if current.running is None:
            raise LaunchError("the engine could not be started")
        return current.running

    def complete(self, prompt: Prompt) -> Completion:
        running = self.engine()
        with Http(running.base_url) as http:
            endpoints, model = self._judging.dialect.endpoints, served_name(self.profile)
            limit = self.profile.deadlines.request
            return ask(Target(http, endpoints, model, running.launched_at, limit), prompt, "user")

    def notes(self) -> Sequence[str]:
        return list(self._notes)

    def restart(self, kind: str | None = None) -> tuple[StartRecord, StartRecord]:
        self.engine()
        before = self._latest()
        step = replace(self.profile.restarts[0], drop_page_cache=False, wipe=()) if self.profile.restarts else None
        wanted = kind or (step.kind if step else "process")
        self._extra_start(replace(step, kind=wanted) if step else Restart("restart", wanted))
        return before, self._latest()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        current = self._current
        if current is not None and current.running is not None and not self._is_over(current):
            if self._options.keep and current.running.exited() is None and self._keep(current.running):
                self._tell(f"{current.plan.name}: left running at {current.running.base_url} as asked")
            else:
                self._finish_current(current.plan.name)
        if self._launcher is not None:
            self._notes += [f"not released: {left.kind} {left.what}" for left in self._launcher.close()]
        if self._options.baseline == "propose":
            whole = [r for name, r in self._records.items() if name in self.start_names()]
            self._notes += self._judging.propose(whole, os.environ)
        self._manifest()

    def _keep(self, running: Running) -> bool:
        keep = getattr(running, "keep", None)
        return bool(keep is not None and keep())

    def _launch(self) -> Launcher:
        if self._launcher is None:
            self._launcher = choose_launcher(self.profile, self._options, Redactor(self.profile.secrets), self._tell)
        return self._launcher

    def _tools(self) -> Tools:
        if self._run is None:
            self._notes += sweep()
            reasons = self.preflight()
            if reasons:
                raise LaunchError("; ".join(reasons))
            root = self._options.artifacts or self._options.root / ".startup"
            path = run_folder(root, self.profile.name, utc_now())
            self._run = RunFolder(path, Redactor(self.profile.secrets))
            self._run.write_profile(self.profile.path.read_bytes(), resolved_json(self.profile))
            self._manifest()
        return Tools(self.profile, self._judging.dialect, self._launch(), self._run, self._tell)

    def _make(self, name: str) -> StartRecord:
        """Make one start, whatever comes of it. Raises LaunchError when this host should not be touched at all."""
        tools, step = self._tools(), self._steps[name]
        if self._current is not None:
            self._finish_current(self._current.plan.name)
            time.sleep(self.profile.settle)
        notes = self._prepare(step)
        change = step.change if step else None
        profile = self.profile
        port, lock = (
            (profile.launch.port, None) if profile.launch.port else free_port(profile.launch.host, self._run_id)
        )
        try:
            command = profile.launch.process.command if profile.launch.process else ()
            args = [*profile.engine.args, *(change.args if change else ())]
            plan = StartPlan(
                profile=profile,
                name=name,
                kind=step.kind if step else self._first_kind(),
                folder=tools.run.start_folder(name),
                run_id=self._run_id,
                port=port,
                argv=(*command, *tools.dialect.serve_args(profile.engine.model, profile.launch.host, port, args)),
                env=dict(change.env) if change else {},
                fresh=step is None or step.kind != "same-container",
            )
            population = step.population if step else REFERENCE
            self._current = LiveStart(tools, plan, population, self._usual(population), notes)
            record = self._current.run(self._snapshots)
        finally:
            if lock is not None:
                lock.release()
        self._snapshots = self._current.snapshots or self._snapshots
        self._records[name] = record
        self._manifest()
        return record

    def _prepare(self, step: Restart | None) -> list[str]:
        """What a restart step asks for before the launch; what of it could not be done is noted."""
        notes: list[str] = []
        if step is None:
            return notes
        for cache in self.profile.caches:
            if cache.name in step.wipe:
                notes.append(wipe(cache, (self.profile.path, *self.profile.launch.checkpoint)))
        if step.drop_page_cache:
            notes.append(drop_page_cache(self.profile.launch.checkpoint).text)
        for note in notes:
            self._tell(f"{step.name}: {note}")
        return notes

    def _finish_current(self, name: str) -> StartRecord | None:
        """Stop the start ``name`` if it is the current one; its record is then complete."""
        if self._current is None or self._current.plan.name != name:
            return self._records.get(name)
        self._records[name] = self._current.finish()
        self._snapshots = self._current.snapshots or self._snapshots
        return self._records[name]

    def _extra_start(self, step: Restart | None) -> LiveStart:
        """A start beyond the profile's, for the user's own tests. Raises StartFailed."""
        self._extra += 1
        name = f"extra-{self._extra}"
        self._steps[name] = replace(step, name=name) if step else None
        record = self._make(name)
        if record.failure is not None or self._current is None:
            raise StartFailed(record)
        return self._current

    def _latest(self) -> StartRecord:
        return list(self._records.values())[-1]

    def _is_over(self, start: LiveStart) -> bool:
        return start.record is not None and (start.record.cleanup is not None or start.record.failure is not None)

    def _first_kind(self) -> str:
        return "process" if self.profile.launch.container is None else "fresh-container"

    def _usual(self, population: str) -> Usual:
        """What a start usually takes: the reference of this run; a baseline knows its own population better."""
        known = self._judging.usual(population)
        if known is not None:
            return known
        reference = self._records.get(REFERENCE)
        if reference is None:
            return Usual({})
        return Usual(dict(assemble.usual_phases(reference)), reference.ready_seconds)

    def _manifest(self) -> None:
        if self._run is not None:
            self._run.write_manifest(
                {
                    "schema": 1,
                    "profile": self.profile.name,
                    "profile_file": str(self.profile.path),
                    "run": self._run_id,
                    "starts": list(self._records),
                    "planned": list(self.start_names()),
                    "verdicts": self._judging.said(),
                }
            )

    def _tell(self, text: str) -> None:
        if self._options.on_progress is not None:
            self._options.on_progress(text)
