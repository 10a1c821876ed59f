"""The container engine itself dies, hangs or is restarted: told apart from the end of the engine in the container."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from helpers_docker import TestEngine, container_plan, container_profile, need_engine, wait_gone
from helpers_launch import isolate, log_of, logged

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.container import watch as container_watch
from pytest_startup.launch.container.launcher import ContainerLauncher

READY = "Application startup complete."
#: Points of a start at which the daemon is killed: a line of the log, and how the stand-in engine behaves.
POINTS = {
    "loading": ("Loading weights took", {"hang": "Loading weights took"}),
    "compiling": ("Compiling a graph", {"hang": "Compiling a graph"}),
    "serving": (READY, {}),
}


BOTH = pytest.mark.parametrize("breakable", ["", "--live-restore"], ids=["plain", "live-restore"], indirect=True)


@pytest.fixture
def breakable(request, tmp_path, monkeypatch):
    """An engine of the test's own, that may be broken."""
    need_engine()
    isolate(tmp_path, monkeypatch)
    engine = TestEngine(EXTRA=getattr(request, "param", "")).start()
    try:
        _ = engine.image
        with engine.inside():
            yield engine
    finally:
        engine.stop()


@BOTH
@pytest.mark.parametrize("at", POINTS)
def test_daemon_killed_and_started_again(breakable, tmp_path, at):
    text, how = POINTS[at]
    launcher = ContainerLauncher()
    profile = container_profile(breakable, tmp_path)
    running = launcher.start(container_plan(profile, how))
    logged(running, text)
    before = log_of(running)
    lives = "--live-restore" in breakable._options["EXTRA"]
    breakable.kill()
    breakable.start()
    ended = running.wait_exit(3.0 if lives else 20.0)
    if lives:
        assert ended is None, ended
        away = [fact for fact in running.facts() if fact.name == "container.engine_away"]
        assert len(away) == 1
        assert "the container ran on" in away[0].evidence.text
    else:
        assert ended.reason == "daemon-lost"
        assert "the container engine itself went away" in ended.text
        assert not any("ran on" in one.evidence.text for one in running.facts())
        # a daemon that starts again stops what it finds: by TERM, then by KILL
        assert re.search(r"did not survive it \(no live-restore\): exit code (0|143|137)$", ended.text), ended.text
    left = running.stop()
    assert all(one.released for one in left), left
    after = log_of(running)
    assert after.startswith(before)
    assert after.count(text) == before.count(text)  # nothing is doubled by the second reading
    assert launcher.close() == []
    assert breakable.labelled() == []


def test_a_daemon_that_stays_away(breakable, tmp_path, monkeypatch):
    monkeypatch.setattr(container_watch.Watcher.__init__, "__defaults__", (None, 2.0))
    launcher = ContainerLauncher()
    profile = container_profile(breakable, tmp_path)
    running = launcher.start(container_plan(profile))
    logged(running, READY)
    breakable.kill()
    begin = time.monotonic()
    ended = running.wait_exit(20)
    assert 1.5 < time.monotonic() - begin < 8
    assert ended.reason == "daemon-lost"
    assert "does not run: Connection refused" in ended.text
    assert f"the engine's process (pid {running._launched.boot.pid}) runs on" in ended.text
    breakable.start()  # so that the stop can prove something
    assert all(one.released for one in running.stop())
    assert launcher.close() == []


def test_a_daemon_that_hangs(breakable, tmp_path, monkeypatch):
    """Every call is bounded by us: a stopped daemon accepts connections and never answers."""
    monkeypatch.setattr(container_watch.Watcher.__init__, "__defaults__", (None, 3.0))
    launcher = ContainerLauncher()
    running = launcher.start(container_plan(container_profile(breakable, tmp_path)))
    logged(running, READY)
    pid = breakable.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        ended = running.wait_exit(30)
        took = time.monotonic() - begin
        assert ended.reason == "daemon-lost"
        assert "did not answer (inspect) within 5 s" in ended.text or "does not answer (inspect)" in ended.text
        assert took < 20
    finally:
        os.kill(pid, signal.SIGCONT)
    assert all(one.released for one in running.stop())
    assert launcher.close() == []


def test_a_daemon_that_hangs_before_it_is_first_asked(breakable, tmp_path):
    """The preflight ends with what is wrong, and so does the launcher: nothing of ours waits for the daemon."""
    launcher = ContainerLauncher()
    profile = container_profile(breakable, tmp_path)
    pid = breakable.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        (reason,) = launcher.preflight(profile)
        assert launcher.close() == []
        assert time.monotonic() - begin < 60
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "did not answer (ping) within 5 s" in reason or "does not answer (ping): ReadTimeout" in reason, reason


def test_a_daemon_that_is_shut_down_in_order(breakable, tmp_path):
    """It ends its containers first; the end of the engine is then not the engine's."""
    launcher = ContainerLauncher()
    running = launcher.start(container_plan(container_profile(breakable, tmp_path)))
    logged(running, READY)
    pid = breakable.pid
    os.kill(pid, signal.SIGTERM)
    ended = running.wait_exit(20)
    assert ended.reason == "daemon-lost"
    # It closes its socket first, or ends the container first.
    ways = r"was shut down, and container pytest-startup-fake-|the engine's process \(pid \d+\) ended$"
    assert re.search(ways, ended.text), ended.text
    wait_gone(pid)
    breakable.start()
    assert all(one.released for one in running.stop())
    assert "Application shutdown complete." in log_of(running)
    assert launcher.close() == []


def test_a_gpu_request_without_a_gpu_runtime(breakable, tmp_path):
    launcher = ContainerLauncher()
    with pytest.raises(LaunchError) as error:
        launcher.start(container_plan(container_profile(breakable, tmp_path, gpus=("all",))))
    text = str(error.value)
    assert text.startswith(
        "reference is not started: fake.yaml:11: the container asks for GPUs (all), and the daemon has "
    )
    assert "install the NVIDIA Container Toolkit" in text
    assert 'the daemon said: could not select device driver "" with capabilities: [[gpu]]' in text
    assert launcher.close() == []
    assert breakable.labelled() == []
