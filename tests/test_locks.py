"""Kernel locks per GPU and port: one holder at a time on the host, released with its death, and named meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers_launch import LIMIT, plan

from pytest_startup.launch import locks, ports
from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.process.launcher import ProcessLauncher

pytestmark = pytest.mark.usefixtures("isolated")

ROOT = str(Path(__file__).parents[1])

HOLDER = f"""
import sys
sys.path.insert(0, {ROOT!r})
from pytest_startup.launch import locks
got = locks.take([("gpu", n) for n in sys.argv[1].split(",")], "run other")
print("held", flush=True)
sys.stdin.read()
for lock in got:
    lock.release()
"""


@pytest.fixture
def other():
    """A process that holds the lock of GPU-a until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "GPU-a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_taken_names_the_holder(other):
    with pytest.raises(locks.LockTaken) as raised:
        locks.take([("gpu", "GPU-a")], "run mine")
    text = str(raised.value)
    assert text.startswith(f"gpu GPU-a is still in use: run other (pid {other.pid}: {sys.executable} -c ")
    assert " since 20" in text
    assert not locks.is_free("gpu", "GPU-a")
    assert locks.is_free("gpu", "GPU-b")
    (lock,) = locks.take([("gpu", "GPU-b")], "run mine")
    lock.release()


def test_all_or_nothing(other):
    with pytest.raises(locks.LockTaken, match="GPU-a"):
        locks.take([("gpu", "GPU-a"), ("gpu", "GPU-0")], "run mine")
    assert locks.is_free("gpu", "GPU-0")
    assert other.poll() is None


def test_death_of_the_holder_releases(other):
    other.kill()
    other.wait()
    (lock,) = locks.take([("gpu", "GPU-a")], "run mine")
    assert json.loads(lock.path.read_text())["owner"] == "run mine"
    lock.release()
    assert lock.path.read_text() == ""


def test_waiting_ends_with_the_holder_and_is_told(other):
    heard = []

    def notice(text: str) -> None:
        heard.append(text)
        other.stdin.close()  # it gives the lock back now

    (lock,) = locks.take([("gpu", "GPU-a")], "run mine", wait=LIMIT, notice=notice)
    lock.release()
    assert len(heard) == 1
    assert heard[0].startswith(f"waiting for gpu GPU-a, in use by run other (pid {other.pid}: ")
    assert heard[0].endswith(" s left")


def test_waiting_has_a_limit(other):
    begin = time.monotonic()
    with pytest.raises(locks.LockTaken, match="still in use after waiting 0 s"):
        locks.take([("gpu", "GPU-a")], "run mine", wait=0.3)
    assert 0.3 <= time.monotonic() - begin < LIMIT
    assert other.poll() is None


def test_the_same_process_takes_it_again():
    (one,) = locks.take([("port", "4711")], "a")
    (two,) = locks.take([("port", "4711")], "b")
    one.release()
    one.release()
    assert not _free_for_others("port", "4711")
    two.release()
    assert _free_for_others("port", "4711")


def _free_for_others(kind: str, name: str) -> bool:
    code = (
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        f"from pytest_startup.launch import locks\nprint(locks.is_free({kind!r}, {name!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip() == "True"


def test_port_locks_leave_no_files():
    port, lock = ports.free_port("127.0.0.1", "mine")
    path = locks.lock_path("port", str(port))
    assert path.exists()
    lock.release()
    assert not path.exists()


def test_a_removed_file_is_not_a_lock(monkeypatch):
    """Between open and lock the holder may remove the file: then the lock is on nothing, and a new one is made."""
    (old,) = locks.take([("port", "4712")], "old")
    real, calls = locks._open, []

    def late(path):
        handle = real(path)
        if not calls:
            calls.append(1)
            os.unlink(path)
        return handle

    old.release()
    monkeypatch.setattr(locks, "_open", late)
    (new,) = locks.take([("port", "4712")], "new", wait=LIMIT)
    assert calls
    assert new.path.exists()
    new.release()


def test_inherited_lock_lasts_until_all_have_ended():
    """The keeper inherits the locks: a killed pytest does not free its GPU while the engine is still being ended."""
    code = f"""
import os, subprocess, sys
sys.path.insert(0, {ROOT!r})
from pytest_startup.launch import locks
(lock,) = locks.take([("gpu", "GPU-i")], "dying")
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=0, pass_fds=[lock.handle])
print(child.pid, flush=True)
os._exit(1)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    process.wait()
    try:
        assert not locks.is_free("gpu", "GPU-i")
        assert locks.holder(locks.lock_path("gpu", "GPU-i")).startswith(f"dying (pid {child}: {sys.executable} -c ")
    finally:
        process.stdin.close()
        process.stdout.close()
    (lock,) = locks.take([("gpu", "GPU-i")], "mine", wait=LIMIT)
    lock.release()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: p.symlink_to("/tmp"), "is not a folder (a link?)"),
        (lambda p: p.write_text(""), "is not a folder"),
        (lambda p: (p.mkdir(), p.chmod(0o777)), "without the sticky bit: chmod 1777"),
    ],
)
def test_unsafe_folder_is_refused(tmp_path, monkeypatch, make, text):
    folder = tmp_path / "bad"
    make(folder)
    monkeypatch.setenv("PYTEST_STARTUP_LOCKS", str(folder))
    with pytest.raises(locks.LockUnusable) as raised:
        locks.take([("gpu", "0")], "mine")
    assert text in str(raised.value)


def test_a_link_in_the_place_of_a_lock_is_refused(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    locks.lock_path("gpu", "0").symlink_to(victim)
    with pytest.raises(locks.LockUnusable, match="is a link; remove it"):
        locks.take([("gpu", "0")], "mine")
    assert victim.read_text() == "precious"
    locks.lock_path("gpu", "1").mkdir()
    with pytest.raises(locks.LockUnusable, match=r"can't be opened|not a plain file"):
        locks.take([("gpu", "1")], "mine")


def test_names_stay_in_the_folder():
    assert locks.lock_path("gpu", "../../etc/passwd").parent == locks.lock_folder()


def test_a_gpu_in_use_is_refused_by_preflight_and_start(other, tmp_path):
    launcher = ProcessLauncher(gpu_name=lambda name: {"0": "GPU-a"}[name])
    made = plan(tmp_path, how={}, gpus=("0",))
    (reason,) = launcher.preflight(made.profile)
    assert reason.startswith(f"gpu GPU-a is in use by run other (pid {other.pid}: ")
    with pytest.raises(LaunchError, match="reference is not started: gpu GPU-a is still in use: run other"):
        launcher.start(made)
    patient = ProcessLauncher(gpu_name=lambda _: "GPU-a", lock_wait=LIMIT, notice=lambda _: other.stdin.close())
    assert patient.preflight(made.profile) == []  # it will be waited for
    running = patient.start(made)
    assert running.exited() is None
    assert not _free_for_others("gpu", "GPU-a")
    assert patient.close() == []
    assert _free_for_others("gpu", "GPU-a")
