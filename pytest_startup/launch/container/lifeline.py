"""An open request to the daemon about one container: it breaks the moment the daemon goes, however soon it is back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere, Stream


class Lifeline:
    """The daemon's stream of events of ``container``. ``news`` is called at each event and when the stream breaks.

    Looking again and again does not see a daemon that is killed and back between two looks; an open connection does.
    A daemon without events (a proxy that forbids them) is only looked at.
    """

    def __init__(self, daemon: Daemon, container: str, news: Callable[[], None]) -> None:
        self._daemon, self._container, self._news = daemon, container, news
        self._stream: Stream | None = None
        self._broken: float | None = None
        self._closed = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open it, again after a break. Where that fails nothing is watched until the next ``open``."""
        with self._lock:
            if self._closed:
                return
            self._broken = None
        try:
            stream = self._daemon.events(self._container)
        except (DaemonLost, DaemonRefused, NotThere):
            return
        with self._lock:
            self._stream = stream
            closed = self._closed
        if closed:
            stream.close()
            return
        threading.Thread(target=self._read, args=(stream,), name="startup-container-events", daemon=True).start()

    @property
    def broken(self) -> float | None:
        """``time.monotonic()`` of the break of the stream that was opened last; None: it holds, or there is none."""
        return self._broken

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._closed = True
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _read(self, stream: Stream) -> None:
        try:
            for _ in stream:
                self._news()
        except (DaemonLost, DaemonRefused, NotThere):
            pass  # how it broke does not matter
        finally:
            stream.close()
        with self._lock:
            if self._stream is stream:
                self._stream, self._broken = None, time.monotonic()
        self._news()
