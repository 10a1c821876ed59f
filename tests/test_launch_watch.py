"""What is sampled of an engine's processes: memory, /dev/shm, and those that ended while it ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers_launch import until

from pytest_startup.launch import identity, memory, stopping
from pytest_startup.launch.exits import told
from pytest_startup.launch.process.watch import Watch
from pytest_startup.launch.watch_facts import watch_facts

pytestmark = pytest.mark.usefixtures("isolated")


def test_peak_counts_shared_pages_once_and_only_grows():
    me = [identity.look(os.getpid())]
    held = b"x" * (64 * 2**20)
    first = memory.sample(me, 1.0, None)
    assert first.size > len(held)
    assert first.measure == "pss"
    del held
    assert memory.sample(me, 2.0, first) is first
    low = memory.Peak(1, 0.0, 1, "pss")
    assert memory.sample(me, 3.0, low).seconds == 3.0


def test_peak_without_pss_is_an_upper_bound(monkeypatch):
    monkeypatch.setattr(memory, "proportional", lambda _pid: None)
    peak = memory.sample([identity.look(os.getpid())], 1.0, None)
    assert peak.measure == "rss"
    assert peak.size > 2**20


def test_shm_is_attributed_to_who_has_it_open():
    name = f"test_launch_{os.getpid()}"
    path = Path(memory.SHM, name)
    path.write_bytes(b"x")
    try:
        assert memory.shm_held([os.getpid()], frozenset([name])) == frozenset()
        with path.open():
            assert memory.shm_held([os.getpid()], frozenset([name, "other"])) == {name}
        assert stopping.remove_shm([name]) == ([name], [])
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)
    assert stopping.remove_shm([name, "../etc/passwd", ""]) == ([], [])


@pytest.mark.parametrize("look", [Watch.look, Watch.pause])
def test_a_long_lived_process_that_ends_is_lost(sleeper, look):
    """Also when it is the stop that looks: it was gone before anybody was told to stop."""
    changes = []
    watch = Watch(identity.identify(os.getpid()), time.monotonic(), frozenset(), lambda: changes.append(1))
    watch.look()
    assert changes
    assert identity.identify(sleeper.pid) in watch.known
    watch._launched_at -= 60
    watch.look()
    assert watch.lost == []
    sleeper.kill()
    sleeper.wait()
    look(watch)
    ((pid, name, seconds, status),) = watch.lost
    assert status is None  # it is no rank: nothing is held of it
    assert pid == sleeper.pid
    assert "time.sleep(600)" in name
    assert seconds > 60


@pytest.mark.parametrize(("end", "text"), [("kill", "was killed by SIGKILL"), ("exit", "ended with exit code 3")])
def test_how_a_rank_was_lost_is_told(end, text):
    code = "import sys; print(flush=True); sys.stdin.read(); sys.exit(3)"
    argv = ["VLLM::Worker_TP1", "-c", code]
    rank = subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        rank.stdout.readline()
        watch = Watch(identity.identify(os.getpid()), time.monotonic(), frozenset(), lambda: None)
        watch.look()
        watch._launched_at -= 60
        rank.kill() if end == "kill" else rank.stdin.close()
        os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
        watch.pause()
    finally:
        rank.kill()
        rank.wait()
        rank.stdout.close()
        rank.stdin.close()
    (row,) = watch.lost
    assert row[1].startswith("VLLM::Worker_TP1")
    assert told(row[3]) == text
    assert watch._handles == {}
    (fact,) = watch_facts("head", None, watch.lost, (0, ""), str)
    assert fact.evidence.text == f"pid {rank.pid} {text} while the engine ran (helpers do that, ranks must not)"


def test_the_end_of_a_rank_is_not_found_late_because_samples_cost_much(monkeypatch):
    monkeypatch.setattr("pytest_startup.launch.process.watch._SHARE", 1e-9)  # the second sample is due in years
    argv = ["VLLM::Worker_TP1", "-c", "import sys; print(flush=True); sys.stdin.read()"]
    rank = subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    rank.stdout.readline()
    watch = Watch(identity.identify(os.getpid()), time.monotonic() - 60, frozenset(), lambda: None)
    try:
        watch.look()
        watch._seen = {one: (0.0, name) for one, (_, name) in watch._seen.items()}  # it has run for a minute
        watch.start()
        until(lambda: watch.peak is not None, "a sample")
        rank.kill()
        until(lambda: watch.lost, "the end of the rank")
        assert (watch.lost[0][0], watch.lost[0][3]) == (rank.pid, signal.SIGKILL)
        assert watch._noticed == set()
    finally:
        watch.pause()
        rank.kill()
        rank.wait()
        rank.stdout.close()
        rank.stdin.close()


def test_ended_helpers_do_not_hide_a_rank_that_ends():
    """A build on the spot starts hundreds of them."""
    watch = Watch(identity.identify(os.getpid()), time.monotonic() - 60, frozenset(), lambda: None)
    watch.lost = [[n, "ninja", 1.0, None] for n in range(1, 51)]
    argv = ["VLLM::Worker_TP1", "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.PIPE) as rank:
        until(lambda: identity.command_line(rank.pid).startswith("VLLM::"), "its title")
        watch.look()
        watch._launched_at -= 60  # a minute later
        watch.look()
        rank.kill()
    watch.look()
    watch.pause()
    assert [row[0] for row in watch.lost[50:]] == [rank.pid]
