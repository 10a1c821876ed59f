"""Host memory of the engine's process tree: the peak while it runs, at a small fixed cost; its /dev/shm entries."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_startup.launch.identity import Process, opened

SHM = "/dev/shm"  # noqa: S108 - only listed; entries are removed when one of our own processes had them open
_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Peak:
    """``size`` in bytes at ``seconds`` since launch over ``processes`` processes.

    ``measure``: ``pss`` (shared pages counted once) or ``rss`` (an upper bound, where the kernel gives no PSS).
    """

    size: int
    seconds: float
    processes: int
    measure: str


def resident(pid: int) -> int:
    """RSS in bytes, 0 for a process that has gone. Cheap."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def proportional(pid: int) -> int | None:
    """PSS in bytes; None where it can't be read. The kernel walks the page tables for it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return None


def sample(processes: Iterable[Process], seconds: float, peak: Peak | None) -> Peak | None:
    """The higher of ``peak`` and now. The sum of RSS bounds that of PSS, so PSS is only read when it may be higher."""
    pids = [p.pid for p in processes if p.runs]
    bound = {pid: resident(pid) for pid in pids}
    if peak is not None and sum(bound.values()) <= peak.size:
        return peak
    exact = {pid: proportional(pid) for pid in pids}
    measure = "rss" if any(exact[pid] is None and bound[pid] for pid in pids) else "pss"
    size = sum(bound[pid] if exact[pid] is None else exact[pid] or 0 for pid in pids)
    if peak is not None and size <= peak.size:
        return peak
    return Peak(size, seconds, len(pids), measure)


def shm_names() -> frozenset[str]:
    """What is in /dev/shm now."""
    try:
        return frozenset(os.listdir(SHM))
    except OSError:
        return frozenset()


def shm_events() -> int:
    """A descriptor that is readable when something was created in /dev/shm; -1 where the kernel gives none."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if handle >= 0 and libc.inotify_add_watch(handle, SHM.encode(), _IN_CREATE | _IN_MOVED_TO) < 0:
        os.close(handle)
        return -1
    return handle


def shm_held(pids: Iterable[int], candidates: frozenset[str]) -> frozenset[str]:
    """Which of ``candidates`` (names below /dev/shm) these processes have mapped or open."""
    found: set[str] = set()
    for pid in pids:
        if found >= candidates:
            break
        found |= candidates & (_mapped(pid) | _opened(pid))
    return frozenset(found)


def _name(path: str) -> str:
    path = path.removesuffix(" (deleted)")
    return path[len(SHM) + 1 :] if path.startswith(SHM + "/") else ""


def _mapped(pid: int) -> set[str]:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return {_name(line.split(None, 5)[5].rstrip("\n")) for line in file if SHM in line}
    except OSError:
        return set()


def _opened(pid: int) -> set[str]:
    return {_name(target) for target in opened(pid)}
