"""A stop that is made once, by whoever asks first; and that neither loses Ctrl-C nor is left half done by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pytest_startup.record import Leftover

#: Ends the engine, with KILL after so many seconds: what is released and what is not; and whether Ctrl-C came.
End = Callable[[float], tuple[tuple[Leftover, ...], bool]]


class StopOnce:
    """``limit``: ``deadlines.stop``."""

    def __init__(self, limit: float, end: End) -> None:
        self._limit, self._end = limit, end
        self._left: tuple[Leftover, ...] | None = None
        self._lock = threading.Lock()
        self._hurried = False

    @property
    def made(self) -> bool:
        """It is over, and the proof is there."""
        return self._left is not None

    def hurry(self) -> None:
        """One that is yet to come is a KILL at once; one that has begun hears Ctrl-C itself."""
        self._hurried = True

    def __call__(self, limit: float | None = None) -> Sequence[Leftover]:
        """Stop, or give the answer of the stop that was. ``limit`` replaces that of the profile (0: KILL at once).

        Ctrl-C is raised when the proof is there; not again when the answer is asked for again.
        """
        with self._lock:
            if self._left is None:
                limit = self._limit if limit is None else limit
                self._left, interrupted = self._end(0.0 if self._hurried else limit)
                if interrupted:
                    raise KeyboardInterrupt
            return self._left
