"""A thread that watches an engine while it is asked: when it or one of its ranks ends, so do the requests in flight.

vLLM 0.26.0 left requests open for 9.6 s after one of two workers was killed while it served: its core waits for the
other one to end first.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_startup.deaths import LOOK
from pytest_startup.ends import failure_of

if TYPE_CHECKING:
    from pytest_startup.deaths import Deaths
    from pytest_startup.launch.base import Running
    from pytest_startup.record import Failure


class Vigil:
    """A context manager around the requests. ``failure``: how the engine, or a rank, ended meanwhile; None: it did not.

    ``deaths`` has watched the start until now, and is fed here from now on. ``cancel`` is called once, from the thread,
    behind the moment at which ``failure`` is set.
    """

    def __init__(self, running: Running, deaths: Deaths, cancel: Callable[[], None]) -> None:
        self._running, self._deaths, self._cancel = running, deaths, cancel
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="startup-vigil", daemon=True)
        self.failure: Failure | None = None

    def __enter__(self) -> Vigil:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.failure is None:
            self.failure = self._deaths.last(self._now())

    def _watch(self) -> None:
        while not self._over.is_set():
            ended = self._running.exited()
            if ended is None:
                with contextlib.suppress(OSError):  # too many files are open just now
                    self.failure = self._deaths.feed((), self._now())
            else:
                self.failure = failure_of(ended, "while it served", "serving", round(self._now(), 3))
            if self.failure is not None:
                self._cancel()
                return
            self._over.wait(LOOK)

    def _now(self) -> float:
        return time.monotonic() - self._running.launched_at
