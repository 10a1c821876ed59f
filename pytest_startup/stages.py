"""Tells what a long step is doing, about every 20 s, while the thread that does it is busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Seconds between two progress lines.
TELL = 20.0


class Stages:
    """``with Stages(tell, "restart-1") as stages: stages.now("quality prompts"); …``

    A stage that lasts longer than ``interval`` (default ``TELL``) is told, again and again, from a thread of its own:
    ``restart-1: quality prompts, 21 s``. ``now("")`` is silent, for steps that tell by themselves.
    """

    def __init__(self, tell: Callable[[str], None], name: str, interval: float | None = None) -> None:
        self._tell, self._name, self._interval = tell, name, TELL if interval is None else interval
        self._stage, self._since = "", time.monotonic()
        self._news = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="startup-stages", daemon=True)

    def now(self, stage: str) -> None:
        """Another stage begins."""
        with self._news:
            self._stage, self._since = stage, time.monotonic()
            self._news.notify_all()

    def __enter__(self) -> Stages:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._thread.join(5.0)

    def _run(self) -> None:
        with self._news:
            while not self._closed:
                woken = self._news.wait(self._interval)
                if not woken and self._stage:
                    self._tell(f"{self._name}: {self._stage}, {time.monotonic() - self._since:.0f} s")
