"""A scripted gate: it answers with given records and verdicts and starts nothing, to test the pytest side.

``use(pytester, …)`` writes a profile and a conftest file that answers ``pytest_startup_gate`` with such a gate. What
the gate did is written to ``calls.txt``, one line per call, so that a test sees it from outside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml  # noqa: F401 - loaded a second time its errors would be other classes than those its C part raises

import pytest_startup.activation  # loaded once here, not again in every run inside this process
import pytest_startup.profile.load
import pytest_startup.report.writers  # noqa: F401
from pytest_startup.checks.base import Finding, Outcome, Verdict
from pytest_startup.gate import StartFailed
from pytest_startup.launch.base import LaunchError
from pytest_startup.record import (
    Completion,
    Evidence,
    Fact,
    Failure,
    PhaseSpan,
    StartRecord,
    ThroughputSample,
)

TESTS = Path(__file__).parent
SEEN = Evidence("log", "engine/engine.log", "GPU KV cache size: 4,096 tokens", line=7)

PROFILE = """\
schema: 1
name: demo
engine:
  kind: vllm
  model: some/model
launch:
  process: {command: [vllm, serve]}
restarts:
  - {kind: process, times: 2}
expect:
  kv: {tokens: 4096}
"""

CONFTEST = """\
import json, pathlib
import pytest
from helpers_gate import Scripted

@pytest.hookimpl(tryfirst=True)
def pytest_startup_gate(profile, options):
    script = json.loads((pathlib.Path(__file__).parent / "script.json").read_text())
    return Scripted(profile, options, script)
"""


def use(pytester: pytest.Pytester, script: Mapping[str, Any] | None = None, profile: str = PROFILE) -> None:
    """Prepare a folder with ``profile.yaml`` whose gate follows ``script``.

    ``script``: ``checks`` (names), ``verdicts`` ("restart-1::kv" → failed | not exercised | not observable | crash),
    ``fails`` (name of the start that fails), ``refuses`` (name of a start that can't be launched), ``breaks`` (name of
    the start whose launch raises), ``progress`` (lines that each start reports), ``preflight`` (reasons), ``notes``,
    ``sleep`` (seconds that each start takes).
    """
    pytester.makefile(".yaml", profile=profile)
    pytester.makeconftest(CONFTEST)
    pytester.path.joinpath("script.json").write_text(json.dumps(script or {}))


def run(
    pytester: pytest.Pytester,
    *args: str,
    env: Mapping[str, str] | None = None,
    profile: str | None = "profile.yaml",
    outside: bool = False,
) -> pytest.RunResult:
    """Run pytest with the plugin; ``outside``: in a process of its own, as xdist, timeouts and signals need it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("PYTEST_", "GITHUB_")) or name in ("CI", "BUILD_NUMBER"):
                patch.delenv(name)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), str(TESTS)]))
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        given = ["--startup-profile", profile] if profile else []
        start = pytester.runpytest_subprocess if outside else pytester.runpytest_inprocess
        return start("-p", "pytest_startup.plugin", *given, *args)


def calls(pytester: pytest.Pytester) -> list[str]:
    path = pytester.path / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


class Scripted:
    """See ``use``."""

    def __init__(self, profile: Any, options: Any, script: Mapping[str, Any]) -> None:
        self.profile = profile
        self.options = options
        self.script = script
        self.baseline = None
        self._records: dict[str, StartRecord] = {}
        self._log = profile.path.parent / "calls.txt"
        self.extra = 0

    def note(self, text: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{text}\n")

    @property
    def folder(self) -> Path | None:
        return self.profile.path.parent / ".startup" / "demo" if self._records else None

    def start_names(self) -> Sequence[str]:
        return ["reference", *(r.name for r in self.profile.restarts)]

    def check_names(self) -> Sequence[str]:
        return [*self.script.get("checks", ["ready", "kv", "throughput"]), *self.options.extensions.checks]

    def records(self) -> Mapping[str, StartRecord]:
        return dict(self._records)

    def record(self, start: str) -> StartRecord:
        for name in self.start_names():
            if name not in self._records:
                self._records[name] = self._start(name)
            record = self._records[name]
            if record.failure is not None:
                raise StartFailed(record)
            if name == start:
                break
        return self._records[start]

    def _start(self, name: str) -> StartRecord:
        if self.script.get("refuses") == name:
            raise LaunchError("port 8888 is taken by pid 4711 (nginx), which is not ours")
        self.note(f"start {name}")
        if self.script.get("breaks") == name:
            raise RuntimeError("a defect while starting")
        for line in self.script.get("progress", ()):
            self.options.on_progress(f"{self.profile.name} {name}: {line}")
        if self.script.get("sleep"):
            import time

            time.sleep(self.script["sleep"])
        fails = self.script.get("fails") == name
        return start_record(name, failure=FAILURE if fails else None)

    def verdict(self, start: str, check: str) -> Verdict:
        try:
            record = self.record(start)
        except StartFailed as failed:
            if failed.record.name != start or check not in ("ready", "phases", "cleanup", "identity", "log"):
                raise
            record = failed.record
            if check == "ready":
                return red("ready", Outcome.FAILED, "the engine did not get ready")
        added = self.options.extensions.checks.get(check)
        if added:
            return added(self.profile, self._records["reference"], record, None)
        wanted = self.script.get("verdicts", {}).get(f"{start}::{check}", "passed")
        if wanted == "crash":
            raise RuntimeError("the gate itself is broken")
        if wanted == "passed":
            return Verdict(check, Outcome.PASSED, evidence=(SEEN,), numbers={f"{check} number": 42})
        return red(check, Outcome(wanted), f"{check} is not as it was")

    def preflight(self) -> Sequence[str]:
        self.note("preflight")
        return self.script.get("preflight", [])

    def notes(self) -> Sequence[str]:
        return self.script.get("notes", [])

    def engine(self) -> Any:
        self.record(self.start_names()[-1])
        return Running(self.profile.path.parent)

    def complete(self, prompt: Any) -> Completion:
        self.engine()
        return Completion(
            "ready", prompt.prompt, 200, text="4, of course", finish_reason="stop", prompt_tokens=3, completion_tokens=3
        )

    def restart(self, _kind: str | None = None) -> tuple[StartRecord, StartRecord]:
        before = self.record(self.start_names()[-1])
        self.extra += 1
        name = f"extra-{self.extra}"
        self._records[name] = self._start(name)
        return before, self._records[name]

    def close(self) -> None:
        self.note("close")


class Running:
    base_url = "http://127.0.0.1:8888"

    def __init__(self, folder: Path) -> None:
        from pytest_startup.launch.base import NodeLog

        self.logs = [NodeLog("head", folder / "engine.log", folder / "engine.tsv")]


FAILURE = Failure(
    "preparation",
    "out-of-device-memory",
    "out of device memory",
    cause=Evidence("log", "head/engine.log", "torch.OutOfMemoryError: CUDA out of memory", line=209, rank="TP0"),
    rank="TP0",
    after_seconds=41.0,
    helps=("another MoE backend, more ranks",),
    no_help=("kv.tokens, max-model-len: no KV cache existed yet",),
)


def red(check: str, outcome: Outcome, summary: str) -> Verdict:
    finding = Finding(
        summary,
        "4,096 tokens",
        ("TP0: 4,096 tokens", "TP1: 2,048 tokens"),
        (Evidence("log", "head/engine.log", "GPU KV cache size: 2,048 tokens", line=52, rank="TP1"),),
        ("give it the memory that it had",),
        expected_from="expect.kv.tokens",
    )
    return Verdict(check, outcome, (finding,), numbers={f"{check} number": 41})


def start_record(name: str, failure: Failure | None = None, **rest: Any) -> StartRecord:
    values: dict[str, Any] = {
        "profile": "demo",
        "name": name,
        "kind": "process",
        "population": "process",
        "started_at": "2026-11-29T15:00:00Z",
        "ready": failure is None,
        "ready_seconds": None if failure else 12.5,
        "failure": failure,
        "phases": (
            PhaseSpan("weights", rank="TP0", seconds=3.0),
            PhaseSpan("weights", rank="TP1", seconds=4.5),
            PhaseSpan("graph-capture", seconds=None),
        ),
        "facts": ()
        if failure
        else (
            Fact("engine.version", "0.31.0", Evidence("log", "head/engine.log", "vLLM 0.31.0", line=1)),
            Fact("kv.tokens", 4096, SEEN, unit="tokens", rank="TP0"),
        ),
        "throughput": ()
        if failure
        else (ThroughputSample(8, 0, 8, 0, 800, 10.0), ThroughputSample(8, 1, 8, 0, 820, 10.0)),
    }
    return StartRecord(**{**values, **rest})
