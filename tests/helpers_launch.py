"""Starts of the stand-in engine through the process launcher, and waiting for conditions with a limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_startup.launch import ports
from pytest_startup.launch.base import StartPlan
from pytest_startup.launch.identity import Identity, Process
from pytest_startup.profile.model import Deadlines, Engine, Launch, ProcessLaunch, Profile

FAKE = str(Path(__file__).with_name("fake_engine.py"))
LIMIT = 20.0


def until(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """The first true value of ``condition``; fails after ``limit`` seconds."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {limit} s: {what}"
        time.sleep(0.01)


def isolate(tmp_path: Path, monkeypatch: Any) -> None:
    """A registry and a lock folder of the test's own."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("PYTEST_STARTUP_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For ``usefixtures``: no test of a module meets another run's registry or locks."""
    isolate(tmp_path, monkeypatch)


def profile(folder: Path, argv: tuple[str, ...] = (), **changes: Any) -> Profile:
    """``stop`` is short: most engines here end at once. ``changes``: deadlines, env, launch members, secrets."""
    deadlines = changes.pop("deadlines", Deadlines(stop=5.0, release=10.0))
    env = changes.pop("env", {})
    secrets = frozenset(changes.pop("secrets", ()))
    pass_env = changes.pop("pass_env", ())
    command = argv or (sys.executable, FAKE, "serve")
    process = ProcessLaunch(command, changes.pop("cwd", folder), tuple(pass_env))
    return Profile(
        path=folder / "fake.yaml",
        name="fake",
        engine=Engine("vllm", "models/dense", env=env),
        launch=Launch(process=process, **changes),
        deadlines=deadlines,
        origin={"launch.process.command": 7, "launch.port": 9},
        secrets=secrets,
    )


def plan(
    folder: Path, argv: tuple[str, ...] | None = None, how: Mapping[str, Any] | None = None, **changes: Any
) -> Any:
    """A plan of the stand-in engine behaving as ``how``, or of any ``argv``."""
    name = changes.pop("name", "reference")
    run_id = changes.pop("run_id", f"test{os.getpid()}")
    port = changes.pop("plan_port", None)
    if port is None:
        port, lock = ports.free_port("127.0.0.1", run_id)
        lock.release()
    env = {"FAKE_ENGINE": json.dumps(how)} if how is not None else {}
    made = profile(folder, argv or (), **changes)
    full = argv or (*made.launch.process.command, "models/dense", "--host", "127.0.0.1", "--port", str(port))
    return StartPlan(made, name, "process", folder / "starts" / name, run_id, port, tuple(full), env)


def log_of(running: Any) -> str:
    return running.logs[0].path.read_text(encoding="utf-8", errors="replace")


def logged(running: Any, text: str, limit: float = LIMIT) -> None:
    until(lambda: text in log_of(running) or running.exited(), f"{text!r} in the log", limit)
    assert text in log_of(running)


def gone(pid: int) -> bool:
    """No such process, or only its corpse."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def process_row(pid: int, parent: int, session: int = 1, start: int = 1, state: str = "S") -> Process:
    """A process as the kernel's table has it."""
    return Process(Identity(pid, start), parent, session, session, state, f"p{pid}")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()
