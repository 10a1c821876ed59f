"""Live runs of the gate on the stand-in engine, and their replays."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers_launch import FAKE, until

from pytest_startup.checks.base import Verdict
from pytest_startup.gate import StartFailed
from pytest_startup.launch.base import LaunchError
from pytest_startup.live import LiveGate
from pytest_startup.options import Options
from pytest_startup.profile.load import load
from pytest_startup.profile.model import Profile
from pytest_startup.record import StartRecord
from pytest_startup.replay import ReplayGate
from pytest_startup.schema import FOLDER

TESTS = Path(__file__).parent

PROFILE = """\
schema: 1
name: stand-in
engine:
  kind: vllm
  version: 0.31.0
  model: models/dense
  args: [--max-model-len, "1024"]
  env: {{VLLM_CACHE_ROOT: cache, FAKE_ENGINE: "@{how}", FAKE_ENGINE_COUNT: "{count}"}}
launch:
  process: {{command: ["{python}", "{fake}", serve]}}
caches: {{compile-cache: {{path: cache, kind: compile}}}}
deadlines: {{ready: 20s, stop: 5s, release: 10s, request: 5s}}
restarts: [{{kind: process}}]
expect:
  throughput: {{concurrency: [2], output_tokens: 8, prompt_tokens: 8, repeats: 7, warmup: 1, tolerance: 50%}}
  quality: {{prompts: [{{prompt: "The capital of France is", contains: Paris}}]}}
  log: {{forbid: [Traceback], require: ["Application startup complete"]}}
"""


@dataclass
class Site:
    """A user's folder: a profile of the stand-in engine, ``how.json`` that says how it behaves, artifacts."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "profile.yaml"

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def write(
        self, *how: Mapping[str, Any], text: str = PROFILE, change: Callable[[str], str] = lambda text: text
    ) -> Profile:
        """The profile, and how each start behaves (the last ``how`` for all later ones)."""
        (self.folder / "how.json").write_text(json.dumps(list(how) or [{}]))
        filled = text.format(
            how=self.folder / "how.json", count=self.folder / "count", python=sys.executable, fake=FAKE
        )
        self.path.write_text(change(filled))
        return self.profile()

    def profile(self) -> Profile:
        return load(self.path, {**os.environ, **self.environ})

    def options(self, **more: Any) -> Options:
        return Options(
            root=self.folder,
            profiles=(self.path,),
            artifacts=self.artifacts,
            on_progress=self.told.append,
            **more,
        )

    @contextlib.contextmanager
    def gate(self, **more: Any) -> Iterator[LiveGate]:
        gate = LiveGate(self.profile(), self.options(**more))
        try:
            yield gate
        finally:
            gate.close()

    def replay(self, folder: Path) -> ReplayGate:
        return ReplayGate(self.profile(), self.options(replay=folder), folder)


@dataclass(frozen=True)
class Run:
    """What a run gave: a verdict (or what was raised instead) per item, the records, the folder."""

    verdicts: dict[str, Verdict | str]
    records: dict[str, StartRecord]
    folder: Path | None
    notes: tuple[str, ...] = ()

    def red(self) -> dict[str, str]:
        """Item → outcome, of everything that has not passed."""
        shown = {k: v if isinstance(v, str) else v.outcome.value for k, v in self.verdicts.items()}
        return {k: v for k, v in shown.items() if v != "passed"}


def judge_all(gate: LiveGate | ReplayGate) -> dict[str, Verdict | str]:
    """Every item in pytest's order, each asked for as an item asks."""
    out: dict[str, Verdict | str] = {}
    for start in gate.start_names():
        for check in gate.check_names():
            try:
                out[f"{start}::{check}"] = gate.verdict(start, check)
            except StartFailed as failed:
                out[f"{start}::{check}"] = f"start {failed.record.name} failed"
            except LaunchError as refused:
                out[f"{start}::{check}"] = f"refused: {refused}"
    return out


def live(site: Site, **more: Any) -> Run:
    with site.gate(**more) as gate:
        verdicts = judge_all(gate)
    return Run(verdicts, dict(gate.records()), gate.folder, tuple(gate.notes()))


def replayed(site: Site, folder: Path) -> Run:
    gate = site.replay(folder)
    verdicts = judge_all(gate)
    return Run(verdicts, dict(gate.records()), folder, tuple(gate.notes()))


def quick(ready: str = "20s") -> str:
    """The profile without the throughput workload, and with short limits."""
    lines = [line for line in PROFILE.splitlines() if "throughput" not in line]
    text = "\n".join(lines) + "\n"
    return text.replace("ready: 20s", f"ready: {ready}").replace("request: 5s", "request: 2s")


def schema_problems(run: Run) -> list[str]:
    """What is wrong with the records of a run by the shipped schema."""
    assert run.folder is not None
    assert sorted(f.parent.name for f in run.folder.glob("*/record.json")) == sorted(run.records)
    return schema_problems_of(run.folder)


def schema_problems_of(folder: Path) -> list[str]:
    import jsonschema

    validator = jsonschema.Draft202012Validator(json.loads((FOLDER / "record.schema.json").read_text()))
    files = sorted(folder.glob("*/record.json"))
    return [f"{f}: {e.json_path} {e.message}" for f in files for e in validator.iter_errors(json.loads(f.read_text()))]


class Outside:
    """pytest in a process of its own, as a user runs it."""

    def __init__(self, site: Site, *args: str) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_ADDOPTS")}
        environ["PYTHONPATH"] = os.pathsep.join([str(TESTS.parent), str(TESTS)])
        environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        command = [sys.executable, "-m", "pytest", "-p", "pytest_startup.plugin", "-p", "no:cacheprovider"]
        self.site = site
        self.process = subprocess.Popen(
            [*command, "--startup-profile", str(site.path), "--startup-artifacts", str(site.artifacts), *args],
            cwd=site.folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out

    def logged(self, text: bytes, start: str = "reference") -> None:
        def there() -> bool:
            logs = self.site.artifacts.glob(f"*/*/{start}/head/engine.log")
            return any(text in log.read_bytes() for log in logs)

        until(there, f"{text!r} in the log of {start}", 40.0)

    @property
    def folder(self) -> Path:
        (folder,) = self.site.artifacts.glob("*/*")
        return folder
