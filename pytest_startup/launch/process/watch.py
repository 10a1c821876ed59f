"""Watches the processes below the keeper: which there are and were, their peak memory, their /dev/shm entries."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from pytest_startup.launch.exits import handle_of, is_ending, status_of
from pytest_startup.launch.identity import Identity, Process, age, command_line, descendants, table
from pytest_startup.launch.memory import Peak, sample, shm_held, shm_names
from pytest_startup.launch.titles import Titles
from pytest_startup.ranks import TITLE

_INTERVAL = 0.5
#: The share of one core that watching may take: on hosts with many processes samples come less often.
_SHARE = 0.02
#: How often an entry of /dev/shm that nobody of ours has open is looked at before it is taken for somebody else's.
_TRIES = 6
_MOST_LOST = 50
#: Seconds for which the ends of ranks are waited for at a time: one that is new must be waited for soon, too.
_SLICE = 0.25
#: Seconds that a rank which is on its way out gets to be gone before the last look.
_LAST = 2.0


class Watch:
    """Samples in a thread of its own. ``changed`` is called, in that thread, when ``known`` or ``shm`` has grown.

    ``lost`` lists long-lived processes that ended while the engine's first process still ran: ``[pid, name, seconds
    since launch, wait status]`` (of its ranks, by their titles; None where nobody tells how it ended); an engine that
    goes on answering without one of its ranks shows here.
    """

    def __init__(self, main: Identity, launched_at: float, shm: frozenset[str], changed: Callable[[], None]) -> None:
        self.known: set[Identity] = {main}
        self.shm: set[str] = set()
        self.peak: Peak | None = None
        self.lost: list[list[Any]] = []
        self._main = main
        self._launched_at = launched_at
        self._changed = changed
        self._tries: dict[str, int] = dict.fromkeys(shm, _TRIES)
        self._seen: dict[Identity, tuple[float, str]] = {}
        self._titles = Titles()
        #: File descriptors by which the kernel tells how a rank ended, after its parent has asked.
        self._handles: dict[Identity, int] = {}
        self._noticed: set[int] = set()
        self._paused = threading.Event()
        self._busy = threading.Lock()
        self._shm_busy = threading.Lock()

    def living(self) -> list[Process]:
        """All processes of the engine that run now: everything below us, and known ones wherever they are."""
        now = table()
        below = {p.pid: p for p in descendants([os.getpid()], now)}
        for identity in tuple(self.known):
            process = now.get(identity.pid)
            if process is not None and process.identity == identity:
                below[process.pid] = process
        return [p for p in below.values() if p.runs]

    def start(self) -> None:
        threading.Thread(target=self._loop, daemon=True).start()

    def pause(self) -> None:
        """Take a last sample and stop watching, before anybody is told to stop. Idempotent."""
        if not self._paused.is_set():
            self.look_well()
            self._paused.set()
            with self._busy:
                for handle in self._handles.values():
                    if handle >= 0:
                        os.close(handle)
                self._handles = {}

    def look_well(self) -> None:
        """One sample, in which nobody lives who is on its way out: who was killed just now is still in the table, and
        gone a moment later; one that writes its core takes longer."""
        with self._busy:
            ranks = [self._main, *self._handles]
        until = time.monotonic() + _LAST
        while any(is_ending(identity) for identity in ranks) and time.monotonic() < until:
            time.sleep(0.01)
        self.look({identity for identity in ranks if is_ending(identity)} - {self._main})

    def look(self, leaving: Collection[Identity] = ()) -> None:
        """One sample; ``leaving``: who no longer counts."""
        with self._busy:
            processes = [p for p in self.living() if p.identity not in leaving]
            seconds = time.monotonic() - self._launched_at
            fresh = {p.identity for p in processes} - self.known
            self.known |= fresh
            self._note_lost(processes, seconds)
            self.peak = sample(processes, seconds, self.peak)
        held = self._look_at_shm(processes, count=True)
        if fresh or held:
            self._changed()

    def shm_created(self) -> None:
        """Something is new in /dev/shm: is it ours? Asked at once, while whoever made it still has it open."""
        if self._look_at_shm(self.living(), count=False):
            self._changed()

    def _note_lost(self, processes: list[Process], seconds: float) -> None:
        now = {p.identity for p in processes}
        if self._main in now and not self._paused.is_set():
            for identity in [i for i in self._seen if i not in now]:
                since, name = self._seen.pop(identity)
                self._titles.forget(identity)
                handle = self._handles.pop(identity, -1)
                if seconds - since >= 4 * _INTERVAL and (TITLE.match(name) or len(self.lost) < _MOST_LOST):
                    status = status_of(identity.pid, handle) if TITLE.match(name) else None
                    self.lost.append([identity.pid, name, round(seconds, 3), status])
                if handle >= 0:
                    self._noticed.discard(handle)  # the number will be another's
                    os.close(handle)
        for process in processes:
            since, name = self._seen.get(process.identity, (seconds - age(process.identity), ""))
            # Read again each time: a process gets its title after it has started, and loses it while it is killed.
            line = command_line(process.pid, 120)
            title = self._titles.of(process, line)
            if title is None and TITLE.match(line):
                line = f"a fork of pid {process.parent}"
            self._seen[process.identity] = (since, line if title or not TITLE.match(name) else name)
            if process.identity not in self._handles and title and not self._paused.is_set():
                self._handles[process.identity] = handle_of(process.pid)

    def _look_at_shm(self, processes: list[Process], count: bool) -> frozenset[str]:
        with self._shm_busy:
            candidates = frozenset(n for n in shm_names() - self.shm if self._tries.get(n, 0) < _TRIES)
            if not candidates:
                return frozenset()
            for name in candidates if count else ():
                self._tries[name] = self._tries.get(name, 0) + 1
            held = shm_held((p.pid for p in processes), candidates)
            self.shm |= held
            return held

    def _loop(self) -> None:
        cost = 0.0
        while not self._wait(max(_INTERVAL, cost / _SHARE)):
            begin = time.thread_time()
            self.look()
            cost = time.thread_time() - begin

    def _wait(self, seconds: float) -> bool:
        """Until the next sample is due, or a rank ends: that is not to be found late because samples cost much. True:
        there is none any more."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._paused.is_set():
            if self._rank_ended(min(left, _SLICE)):
                break
        return self._paused.is_set()

    def _rank_ended(self, seconds: float) -> bool:
        with self._busy:
            handles = [h for h in self._handles.values() if h >= 0 and h not in self._noticed]
        if not handles:
            self._paused.wait(seconds)
            return False
        poll = select.poll()
        for handle in handles:
            poll.register(handle, select.POLLIN)
        ended = [handle for handle, _ in poll.poll(seconds * 1000)]
        self._noticed.update(ended)
        return bool(ended)
