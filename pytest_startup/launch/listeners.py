"""Who listens on a TCP port of this machine: processes of ours, or somebody else's (``/proc`` only, no privileges)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_startup.launch.base import ListsProcesses, OneProcess, ProvesServer
from pytest_startup.launch.identity import descendants, table
from pytest_startup.launch.ports import listening
from pytest_startup.observe.sources import Listening

if TYPE_CHECKING:
    from pytest_startup.launch.base import Running

PROC = Path("/proc")


def process_tree(root: int, proc: Path = PROC) -> set[int]:
    """``root``, its descendants, and every process of the session that it leads (children whose parent died)."""
    now = table(proc)
    members = {root} | {p.pid for p in now.values() if p.session == root}
    return members | {p.pid for p in descendants(members, now)}


def pids_of(running: object) -> Callable[[], set[int]] | None:
    """The processes of a running engine: as it lists them itself (a container), or the tree of its main one (a local
    engine); None for others."""
    listed = running.pids if isinstance(running, ListsProcesses) else None
    if listed is not None:
        return lambda: set(listed())
    if not isinstance(running, OneProcess):
        return None
    pid = running.pid
    return lambda: process_tree(pid)


def owner_of(running: Running) -> Callable[[], Listening] | None:
    """Tells whose the server is that listens on the engine's port: as the engine knows by itself, or by its processes;
    None where neither is known."""
    if isinstance(running, ProvesServer):
        return running.owner
    pids, port = pids_of(running), urlsplit(running.base_url).port
    return None if pids is None or port is None else lambda: who_listens(port, pids())


def _sockets_of(pid: int, proc: Path) -> set[str] | None:
    """Inodes of the sockets that ``pid`` holds; None if we may not look."""
    folder = proc / str(pid) / "fd"
    found = set()
    try:
        names = os.listdir(folder)
    except PermissionError:
        return None
    except OSError:
        return set()
    for name in names:
        try:
            link = os.readlink(folder / name)
        except OSError:
            continue
        if link.startswith("socket:["):
            found.add(link[8:-1])
    return found


def who_listens(port: int, ours: Collection[int], proc: Path = PROC) -> Listening:
    """Are all sockets that listen on ``port`` held by processes of ``ours``?

    All: engines listen with SO_REUSEPORT, so that an old server and a new one can share a port and the kernel deals
    the connections out between them.
    """
    inodes = {str(seen.inode) for seen in listening(port, proc)}
    if not inodes:
        return Listening("unknown", f"no listening socket on port {port} in this network namespace")
    held: dict[str, int] = {}
    hidden = []
    for pid in sorted(ours):
        sockets = _sockets_of(pid, proc)
        if sockets is None:
            hidden.append(pid)
        held.update(dict.fromkeys(inodes & (sockets or set()), pid))
    strange = inodes - held.keys()
    if not strange:
        pids = ", ".join(map(str, sorted(set(held.values()))))
        return Listening("ours", f"port {port} is held by pid {pids} of the engine")
    if hidden:
        return Listening("unknown", f"not allowed to see the sockets of pid {', '.join(map(str, hidden))}")
    return Listening("foreign", f"port {port} is held by {_holder(strange, proc)}, not by the engine that was started")


def _holder(inodes: set[str], proc: Path) -> str:
    for entry in proc.iterdir():
        if entry.name.isdigit() and inodes & (_sockets_of(int(entry.name), proc) or set()):
            try:
                name = (entry / "comm").read_text().strip()
            except OSError:
                name = "?"
            return f"pid {entry.name} ({name})"
    return "another process"
