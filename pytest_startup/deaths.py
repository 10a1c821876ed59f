"""A rank that dies while its engine starts or serves: seen in the process table, long before the API server gives up.

vLLM 0.26.0 took 3 s after a killed engine core, and 14 s after a killed worker, to end by itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from pytest_startup.engines.failure_help import advice
from pytest_startup.launch.exits import ASKED, CRASHES, handle_of, is_ending, status_of, told
from pytest_startup.launch.identity import Identity, command_line, look
from pytest_startup.launch.titles import Titles
from pytest_startup.ranks import TITLE
from pytest_startup.record import Fact, Failure

#: Seconds between two looks, and from the death to the failure: time for the log to name its cause.
LOOK = 0.2
GRACE = 0.5
#: Seconds for which a process that is on its way out (to give back much memory takes a while) is waited for, so that
#: the kernel tells how it ended.
LEAVES = 0.4
#: Seconds after which a killed process no longer explains why another one ended; vLLM's core once needed 14.
_EXPLAINS = 20.0

#: Kinds of deaths, the one that explains most last.
_WEIGHT = ("ended", "process-died", "crashed", "killed")

Feed = Callable[[Iterable[Fact], float], Failure | None]


class Deaths:
    """Feed it as ``divergence.Watcher``: it looks at the process table now and then, whatever the facts are.

    ``pids`` are all processes of the start; None (no table of this host shows them): nothing is ever found. ``phase``
    tells where the start stands, until its caller says that it is ``ready``. A process without a title of its own that
    ends is none of the engine's ranks, but one that was killed explains why one of them ended soon after it: ranks get
    their titles late. A context manager: it holds a file descriptor of each process that it has found, and of ranks
    alone once the engine is ready.
    """

    def __init__(
        self, pids: Callable[[], Collection[int]] | None, phase: Callable[[], str], node: str | None = None
    ) -> None:
        self._ready = False
        self._pids = pids
        self._phase = phase
        self._node = node
        self._known: dict[Identity, str] = {}
        self._handles: dict[Identity, int] = {}
        self._titles = Titles()
        #: When processes were first seen on their way out; seconds since launch.
        self._leaving: dict[Identity, float] = {}
        self._dead: Failure | None = None
        #: The last process without a title that was killed: a rank is one until it knows its number.
        self._untitled: Failure | None = None
        self._looked = 0.0

    def __enter__(self) -> Deaths:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles.values():
            if handle >= 0:
                os.close(handle)
        self._handles = {}

    def ready(self) -> None:
        """The engine serves from now on."""
        self._ready = True
        for identity in [i for i, called in self._known.items() if not TITLE.match(called)]:
            self._drop(identity)

    def last(self, now: float) -> Failure | None:
        """Look at once; who is dead counts at once."""
        if self._pids is not None and self._dead is None:
            self._dead = self._look(now, LEAVES)
        return self._dead

    def feed(self, _facts: Iterable[Fact], now: float) -> Failure | None:
        """``now``: seconds since launch. A Failure ``GRACE`` seconds after an engine process of the start has ended."""
        if self._pids is None:
            return None
        if self._dead is None and time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            self._dead = self._look(now)
        if self._dead is None or now - (self._dead.after_seconds or 0.0) < GRACE:
            return None
        return self._dead

    def _look(self, now: float, patience: float = 0.0) -> Failure | None:
        """``patience``: seconds to wait for those on their way out, so that the kernel tells how they ended."""
        until = time.monotonic() + patience
        while time.monotonic() < until and any(is_ending(identity) for identity in self._known):
            time.sleep(0.01)
        dead = []
        for identity, called in list(self._known.items()):
            process = look(identity.pid)
            if process is None and _exists(identity.pid):
                continue  # we can't look just now: too many files are open
            there = process is not None and process.identity == identity and process.state not in "ZX"
            if there and not is_ending(identity):
                continue
            since = self._leaving.setdefault(identity, now)
            if there and not patience and now - since < LEAVES:
                continue
            handle = self._handles.get(identity, -1)
            status = status_of(identity.pid, handle)
            failure = self._died(identity, called, status, since)
            if TITLE.match(called):
                dead.append(failure)
                continue
            self._drop(identity)
            self._titles.forget(identity)
            # Compilers' helpers are told to end, by TERM; nobody means well with KILL.
            if status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                self._untitled = failure
        if dead:
            # Several at one look: one that was killed takes others along, and these end by themselves, parents last.
            return self._explained(max(reversed(dead), key=lambda failure: _WEIGHT.index(failure.kind)))
        for pid in self._pids() if self._pids is not None else ():
            process = look(pid)
            if process is None or process.state in "ZX":
                continue
            line = command_line(pid)
            title = self._titles.of(process, line)
            called = f"a fork of pid {process.parent}" if title is None and TITLE.match(line) else line
            # A title changes once the rank is known; while a process is taken down it has none any more.
            self._known[process.identity] = title or self._known.get(process.identity, called)
            if self._ready and title is None and process.identity not in self._handles:
                del self._known[process.identity]
            elif process.identity not in self._handles:
                self._handles[process.identity] = handle_of(pid)
        return None

    def _drop(self, identity: Identity) -> None:
        """Forget this process."""
        del self._known[identity]
        if (handle := self._handles.pop(identity)) >= 0:
            os.close(handle)

    def _explained(self, found: Failure) -> Failure:
        """``found``, or the process without a title whose killing made it end."""
        killed = self._untitled
        if killed is None or found.kind in ("killed", "crashed"):
            return found
        apart = (found.after_seconds or 0.0) - (killed.after_seconds or 0.0)
        return replace(killed, after_seconds=found.after_seconds) if apart <= _EXPLAINS else found

    def _died(self, identity: Identity, called: str, status: int | None, now: float) -> Failure:
        kind = "process-died" if status is None else "ended"
        if status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) not in ASKED:
            kind = "crashed" if os.WTERMSIG(status) in CRASHES else "killed"
        phase = "serving" if self._ready else self._phase()
        when = (
            "while the engine served" if self._ready else "before the engine was ready, while its first process ran on"
        )
        helps, no_help = advice(kind, phase) if kind != "ended" else ((), ())
        return Failure(
            phase=phase,
            kind=kind,
            summary=f"{called} (pid {identity.pid}) {told(status)} {when}",
            rank=title["rank"] if (title := TITLE.match(called)) else None,
            node=self._node,
            after_seconds=round(now, 3),
            helps=helps,
            no_help=no_help,
        )


def _exists(pid: int) -> bool:
    """Is there a process or a corpse of this number? Needs no file."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def first_of(*feeds: Feed) -> Feed:
    """The first failure that any of them finds."""

    def feed(facts: Iterable[Fact], now: float) -> Failure | None:
        found = [one(facts, now) for one in feeds]  # each of them is fed, whatever the others find
        return next((failure for failure in found if failure is not None), None)

    return feed
