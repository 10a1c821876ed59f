"""Engine processes that die while the engine starts: found in the process table, by their titles, and only those."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_startup.deaths import LOOK, Deaths, Feed, first_of
from pytest_startup.ends import late_losses, with_left_up, with_loss, with_memory, with_peer
from pytest_startup.launch.exits import handle_of, is_ending, status_of
from pytest_startup.launch.identity import Identity
from pytest_startup.record import Evidence, Fact, Failure

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


def fed(deaths: Deaths, now: float = 100.0, limit: float = 60.0) -> Failure | None:
    """Looks from ``now`` on until something is found and the grace is over; ``limit`` in seconds."""
    found = None
    begin = time.monotonic()
    while found is None and time.monotonic() < begin + limit:
        found = deaths.feed((), now + time.monotonic() - begin)
    return found


def nothing(deaths: Deaths) -> bool:
    """It has looked in the process table more than once, and found nothing."""
    return fed(deaths, limit=3 * LOOK) is None


ROW = "{pid} (VLLM::Worker_TP1) {state} 7 40 39 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 {threads} 0 900 1 2 {code}"
WAITS, EXITS = 4194560, 4194564


@pytest.mark.parametrize(
    ("state", "flags", "threads", "code", "pending", "ending", "status"),
    [
        ("S", WAITS, 9, 0, 0, False, None),
        ("D", WAITS, 9, 0, None, True, None),  # writes its core
        ("S", WAITS, 9, 0, 1 << 14, False, None),  # a TERM that waits is only asked for
        ("S", WAITS, 9, 0, 1 << 8, True, None),
        ("R", EXITS, 1, 9, 0, True, 9),
        ("D", EXITS, 1, 256, 0, True, 256),
        ("D", EXITS, 1, 0, 0, True, None),  # 0: nobody knows yet
        ("Z", EXITS, 4, 0, 0, True, 0),  # its first thread has gone, others have not
        ("Z", EXITS, 1, 9, 0, False, 9),
    ],
)
def test_a_process_on_its_way_out(
    tmp_path: Path,
    state: str,
    flags: int,
    threads: int,
    code: int,
    pending: int | None,
    ending: bool,
    status: int | None,
) -> None:
    folder = tmp_path / "5"
    folder.mkdir()
    row = ROW.format(pid=5, state=state, flags=flags, threads=threads, code=code)
    (folder / "stat").write_text(row)
    masks = f"SigPnd:\t{pending or 0:016x}\nShdPnd:\t{0:016x}\n"
    (folder / "status").write_text(f"Name:\tx\nCoreDumping:\t{int(pending is None)}\n{masks}")
    assert is_ending(Identity(5, 900), tmp_path) is ending
    assert not is_ending(Identity(5, 901), tmp_path)  # the number is another's
    assert not is_ending(Identity(6, 900), tmp_path)
    assert status_of(5, -1, tmp_path) == status


def test_a_rank_that_takes_long_to_go_is_dead_at_once(
    pair: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with a GPU's memory mapped: its exit takes a second, and the table has it all the while."""
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "weights", "head") as deaths:
        assert nothing(deaths)
        worker = pair["VLLM::Worker_TP1"].pid
        monkeypatch.setattr("pytest_startup.deaths.is_ending", lambda identity: identity.pid == worker)
        monkeypatch.setattr("pytest_startup.deaths.status_of", lambda pid, _: 9 if pid == worker else None)
        begin = time.monotonic()
        found = fed(deaths)
        assert found is not None
        assert (found.kind, found.rank, found.node) == ("killed", "TP1", "head")
        assert found.after_seconds is not None
        assert found.after_seconds - 100.0 <= time.monotonic() - begin
        assert pair["VLLM::Worker_TP1"].poll() is None


def test_who_is_dead_at_the_end_counts_at_once(pair: dict[str, subprocess.Popen[bytes]]) -> None:
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "serving") as deaths:
        assert nothing(deaths)
        deaths.ready()
        assert deaths.last(103.0) is None
        pair["VLLM::EngineCore"].kill()
        pair["VLLM::EngineCore"].wait()
        found = deaths.last(103.0)
    assert found is not None
    assert "VLLM::EngineCore (pid " in found.summary
    assert found.summary.endswith(" while the engine served")
    assert found.phase == "serving"


def test_a_rank_that_can_not_be_looked_at_is_not_dead(
    pair: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many files are open: nothing of the process table can be read."""
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "serving") as deaths:
        assert nothing(deaths)
        monkeypatch.setattr("pytest_startup.deaths.look", lambda _: None)
        assert nothing(deaths)
        assert deaths.last(103.0) is None


def test_behind_ready_files_are_held_for_ranks_alone(pair: dict[str, subprocess.Popen[bytes]]) -> None:
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "serving") as deaths:
        assert nothing(deaths)
        before = len(os.listdir("/proc/self/fd"))
        deaths.ready()
        assert len(os.listdir("/proc/self/fd")) == before - 1  # ninja's
        assert nothing(deaths)
        assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_killed_rank_is_named(pair: dict[str, subprocess.Popen[bytes]]) -> None:
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "weights") as deaths:
        assert nothing(deaths)
        pair["VLLM::Worker_TP1"].kill()
        found = fed(deaths)
    assert found is not None
    assert (found.kind, found.phase, found.rank) == ("killed", "weights", "TP1")
    called = f"VLLM::Worker_TP1 (pid {pair['VLLM::Worker_TP1'].pid})"
    assert f"{called} was killed by SIGKILL before the engine was ready" in found.summary
    assert found.helps


def test_of_several_the_one_that_was_killed_is_named(pair: dict[str, subprocess.Popen[bytes]]) -> None:
    """Between two looks a worker is killed, and the engine core ends by itself because of it."""
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "weights") as deaths:
        assert nothing(deaths)
        pair["VLLM::Worker_TP1"].kill()
        core = pair["VLLM::EngineCore"]
        assert core.stdin is not None
        core.stdin.close()
        for name in ("VLLM::Worker_TP1", "VLLM::EngineCore"):
            corpse(pair[name])
        found = fed(deaths)
    assert found is not None
    assert (found.kind, found.rank) == ("killed", "TP1")


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (9, "killed", "was killed by SIGKILL"),
        (139, "crashed", "was killed by SIGSEGV"),  # with a core dump
        (256, "ended", "ended with exit code 1"),
        (15, "ended", "was killed by SIGTERM"),  # so engines end their own ranks
        (None, "process-died", "died"),
    ],
)
def test_how_a_rank_ended_is_told_where_anybody_knows(
    monkeypatch: pytest.MonkeyPatch,
    pair: dict[str, subprocess.Popen[bytes]],
    status: int | None,
    kind: str,
    words: str,
) -> None:
    monkeypatch.setattr("pytest_startup.deaths.status_of", lambda *_: status)
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "weights") as deaths:
        assert nothing(deaths)
        pair["VLLM::EngineCore"].kill()
        pair["VLLM::EngineCore"].wait()
        found = fed(deaths)
    assert found is not None
    assert (found.kind, found.rank) == (kind, None)
    assert f") {words} before the engine was ready, while its first process ran on" in found.summary


def test_the_end_of_a_process_is_known_of_its_corpse_and_where_the_kernel_keeps_it_after_that() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(3)"], stdin=-1)
    handle = handle_of(process.pid)
    try:
        assert status_of(process.pid, handle) is None
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert status_of(process.pid, handle) == 3 << 8
        assert status_of(process.pid, -1) == 3 << 8
        process.wait()
        assert status_of(process.pid, -1) is None
        kernel = tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2])
        assert status_of(process.pid, handle) == (3 << 8 if kernel >= (6, 15) and handle >= 0 else None)
    finally:
        if handle >= 0:
            os.close(handle)


def corpse(process: subprocess.Popen[bytes]) -> None:
    """Wait until it has ended; it isn't reaped yet: its state is what is looked at."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def leave(process: subprocess.Popen[bytes]) -> None:
    """It ends by itself, with exit code 0."""
    assert process.stdin is not None
    process.stdin.close()
    corpse(process)


@pytest.mark.parametrize(("number", "named"), [(signal.SIGKILL, "ninja"), (signal.SIGTERM, "VLLM::EngineCore")])
def test_a_rank_that_is_killed_before_it_has_its_title_explains_the_end_of_the_core(
    pair: dict[str, subprocess.Popen[bytes]], number: signal.Signals, named: str
) -> None:
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "weights") as deaths:
        assert nothing(deaths)
        pair["ninja"].send_signal(number)
        corpse(pair["ninja"])
        assert nothing(deaths)
        leave(pair["VLLM::EngineCore"])
        found = fed(deaths, 110.0)
    assert found is not None
    assert found.summary.startswith(named)
    assert f"(pid {pair[named].pid})" in found.summary
    assert ("was killed by SIGKILL" in found.summary) == (number == signal.SIGKILL)
    assert found.after_seconds is not None
    assert found.after_seconds >= 110


def test_a_process_that_was_killed_long_ago_explains_nothing(pair: dict[str, subprocess.Popen[bytes]]) -> None:
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "weights") as deaths:
        assert nothing(deaths)
        pair["ninja"].kill()
        corpse(pair["ninja"])
        assert nothing(deaths)
        leave(pair["VLLM::EngineCore"])
        found = fed(deaths, 200.0)
    assert found is not None
    assert found.summary.startswith("VLLM::EngineCore")


def test_a_rank_that_is_being_taken_down_keeps_its_title(
    pair: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a process is killed the kernel has no command line of it any more, only a name of 15 characters."""
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "weights") as deaths:
        assert nothing(deaths)
        with monkeypatch.context() as patch:
            patch.setattr("pytest_startup.deaths.command_line", lambda _: "[VLLM::Worker_TP]")
            assert nothing(deaths)
        pair["VLLM::Worker_TP1"].kill()
        found = fed(deaths)
    assert found is not None
    assert found.rank == "TP1"


def test_helpers_of_compilers_may_end(pair: dict[str, subprocess.Popen[bytes]]) -> None:
    with Deaths(lambda: {p.pid for p in pair.values()}, lambda: "compile") as deaths:
        assert nothing(deaths)
        pair["ninja"].kill()
        assert nothing(deaths)


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


@pytest.mark.parametrize(
    ("kind", "facts", "expected"),
    [
        ("killed", ("container.oom_killed", "host.oom_kill"), "out-of-host-memory"),
        ("process-died", ("host.oom_kill",), "out-of-host-memory"),
        ("killed", ("host.memory_peak",), "killed"),
        ("crashed", ("host.oom_kill",), "crashed"),
        ("collective", ("host.oom_kill",), "collective"),
    ],
)
def test_a_killed_rank_is_the_victim_of_the_killer_that_was_at_work(
    kind: str, facts: tuple[str, ...], expected: str
) -> None:
    seen = [Fact(name, 1, Evidence("host", "/proc/vmstat", f"text of {name}")) for name in facts]
    failure = Failure("weights", kind, "VLLM::Worker (pid 7) was killed by SIGKILL")
    found = with_memory(failure, seen)
    assert found.kind == expected
    assert (f"SIGKILL; text of {facts[0]}" in found.summary) == (expected != kind)
    assert bool(found.helps) == (expected != kind)
    assert with_memory(found, seen) == found


def test_who_was_asked_to_end_is_no_victim_of_the_killer() -> None:
    seen = [Fact("host.oom_kill", 1, Evidence("host", "/proc/vmstat", "ended 1 processes of this host"))]
    failure = Failure("weights", "killed", "rank process 7 (VLLM::EngineCore) was killed by SIGTERM")
    assert with_memory(failure, seen) == failure


@pytest.mark.parametrize(("node", "expected"), [("worker", "out-of-host-memory"), ("head", "killed")])
def test_memory_that_another_node_lacked_explains_nothing(node: str, expected: str) -> None:
    seen = [Fact("host.oom_kill", 1, Evidence("host", "/proc/vmstat", "one process", node=node), node=node)]
    assert with_memory(Failure("weights", "killed", "killed", node="worker"), seen).kind == expected


def ended(title: str, seconds: float, node: str = "worker", **detail: int) -> Fact:
    evidence = Evidence("process", "/proc/7", "pid 7 ended while the engine ran", node=node, seconds=seconds)
    return Fact("process.ended", title, evidence, node=node, detail={"pid": 7, **detail})


SERVING = Failure("serving", "ended", "the engine ended while it served: exit code 0", node="head")


@pytest.mark.parametrize(
    ("facts", "said", "expected"),
    [
        # The first that was lost; a rank before what stands around ranks; never the one that complains in the log.
        ([("VLLM::Worker_TP1", 118.0, "worker")], "TP0", ("worker", "TP1", "VLLM::Worker_TP1")),
        ([("VLLM::Worker_TP0", 117.9, "head"), ("VLLM::Worker_TP1", 118.0, "worker")], "TP0", ("worker", "TP1", "")),
        ([("VLLM::Worker_TP0", 117.9, "head"), ("VLLM::Worker_TP1", 118.0, "worker")], "TP1_EP1", ("head", "TP0", "")),
        ([("VLLM::EngineCore", 117.0, "head"), ("VLLM::Worker_TP1", 118.0, "worker")], None, ("worker", "TP1", "")),
        ([("sglang::scheduler_TP1", 118.0, "worker")], None, ("worker", "TP1", "sglang::scheduler_TP1")),
        ([("VLLM::EngineCore", 118.0, "head")], "TP0", ("head", None, "VLLM::EngineCore")),
    ],
)
def test_a_rank_that_was_lost_first_is_why_the_engine_failed_while_it_served(
    facts: list[tuple[str, float, str]], said: str | None, expected: tuple[str, str | None, str]
) -> None:
    log = Failure("serving", "collective-failed", "communication between ranks failed", rank=said)
    found = with_loss(SERVING, [ended(*one) for one in facts], 117.0 if facts[0][1] > 117 else 100.0, log)
    node, rank, title = expected
    assert (found.kind, found.node, found.rank) == ("process-died", node, rank)
    assert found.summary.startswith(f"{title}")
    assert f"(pid 7) of node {node} ended while the engine served; the engine ended while it served" in found.summary
    assert found.helps


@pytest.mark.parametrize(
    ("failure", "title", "seconds", "ready"),
    [
        (SERVING, "VLLM::Worker_TP1", 116.0, 117.0),  # a child that only helped it to start
        (SERVING, "ninja -j 2", 118.0, 117.0),
        (SERVING, "VLLM::Worker_TP1", 118.0, None),  # not ready yet: looked at as it happens
        (SERVING, "VLLM::Worker_TP0", 118.0, 117.0),  # it complains of the other, of which nothing is known
        (replace(SERVING, kind="killed"), "VLLM::Worker_TP1", 118.0, 117.0),
    ],
)
def test_other_ends_do_not_explain_a_failure_while_it_served(
    failure: Failure, title: str, seconds: float, ready: float | None
) -> None:
    log = Failure("serving", "collective-failed", "communication between ranks failed", rank="TP0")
    assert with_loss(failure, [ended(title, seconds)], ready, log) == failure


@pytest.mark.parametrize(
    ("status", "kind", "how"),
    [
        (9, "killed", "was killed by SIGKILL"),
        (11, "crashed", "was killed by SIGSEGV"),
        (15, "", ""),
        (2, "", ""),
        (0, "", ""),
        (256, "", ""),
    ],
)
def test_a_rank_that_its_engine_asked_to_end_explains_nothing(status: int, kind: str, how: str) -> None:
    found = with_loss(SERVING, [ended("VLLM::EngineCore", 118.0, "head", status=status)], 117.0, None)
    assert (found == SERVING) == (not kind)
    assert found.kind == (kind or SERVING.kind)
    assert f"VLLM::EngineCore (pid 7) of node head {how} while the engine served; " in found.summary or not kind


def test_a_node_that_was_left_up_lost_its_peers() -> None:
    up = [Fact("node.left_up", "reference", Evidence("process", "head", "left up", node="head"), node="head")]
    failure = Failure("serving", "collective-failed", "communication between ranks failed", node="head")
    told = with_left_up(failure, up)
    assert told.summary == (
        "communication between ranks failed; node head was left up and lost its peers: this engine needs all its nodes"
        " restarted"
    )
    assert with_left_up(told, up) == told
    assert with_left_up(failure, ()) == failure
    assert with_left_up(replace(failure, node="worker"), up).summary == "communication between ranks failed"


def hears(node: str, address: str) -> Fact:
    evidence = Evidence("process", "datagrams between the nodes", "hears", node=node)
    return Fact("node.hears", [], evidence, node=node, detail={"address": address})


NODES = [hears("head", "10.0.0.1"), hears("worker", "10.0.0.12")]
GLOO = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [{}]:31915. Check the remote worker."


@pytest.mark.parametrize(
    ("line", "facts", "expected"),
    [
        (GLOO.format("10.0.0.12"), NODES, "worker"),
        ("socketProgress: Connection closed by remote peer gb10-b<38312>: 10.0.0.12", NODES, "worker"),
        ("Read error [10.0.0.12]:4: Connection reset by peer", NODES, "worker"),
        (GLOO.format("10.0.0.120"), NODES, "head"),
        (GLOO.format("10.0.0.1"), NODES, "head"),  # its own
        (GLOO.format("77.86.0.0"), NODES, "head"),
        ("listens at [10.0.0.12]:29600", NODES, "head"),
        (GLOO.format("10.0.0.12"), [], "head"),
        (GLOO.format("10.0.0.12"), [*NODES, hears("third", "10.0.0.12")], "head"),
    ],
)
def test_the_node_at_the_other_end_of_a_broken_connection_is_named(line: str, facts: list[Fact], expected: str) -> None:
    cause = Evidence("log", "head/engine.log", line, line=76, node="head", rank="TP0")
    failure = Failure("serving", "collective-failed", "communication failed", cause=cause, rank="TP0", node="head")
    found = with_peer(failure, facts)
    assert found.node == expected
    assert found.cause == cause
    assert (found == failure) == (expected == "head")
    if expected == "worker":
        assert found.rank is None
        assert found.summary == "communication failed: node head lost its connection to node worker (10.0.0.12)"
    up = Fact("node.left_up", "reference", Evidence("process", "head", "left up", node="head"), node="head")
    assert with_peer(failure, [*facts, up]).node == "head"


@pytest.mark.parametrize(
    ("title", "seconds", "pid", "counts"),
    [
        ("VLLM::Worker_TP1", 50.0, 7, True),
        ("VLLM::Worker_TP1", 70.0, 7, False),  # the stop had begun: on another node a rank may end of it at once
        ("VLLM::Worker_TP1", 50.0, 4, False),  # known at the observation: the check ready judges it
        ("/usr/bin/ninja", 50.0, 7, False),
        ("a fork of pid 12", 50.0, 7, False),
    ],
)
def test_a_rank_that_ended_behind_the_observation(title: str, seconds: float, pid: int, counts: bool) -> None:
    before = [ended("VLLM::Worker_TP0", 20.0, pid=4)]
    found = late_losses(before, [*before, ended(title, seconds, pid=pid)], 60.0)
    assert [(left.kind, left.node, left.released) for left in found] == [("engine", "worker", False)] * counts
    assert all(left.what.startswith(f"{title}: ") for left in found)
