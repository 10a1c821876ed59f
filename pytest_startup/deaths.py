"""A rank that dies while its engine starts: seen in the process table, long before the API server gives up.

vLLM 0.26.0 took 3 s after a killed engine core, and 14 s after a killed worker, to end by itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable

from pytest_startup.launch.identity import Identity, command_line, look
from pytest_startup.record import Fact, Failure

#: What engines call their own processes: vLLM ``VLLM::EngineCore``, ``VLLM::Worker_TP1``; SGLang ``sglang::scheduler``.
#: Helpers of compilers and imports come and go, and have no such title.
ENGINE = re.compile(r"(?i)\b(?:vllm|sglang)::\S+")
#: Seconds between two looks, and from the death to the failure: time for the log to name its cause.
LOOK = 0.2
GRACE = 0.5

Feed = Callable[[Iterable[Fact], float], Failure | None]


class Deaths:
    """Feed it as ``divergence.Watcher``: it looks at the process table now and then, whatever the facts are.

    ``pids`` are all processes of the start; None (no table of this host shows them): nothing is ever found. ``phase``
    tells where the start stands.
    """

    def __init__(self, pids: Callable[[], Collection[int]] | None, phase: Callable[[], str]) -> None:
        self._pids = pids
        self._phase = phase
        self._known: dict[Identity, str] = {}
        self._dead: tuple[str, float] | None = None
        self._looked = 0.0

    def feed(self, _facts: Iterable[Fact], now: float) -> Failure | None:
        """``now``: seconds since launch. A Failure ``GRACE`` seconds after an engine process of the start has ended."""
        if self._pids is None:
            return None
        if self._dead is None and time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            self._dead = self._look(now)
        if self._dead is None or now - self._dead[1] < GRACE:
            return None
        what, since = self._dead
        return Failure(
            phase=self._phase(),
            kind="ended",
            summary=f"{what} died before the engine was ready, while its first process ran on",
            rank=what.partition("Worker_")[2].partition(" ")[0] or None,
            after_seconds=round(since, 3),
        )

    def _look(self, now: float) -> tuple[str, float] | None:
        for identity, called in self._known.items():
            process = look(identity.pid)
            if process is None or process.identity != identity or process.state in "ZX":
                return f"{called} (pid {identity.pid})", now
        for pid in self._pids() if self._pids is not None else ():
            process = look(pid)
            if process is None or process.state in "ZX":
                continue
            title = ENGINE.search(command_line(pid))
            if title is not None:  # the title changes once the rank is known
                self._known[process.identity] = title.group()
        return None


def first_of(*feeds: Feed) -> Feed:
    """The first failure that any of them finds."""

    def feed(facts: Iterable[Fact], now: float) -> Failure | None:
        found = [one(facts, now) for one in feeds]  # each of them is fed, whatever the others find
        return next((failure for failure in found if failure is not None), None)

    return feed
