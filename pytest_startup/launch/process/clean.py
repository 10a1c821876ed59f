"""What is left of a local engine whose run and keeper have died: its processes and shared memory, found and removed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pytest_startup.launch import registry, stopping
from pytest_startup.launch.identity import Process, command_line, ours
from pytest_startup.launch.memory import SHM
from pytest_startup.launch.nodes import steps as nodes_steps
from pytest_startup.launch.registry import Entry
from pytest_startup.record import Leftover

#: Seconds from TERM to KILL, and then until we give up on processes that the kernel does not end.
_LIMIT = 5.0
_GIVE_UP = 20.0


def look(entry: Entry) -> Sequence[str]:
    """What would be removed, one text each."""
    found = [f"pid {p.pid}: {command_line(p.pid)}" for p in _processes(entry)]
    if "docker" in entry.labels:
        ids, why = nodes_steps.containers(json.loads(entry.labels["docker"]), entry.labels["label"])
        found += [f"container {one[:12]}" for one in ids] + ([f"containers: {why}"] if why else [])
    return found


def remove(entry: Entry) -> Sequence[Leftover]:
    """TERM, KILL and the removal of shared memory, all by identity."""
    ending = stopping.Ending(lambda: _processes(entry), None, _LIMIT, _GIVE_UP)
    left = {p.pid for p in ending.run()}
    out = [Leftover("pid", f"{pid} {name}", pid not in left) for pid, _, name in ending.seen]
    if entry.boot == registry.boot_id():
        removed, held = stopping.remove_shm(entry.shm)
        out += [Leftover("shm", f"{SHM}/{name}", True) for name in removed]
        out += [Leftover("shm", f"{SHM}/{name}", False) for name in held]
    if "docker" in entry.labels:
        rows = nodes_steps.remove(json.loads(entry.labels["docker"]), entry.labels["label"])
        out += [Leftover("container", f"{one} {why}".strip(), gone) for one, gone, why in rows]
    return out


def _processes(entry: Entry) -> list[Process]:
    if entry.boot != registry.boot_id():
        return []
    return ours(entry.run_id, entry.known)
