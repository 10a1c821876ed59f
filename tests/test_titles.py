"""What an engine's processes call themselves: a rank is told from a fork of it, which has its title and may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from helpers_launch import until

from pytest_startup.deaths import LOOK, Deaths
from pytest_startup.launch.identity import Identity, Process, look
from pytest_startup.launch.listeners import process_tree
from pytest_startup.launch.process.watch import Watch
from pytest_startup.launch.titles import Titles

CORE, WORKER = "VLLM::EngineCore", "VLLM::Worker_TP0"


def process(pid: int, parent: int) -> Process:
    return Process(Identity(pid, pid), parent, 1, 1, "S", "python")


@pytest.mark.parametrize(
    ("line", "above", "expected"),
    [
        (CORE, "python -m vllm serve", CORE),
        (CORE, CORE, None),  # a fork, until it executes something else
        (WORKER, CORE, WORKER),
        ("VLLM::Worker_TP1_EP1", "VLLM::Worker_TP0_EP0", "VLLM::Worker_TP1_EP1"),
        ("sglang::scheduler_TP0", "python -m sglang.launch_server", "sglang::scheduler_TP0"),
        ("sglang::scheduler_TP0", "sglang::scheduler_TP0", None),
        ("ours::Worker_TP1", "ours::EngineCore", "ours::Worker_TP1"),  # VLLM_PROCESS_NAME_PREFIX=ours
        ("ours::EngineCore_DP1", "vllm serve", "ours::EngineCore_DP1"),
        ("a.out::Workers", CORE, None),
        ("/usr/lib/x::Worker", CORE, None),
        ("/usr/bin/gcc -c x.c", CORE, None),
        ("", CORE, None),
    ],
)
def test_a_title_of_its_own(line: str, above: str, expected: str | None) -> None:
    assert Titles({1: above}.__getitem__).of(process(2, 1), line) == expected


def test_a_fork_becomes_a_rank_by_its_own_title_and_stays_a_fork_without_its_parent() -> None:
    lines = {1: CORE, 3: "init"}
    titles = Titles(lines.__getitem__)
    assert titles.of(process(2, 1), CORE) is None
    assert titles.of(process(2, 3), CORE) is None
    assert titles.of(process(2, 1), WORKER) == WORKER
    titles.forget(Identity(2, 2))
    assert titles.of(process(2, 3), CORE) == CORE


#: Forks once per line that it reads: the child lives until its own line comes, on the same pipe.
FORKS = """\
import os, sys
print("up", flush=True)
while sys.stdin.buffer.raw.read(1):
    child = os.fork()
    if child == 0:
        sys.stdin.buffer.raw.read(1)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
"""


@pytest.fixture
def core() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(
        [CORE, "-c", FORKS], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    with made:
        assert made.stdout is not None
        assert made.stdout.readline() == b"up\n"
        yield made
        made.kill()


def go(core: subprocess.Popen[bytes]) -> None:
    assert core.stdin is not None
    core.stdin.write(b".")


def fork(core: subprocess.Popen[bytes]) -> int:
    go(core)
    assert core.stdout is not None
    return int(core.stdout.readline())


def test_a_fork_that_ends_is_no_death(core: subprocess.Popen[bytes]) -> None:
    """Seen on a GPU: the engine core forks while it compiles, and the fork ends with 0."""
    with Deaths(lambda: process_tree(core.pid) | {core.pid}, lambda: "compile") as deaths:
        child = fork(core)
        end = time.monotonic() + 3 * LOOK
        while time.monotonic() < end:
            assert deaths.feed((), 60.0) is None
        go(core)
        end = time.monotonic() + 5 * LOOK
        while time.monotonic() < end:
            assert deaths.feed((), 61.0 + time.monotonic() - end) is None
        assert look(child) is None
        os.kill(core.pid, signal.SIGKILL)
        found, begin = None, time.monotonic()
        while found is None and time.monotonic() < begin + 30:
            found = deaths.feed((), 70.0 + time.monotonic() - begin)
    assert found is not None
    assert found.summary.startswith(f"{CORE} (pid {core.pid})")


def test_a_long_lived_fork_that_ended_is_not_called_by_the_title(core: subprocess.Popen[bytes]) -> None:
    main = look(os.getpid())
    assert main is not None
    watch = Watch(main.identity, time.monotonic() - 60, frozenset(), lambda: None)
    child = fork(core)
    watch.look()
    watch._launched_at -= 60  # a minute later
    watch.look()
    go(core)
    until(lambda: look(child) is None, "the fork has ended")
    watch.look()
    watch.pause()
    assert [row[:2] for row in watch.lost if row[0] == child] == [[child, f"a fork of pid {core.pid}"]]
