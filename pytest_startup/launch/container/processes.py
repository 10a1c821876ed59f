"""The processes of a container as this host sees them: their memory, their end, their entries of /dev/shm."""

from __future__ import annotations

import os
from collections.abc import Callable

from pytest_startup.launch.identity import Identity, Process, look, table
from pytest_startup.launch.process.watch import Watch

#: Where the kernel counts out-of-memory kills of a control group: version 1, version 2.
_OOM_FILES = ("/memory.oom_control", "/memory.events")
#: Where it keeps the most that a control group ever used, in bytes: version 1, version 2 (Linux 5.19).
_PEAK_FILES = ("/memory.max_usage_in_bytes", "/memory.peak")


class ContainerProcesses(Watch):
    """As ``Watch``, for processes that are no children of ours but members of a container's control group.

    ``oom_kills``: processes of the container that the kernel has killed for want of memory, the host's or their own.
    ``group_peak``: the most that its control group has used, in bytes, file cache included; None where none is kept.
    Finds nothing where the container's processes can't be seen: another pid namespace, another host.
    """

    def __init__(
        self, container: str, main: Identity, launched_at: float, shm: frozenset[str], changed: Callable[[], None]
    ) -> None:
        super().__init__(main, launched_at, shm, changed)
        self._container = container
        self._lists = procs_files(container, main.pid)
        self._counts = oom_files(self._lists)
        self._peaks = peak_files(self._lists)
        self.oom_kills = 0
        self.group_peak: int | None = None

    def living(self) -> list[Process]:
        """All processes of the container that run now."""
        self.oom_kills = max(self.oom_kills, oom_kills_in(self._counts))
        self.group_peak = max(filter(None, (self.group_peak, peak_in(self._peaks))), default=None)
        found = [look(pid) for pid in self._pids()]
        return [p for p in found if p is not None and p.runs]

    def _pids(self) -> set[int]:
        for path in self._lists:
            try:
                with open(path, encoding="ascii") as file:
                    return {int(line) for line in file if int(line) > 0}
            except (OSError, ValueError):
                continue
        return members(self._container)


def oom_files(lists: list[str]) -> list[str]:
    """Where out-of-memory kills may be counted beside these lists of processes."""
    return [os.path.dirname(path) + name for path in lists for name in _OOM_FILES]


def oom_kills_in(paths: list[str]) -> int:
    """The count of the first of these files that is there."""
    for path in paths:
        try:
            with open(path, encoding="ascii") as file:
                return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
        except (OSError, ValueError):
            continue
    return 0


def peak_files(lists: list[str]) -> list[str]:
    """Where the peak of a control group may stand beside these lists of processes."""
    return [os.path.dirname(path) + name for path in lists for name in _PEAK_FILES]


def peak_in(paths: list[str]) -> int | None:
    """Bytes, of the first of these files that is there."""
    for path in paths:
        try:
            with open(path, encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            continue
    return None


def procs_files(container: str, pid: int, proc: str = "/proc", root: str = "/sys/fs/cgroup") -> list[str]:
    """Where the kernel lists the processes of the container's control group, as far as it can be told.

    One row ``0::/…`` on control groups v2, which have one tree; one row per controller, each with a tree, on v1.
    """
    try:
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    out = []
    for row in rows:
        if len(row) == 3 and container in row[2]:
            folder = row[1].removeprefix("name=").split(",")[0]
            path = os.path.normpath(f"{root}/{folder}/{row[2]}/cgroup.procs")
            if os.access(path, os.R_OK):
                out.append(path)
    return out


def members(container: str) -> set[int]:
    """The same by asking each process for its control group; for a cgroup file system that can't be seen."""
    out = set()
    for pid in table():
        try:
            with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
                if container in file.read():
                    out.add(pid)
        except OSError:
            continue
    return out


def pid_inside(pid: int) -> int | None:
    """The number that a process of a container has there."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            numbers = next((line.split()[1:] for line in file if line.startswith("NSpid:")), [])
    except OSError:
        return None
    return int(numbers[-1]) if len(numbers) > 1 else None
