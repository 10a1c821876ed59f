"""Engine processes that die while the engine starts: found in the process table, by their titles, and only those."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pytest_startup.deaths import GRACE, Deaths, Feed, first_of
from pytest_startup.record import Failure

SLEEP = "import sys, time; print('up', flush=True); sys.stdin.read()"


def titled(title: str) -> subprocess.Popen[bytes]:
    """A process that is called ``title`` in the process table, and that is up."""
    argv = [title, "-c", SLEEP]
    process = subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


@pytest.fixture
def pair() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    made = {title: titled(title) for title in ("VLLM::EngineCore", "VLLM::Worker_TP1", "ninja")}
    yield made
    for process in made.values():
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def fed(deaths: Deaths, now: float = 100.0) -> Failure | None:
    """Looks until it has looked in the process table again and the grace is over."""
    found = None
    until = time.monotonic() + 2 * GRACE
    while found is None and time.monotonic() < until:
        now += GRACE
        found = deaths.feed((), now)
    return found


def test_a_killed_rank_is_named(pair: dict[str, subprocess.Popen[bytes]]) -> None:
    deaths = Deaths(lambda: {p.pid for p in pair.values()}, lambda: "weights")
    assert fed(deaths) is None
    pair["VLLM::Worker_TP1"].kill()
    found = fed(deaths)
    assert found is not None
    assert (found.kind, found.phase, found.rank) == ("ended", "weights", "TP1")
    assert f"VLLM::Worker_TP1 (pid {pair['VLLM::Worker_TP1'].pid}) died before the engine was ready" in found.summary


def test_helpers_of_compilers_may_end(pair: dict[str, subprocess.Popen[bytes]]) -> None:
    deaths = Deaths(lambda: {p.pid for p in pair.values()}, lambda: "compile")
    assert fed(deaths) is None
    pair["ninja"].kill()
    assert fed(deaths) is None


def test_without_a_process_table_nothing_is_found() -> None:
    assert Deaths(None, lambda: "launch").feed((), 1.0) is None


def test_every_feed_is_fed_and_the_first_failure_counts() -> None:
    calls: list[str] = []

    def feed(name: str, failure: Failure | None) -> Feed:
        def one(_facts: object, _now: float) -> Failure | None:
            calls.append(name)
            return failure

        return one

    wanted = Failure("weights", "ended", "b")
    both = first_of(feed("a", None), feed("b", wanted), feed("c", Failure("weights", "ended", "c")))
    assert both((), 1.0) is wanted
    assert calls == ["a", "b", "c"]
