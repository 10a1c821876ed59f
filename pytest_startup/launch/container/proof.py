"""Proof that a stopped container is gone: itself, the processes in it, and what they had of the host's /dev/shm."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_startup.launch import stopping
from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere
from pytest_startup.launch.container.processes import ContainerProcesses
from pytest_startup.launch.container.watch import Boot
from pytest_startup.launch.identity import alive, command_line
from pytest_startup.launch.memory import SHM
from pytest_startup.record import Leftover

_POLL = 0.05


def container_stopped(daemon: Daemon, boot: Boot, node: str, begin: float, until: float) -> Leftover:
    """The container does not run any more, as its daemon says."""
    name = f"{boot.name} ({boot.container[:12]})"
    while True:
        try:
            state = daemon.inspect(boot.container)["State"]
            running, why = bool(state.get("Running")), f"still {state.get('Status')}"
        except NotThere:
            running, why = False, ""
        except (DaemonLost, DaemonRefused) as error:
            running, why = True, f"can't be told: {error}"
        if not running or time.monotonic() >= until:
            seconds = round(time.monotonic() - begin, 3)
            return Leftover("container", f"{name}{f', {why}' if running else ''}", not running, seconds, node)
        time.sleep(_POLL)


def processes_gone(
    processes: ContainerProcesses, node: str, redact: Callable[[str], str], begin: float, until: float
) -> list[Leftover]:
    """All that ever ran in the container; one entry for all, or one for each that is left."""
    known = {i: redact(command_line(i.pid, 80)) if alive(i) else "" for i in sorted(processes.known)}
    while any(alive(i) for i in known) and time.monotonic() < until:
        time.sleep(_POLL)
    seconds = round(time.monotonic() - begin, 3)
    left = [i for i in known if alive(i)]
    if not left:
        return [Leftover("pid", f"{len(known)} processes of the container", True, seconds, node)]
    return [Leftover("pid", f"{i.pid} {known[i]}", False, seconds, node) for i in left]


def shm_released(processes: ContainerProcesses, node: str, begin: float) -> list[Leftover]:
    """Entries of the host's /dev/shm that processes of the container had open (``ipc: host``)."""
    names = frozenset(processes.shm)
    removed, held = stopping.remove_shm(names)
    seconds = round(time.monotonic() - begin, 3)
    out = []
    for name in sorted(names):
        note = " (left behind by the engine; removed)" if name in removed else ""
        out.append(Leftover("shm", f"{SHM}/{name}{note}", name not in held, seconds, node))
    return out
