"""Ends exactly our processes: TERM, after a limit KILL, until none is left; then removes what they left in /dev/shm."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Iterable, Sequence

from pytest_startup.launch.identity import Identity, Process, command_line, look, send, table
from pytest_startup.launch.memory import SHM, shm_held

#: For this long after KILL, Python's resource trackers are spared: they remove the shared memory of those just killed
#: and end by themselves.
_TRACKER_GRACE = 1.0


class Ending:
    """The end of a set of processes, step by step, so that the caller can do other things meanwhile.

    ``living`` gives the processes of ours that run now. TERM goes to all of them at once, those of ``main``'s process
    group in one call; ``limit`` seconds later KILL, again and again, to whatever lives; after ``give_up`` seconds more
    (uninterruptible in the kernel) it is over with ``left`` not empty.
    """

    def __init__(
        self, living: Callable[[], Sequence[Process]], main: Identity | None, limit: float, give_up: float
    ) -> None:
        self.left: tuple[Process, ...] = ()
        self.killed = False
        self.seen: list[list[object]] = []
        self.pause = 0.01
        self._living = living
        self._main = main
        self._begin = time.monotonic()
        self._kill_at = self._begin + limit
        self._give_up_at = self._kill_at + give_up
        self._termed = False

    def hurry(self, limit: float) -> None:
        """KILL no later than ``limit`` seconds from now."""
        self._kill_at = min(self._kill_at, time.monotonic() + limit)

    def step(self) -> bool:
        """Do what is due; True when it is over."""
        begin = time.monotonic()
        living = self._living()
        if not self.seen:
            self.seen = [[p.pid, p.identity.start, command_line(p.pid, 80)] for p in living]
        self.left = tuple(living)
        if not living:
            return True
        if begin >= self._give_up_at:
            return True
        if begin >= self._kill_at:
            self._kill(living, spare_trackers=begin < self._kill_at + _TRACKER_GRACE)
        elif not self._termed:
            self._termed = True
            self._term(living)
        # Soon after a signal most is over quickly; a host with many processes is not scanned without end.
        waited = time.monotonic() - self._begin
        self.pause = max(0.01 if waited < 2.0 else 0.05, 5 * (time.monotonic() - begin))
        return False

    def run(self) -> tuple[Process, ...]:
        """Step until it is over; what could not be ended."""
        while not self.step():
            time.sleep(self.pause)
        return self.left

    def _term(self, living: Sequence[Process]) -> None:
        group: set[int] = set()
        if self._main is not None and any(p.identity == self._main and p.group == p.pid for p in living):
            process = look(self._main.pid)
            if process is not None and process.identity == self._main:
                group = {p.pid for p in living if p.group == self._main.pid}
                os.killpg(self._main.pid, signal.SIGTERM)
        for process in living:
            if process.pid not in group:
                send(process.identity, signal.SIGTERM)

    def _kill(self, living: Sequence[Process], spare_trackers: bool) -> None:
        self.killed = True
        for process in living:
            if not (spare_trackers and "multiprocessing.resource_tracker" in command_line(process.pid, 4096)):
                send(process.identity, signal.SIGKILL)


def remove_shm(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Remove entries of /dev/shm that processes of ours had open and nobody has now: ``(removed, still held)``."""
    there = frozenset(n for n in names if "/" not in n and _own_file(os.path.join(SHM, n)))
    if not there:
        return [], []
    held = shm_held((p.pid for p in table().values() if p.pid != os.getpid()), there)
    removed: list[str] = []
    for name in sorted(there - held):
        try:
            os.unlink(os.path.join(SHM, name))
            removed.append(name)
        except FileNotFoundError:
            continue
        except OSError:
            held |= {name}
    return removed, sorted(held)


def _own_file(path: str) -> bool:
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(seen.st_mode) and seen.st_uid == os.getuid()
