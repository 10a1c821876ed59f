"""Stopping: TERM once, KILL until all is gone, and proof of it; within its time, whatever the processes do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_launch import gone, process_row, until

from pytest_startup.launch import identity, memory, stopping

pytestmark = pytest.mark.usefixtures("isolated")


def test_shm_that_somebody_has_open_stays():
    path = Path(memory.SHM, f"test_launch_held_{os.getpid()}")
    code = f"f = open({str(path)!r}, 'wb'); print(flush=True); import time; time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        assert stopping.remove_shm([path.name]) == ([], [path.name])
        assert path.exists()
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert stopping.remove_shm([path.name]) == ([path.name], [])


class Clock:
    """Processes that are not there: what Ending would signal, and when."""

    def __init__(self, monkeypatch, living):
        self.now = 1000.0
        self.sent = []
        self.living = living
        monkeypatch.setattr(stopping.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(stopping, "send", lambda who, number: self.sent.append((self.now, who.pid, number)))

    def step(self, ending, at):
        self.now = 1000.0 + at
        return ending.step()


def test_term_once_then_kill_until_gone_then_give_up(monkeypatch):
    far = 3_000_000
    clock = Clock(monkeypatch, [process_row(far, 1), process_row(far + 1, far)])
    ending = stopping.Ending(lambda: clock.living, None, 5.0, 10.0)
    assert not clock.step(ending, 0)
    assert not clock.step(ending, 4.9)
    assert [(pid, s) for _, pid, s in clock.sent] == [(far, signal.SIGTERM), (far + 1, signal.SIGTERM)]
    assert not ending.killed
    assert not clock.step(ending, 5.0)
    assert not clock.step(ending, 14.9)
    assert [s for _, _, s in clock.sent[2:]] == [signal.SIGKILL] * 4
    assert clock.step(ending, 15.0)
    assert [p.pid for p in ending.left] == [far, far + 1]
    assert ending.killed


def test_over_at_once_when_nothing_lives(monkeypatch):
    clock = Clock(monkeypatch, [])
    ending = stopping.Ending(lambda: clock.living, None, 5.0, 10.0)
    assert clock.step(ending, 0)
    assert (ending.left, ending.killed, clock.sent) == ((), False, [])


def test_hurry_only_shortens(monkeypatch):
    clock = Clock(monkeypatch, [process_row(3_000_000, 1)])
    ending = stopping.Ending(lambda: clock.living, None, 5.0, 10.0)
    ending.hurry(60.0)
    ending.hurry(1.0)
    clock.step(ending, 0)
    clock.step(ending, 1.0)
    assert [s for _, _, s in clock.sent] == [signal.SIGTERM, signal.SIGKILL]


def test_ending_real_processes_by_group():
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); print(flush=True); time.sleep(600)"
    leader = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    try:
        leader.stdout.readline()
        main = identity.identify(leader.pid)
        mine = [main, *(p.identity for p in identity.descendants([leader.pid], identity.table()))]
        assert len(mine) == 2

        def living():
            leader.poll()
            return [p for i in mine if identity.alive(i) and (p := identity.look(i.pid))]

        assert stopping.Ending(living, main, 10.0, 10.0).run() == ()
        assert leader.returncode == -signal.SIGTERM
        until(lambda: all(gone(i.pid) for i in mine), "both gone")
    finally:
        leader.kill()
        leader.wait()
        leader.stdout.close()
