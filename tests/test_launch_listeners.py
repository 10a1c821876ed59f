"""Who listens on a port: told from /proc, with real sockets of real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_startup.launch.base import Exit, NodeLog
from pytest_startup.launch.listeners import owner_of, pids_of, process_tree, who_listens
from pytest_startup.launch.ports import listening
from pytest_startup.observe.sources import Listening
from pytest_startup.record import Fact, Leftover

CHILD = """
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("127.0.0.1", 0))
s.listen()
print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that listens on some port until its standard input ends."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.communicate(timeout=10)


def test_ours_foreign_and_unknown(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    port = int(child.stdout.readline())
    ours = who_listens(port, process_tree(child.pid))
    assert (ours.who, ours.text) == ("ours", f"port {port} is held by pid {child.pid} of the engine")
    assert who_listens(port, process_tree(os.getpid())).who == "ours"  # a child of ours is ours
    foreign = who_listens(port, {1})
    assert foreign.who == "foreign"
    assert f"pid {child.pid} (python" in foreign.text
    assert who_listens(port, set()).who == "foreign"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = who_listens(probe.getsockname()[1], process_tree(os.getpid()))
    assert nobody.who == "unknown"
    assert "no listening socket" in nobody.text


def test_a_port_shared_with_a_stranger_is_foreign(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    port = int(child.stdout.readline())
    with socket.socket() as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        mine.bind(("127.0.0.1", port))
        mine.listen()
        assert len(listening(port)) == 2
        found = who_listens(port, {os.getpid()})
    assert found.who == "foreign"
    assert f"pid {child.pid}" in found.text


def test_ipv6_is_seen() -> None:
    with socket.socket(socket.AF_INET6) as mine:
        try:
            mine.bind(("::1", 0))
        except OSError as e:
            pytest.skip(f"no IPv6 on this machine: {e}")
        mine.listen()
        assert who_listens(mine.getsockname()[1], {os.getpid()}).who == "ours"


def stat(pid: int, parent: int, session: int, name: str = "x") -> str:
    return f"{pid} ({name}) S {parent} {pid} {session} 0 -1 4194304{' 0' * 10} 1 0 {pid}"


def test_the_tree_holds_descendants_and_the_session_of_its_root(tmp_path: Path) -> None:
    for pid, parent, session in [(10, 1, 10), (11, 10, 10), (12, 11, 12), (13, 1, 10), (14, 1, 14), (15, 13, 10)]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(stat(pid, parent, session, "odd ) name (x"))
    (tmp_path / "self").mkdir()
    assert process_tree(10, tmp_path) == {10, 11, 12, 13, 15}


def test_pids_of_a_running_engine(child: subprocess.Popen[str]) -> None:
    pids = pids_of(child)
    assert pids is not None
    assert pids() == {child.pid}
    assert pids_of(object()) is None


class Local:
    """A running engine as far as its processes go."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}"
        self.logs: Sequence[NodeLog] = ()
        self.launched_at = 0.0

    def exited(self) -> Exit | None:
        return None

    def wait_exit(self, timeout: float) -> Exit | None:
        del timeout
        return None

    def facts(self) -> Sequence[Fact]:
        return ()

    def stop(self) -> Sequence[Leftover]:
        return ()


class LocalProcess(Local):
    pid = os.getpid()


class Contained(LocalProcess):
    """Lists its processes itself; where it can't, by nothing else than its main one."""

    listed: list[int] | None = None

    @property
    def pids(self) -> Callable[[], Collection[int]] | None:
        listed = self.listed
        return None if listed is None else lambda: listed


class Remote(Contained):
    listed: list[int] | None = [1]  # noqa: RUF012 - read only

    def owner(self) -> Listening:
        return Listening("ours", "asked there")


def test_whose_the_server_is_is_told_by_the_engine_or_by_its_processes(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    port = int(child.stdout.readline())
    assert owner_of(Local(port)) is None
    found = []
    listing, remote = Contained(port), Remote(port)
    for running in (LocalProcess(port), listing, remote):
        owner = owner_of(running)
        assert owner is not None
        found.append(owner().who)
    assert found == ["ours", "ours", "ours"]
    listing.listed = [1]
    owner = owner_of(listing)
    assert owner is not None
    assert owner().who == "foreign"


def test_sockets_that_may_not_be_looked_at_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net").mkdir()
    row = "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 777 1 0"
    (tmp_path / "net" / "tcp").write_text(f"  sl  local_address …\n{row}\n")
    assert [seen.inode for seen in listening(8080, tmp_path)] == [777]

    def refuse(_: object) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(os, "listdir", refuse)
    found = who_listens(8080, {42}, tmp_path)
    assert (found.who, found.text) == ("unknown", "not allowed to see the sockets of pid 42")
