"""Ports: who listens on one, whether it is free, and a free one that no other run of ours will take."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_startup.launch import locks
from pytest_startup.launch.identity import command_line, opened

_LISTEN = "0A"
#: How a server that listens on every address of this host is reached from it.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - nothing listens there for us


@dataclass(frozen=True)
class Listener:
    """A listening socket. ``pid`` None: a process that we may not look into (another user's, another namespace's)."""

    address: str
    port: int
    uid: int
    inode: int
    pid: int | None = None
    command: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return f"a process of uid {self.uid} (port {self.port}, address {self.address})"
        return f"pid {self.pid}: {self.command} (port {self.port}, address {self.address})"


def parse_listeners(text: str, ipv6: bool) -> Iterator[Listener]:
    """Listening sockets of a ``/proc/net/tcp`` or ``tcp6`` table."""
    for line in text.splitlines()[1:]:
        row = line.split()
        if len(row) < 10 or row[3] != _LISTEN:
            continue
        raw, _, port = row[1].partition(":")
        data = bytes.fromhex(raw)
        words = b"".join(data[i : i + 4][::-1] for i in range(0, len(data), 4))  # four bytes each, little endian
        address = socket.inet_ntop(socket.AF_INET6 if ipv6 else socket.AF_INET, words)
        yield Listener(address, int(port, 16), int(row[7]), int(row[9]))


def _owner(inode: int) -> int | None:
    wanted = f"socket:[{inode}]"
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        if wanted in opened(int(name)):
            return int(name)
    return None


def listening(port: int, proc: str | os.PathLike[str] = "/proc") -> list[Listener]:
    """Every socket that listens on ``port``, on any address of this network namespace; whose it is is not looked up."""
    found: list[Listener] = []
    for name, ipv6 in (("tcp", False), ("tcp6", True)):
        try:
            with open(f"{proc}/net/{name}", encoding="ascii", errors="replace") as file:
                found += [seen for seen in parse_listeners(file.read(), ipv6) if seen.port == port]
        except OSError:
            continue
    return found


def listeners(port: int) -> list[Listener]:
    """The same with the processes that hold them, where we may look into these."""
    return [
        replace(seen, pid=pid, command="" if pid is None else command_line(pid))
        for seen in listening(port)
        for pid in [_owner(seen.inode)]
    ]


def why_taken(host: str, port: int) -> str | None:
    """Why ``port`` can't be listened on: who holds it; None when it is free.

    The table comes first: an engine that binds with SO_REUSEPORT would share the port of another one without an error.
    """
    held = listeners(port)
    if held:
        return "; ".join(str(one) for one in held)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"a connection that has not ended yet (nobody listens on {host}:{port}; up to a minute)"
        return f"nobody, but {host}:{port} can't be listened on: {error.strerror}"
    return None


def local_url(host: str, port: int) -> str:
    """``http://127.0.0.1:8888``: where a server of this host that listens on ``host`` is asked."""
    host = _LOOPBACK.get(host, host)
    return f"http://{f'[{host}]' if ':' in host and '[' not in host else host}:{port}"


def _ephemeral() -> tuple[int, int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low, high = file.read().split()
            return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999


def free_port(host: str, owner: str) -> tuple[int, locks.Lock]:
    """A port on which nobody listens, and its lock, which keeps other runs of ours off it until it is released.

    Not out of the range from which the kernel serves outgoing connections: an engine binds its API port long after it
    has opened others of its own. Raises LockTaken when none of many is free.
    """
    low, high = _ephemeral()
    choice = [p for p in range(20000, 61000) if not low <= p <= high] or list(range(low, high))
    for port in random.SystemRandom().sample(choice, min(200, len(choice))):
        try:
            (lock,) = locks.take([("port", str(port))], owner)
        except locks.LockTaken:
            continue
        if why_taken(host, port) is None:
            return port, lock
        lock.release()
    raise locks.LockTaken(f"no free port found on {host}")
