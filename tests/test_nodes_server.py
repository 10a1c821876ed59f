"""The engine that ``docker exec`` has started on a node: which process it is, and its clean end. No containers here."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from helpers_launch import until

from pytest_startup.launch.identity import Identity, Process, alive, identify, look
from pytest_startup.launch.nodes import server as nodes_server
from pytest_startup.launch.nodes import steps as nodes_steps
from pytest_startup.launch.nodes.server import Server, ServerEnding, of_exec

SHIM = 50  # the daemon's own process, outside of the container
MAIN = Identity(100, 1)


def process(pid: int, parent: int, start: int) -> Process:
    return Process(Identity(pid, start), parent, pid, pid, "S", "x")


IDLE = process(100, SHIM, 1)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], None),
        ([process(101, 100, 5)], None),  # a daemon that a step has left behind
        ([process(101, 100, 5), process(120, SHIM, 9), process(121, 120, 10)], 120),
        ([process(130, SHIM, 20), process(120, SHIM, 9)], 120),  # somebody looks in by a later docker exec
    ],
)
def test_which_process_docker_exec_has_put_there(others, expected):
    found = of_exec([IDLE, *others], MAIN)
    assert (found.pid if found else None) == expected


SAYS = "print('up', flush=True); import signal, time, sys"
ENDS = f"{SAYS}; signal.signal(15, lambda *_: (print('clean', flush=True), sys.exit(0))); print('set', flush=True)"
IGNORES = f"{SAYS}; signal.signal(15, signal.SIG_IGN); print('set', flush=True)"


@pytest.fixture
def start():
    made = []

    def go(code: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", f"{code}; time.sleep(600)"]
        one = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert one.stdout is not None
        until(lambda: one.stdout.readline() == "set\n", "it runs", 60.0)
        made.append(one)
        return one

    yield go
    for one in made:
        one.kill()
        one.wait()
        one.stdout.close()


def identity(process: subprocess.Popen[str]) -> Identity:
    found = identify(process.pid)
    assert found is not None
    return found


def ending(server, command, limit: float) -> ServerEnding:
    """``command``: the process that stands for the docker command."""

    def living():
        found = look(command.pid)
        return [found] if found is not None and found.runs else []

    return ServerEnding(Server((), "c", identity(server)), living, None, limit, 30.0)


def test_the_server_gets_term_and_its_command_only_what_is_left(start, monkeypatch):
    monkeypatch.setattr(nodes_server, "_COMMAND", 0.2)
    server, command = start(ENDS), start(ENDS)
    end = ending(server, command, 60.0)
    assert end.run() == ()
    assert server.stdout.read() == "clean\n"
    assert server.wait() == 0
    assert command.wait() == -signal.SIGKILL  # never a TERM: it only carries the output
    assert command.stdout.read() == ""


def test_a_server_that_ignores_term_has_its_allowance_and_goes_with_the_container(start):
    server, command = start(IGNORES), start(ENDS)
    begin = time.monotonic()
    end = ending(server, command, 0.5)
    assert end.run() == ()
    assert time.monotonic() - begin >= 0.5
    assert end.killed
    assert command.wait() == -signal.SIGKILL
    assert alive(identity(server))  # its container's removal, which follows, is not here


def test_no_allowance_is_a_kill(start):
    server, command = start(ENDS), start(ENDS)
    assert ending(server, command, 0.0).run() == ()
    assert command.wait() == -signal.SIGKILL
    assert alive(identity(server))  # it got no TERM


def test_a_server_that_has_ended_leaves_a_command_to_be_ended(start):
    server, command = start(ENDS), start(ENDS)
    end = ending(server, command, 60.0)
    server.kill()
    server.wait()
    assert end.run() == ()
    assert command.wait() == 0
    assert command.stdout.read() == "clean\n"


def test_where_the_kernel_does_not_let_us_the_container_s_kill_does(start, monkeypatch):
    server = start(ENDS)
    asked = []
    monkeypatch.setattr(nodes_server, "send", lambda *_: False)
    monkeypatch.setattr(nodes_server, "pid_inside", lambda _: 7)
    monkeypatch.setattr(nodes_steps, "run", lambda argv: asked.append(argv))
    Server(("docker", "-H", "unix:///x"), "abc", identity(server)).term()
    assert asked == [["docker", "-H", "unix:///x", "exec", "abc", "kill", "-TERM", "7"]]
