"""A launcher: starts the toy engine as a child process, keeps its log, and proves that it is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_startup.launch.base import Exit, LaunchError, NodeLog, StartPlan
from pytest_startup.profile.model import Profile
from pytest_startup.record import Evidence, Fact, Leftover

ENGINE = Path(__file__).with_name("toy_engine.py")


class ToyRunning:
    def __init__(self, plan: StartPlan) -> None:
        folder = plan.folder / "head"
        folder.mkdir(parents=True, exist_ok=True)
        self.logs: Sequence[NodeLog] = [NodeLog("head", folder / "engine.log", folder / "engine.log.tsv")]
        self.base_url = f"http://127.0.0.1:{plan.port}"
        self.stop_limit = plan.profile.deadlines.stop
        self.argv = [sys.executable, str(ENGINE), *plan.argv]
        self.launched_at = time.monotonic()
        with self.logs[0].path.open("wb") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def exited(self) -> Exit | None:
        code = self.process.poll()
        return None if code is None else Exit("head", code, "killed" if code < 0 else "exited", f"exit code {code}")

    def wait_exit(self, timeout: float) -> Exit | None:
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return self.exited()

    def facts(self) -> Sequence[Fact]:
        return [Fact("process.pid", self.process.pid, Evidence("process", "Popen", node="head"), node="head")]

    def stop(self) -> Sequence[Leftover]:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self.stop_limit)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return [Leftover("pid", str(self.process.pid), released=True, node="head")]


class ToyLauncher:
    def __init__(self) -> None:
        self.started: list[ToyRunning] = []

    def preflight(self, profile: Profile) -> Sequence[str]:
        return [] if ENGINE.exists() else [f"{ENGINE} is not there"]

    def start(self, plan: StartPlan) -> ToyRunning:
        try:
            self.started.append(ToyRunning(plan))
        except OSError as error:
            raise LaunchError(f"the toy engine could not be started: {error}") from error
        return self.started[-1]

    def close(self) -> Sequence[Leftover]:
        return [left for running in self.started for left in running.stop() if not left.released]
