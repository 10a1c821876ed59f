"""Moves the output of an engine on a node over the link; and a link that never blocks whoever speaks on it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
from pathlib import Path

from pytest_startup.launch.process.pump import Pump
from pytest_startup.redact import Redactor

_CHUNK = 1 << 16
#: Bytes that wait for a link that is stuck; what comes after them is lost, and said to be lost.
MOST_WAITING = 32 << 20


class Out:
    """JSON lines on stdout, written as far as the other side takes them; the rest waits. Thread-safe."""

    def __init__(self, handle: int = 1) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._waiting = bytearray()
        os.set_blocking(handle, False)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def say(self, event: str, **members: object) -> None:
        with self._lock:
            self._waiting += json.dumps({"event": event, **members}).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write what can be written now."""
        with self._lock, contextlib.suppress(BlockingIOError, InterruptedError):
            while self._waiting:
                try:
                    done = os.write(self._handle, self._waiting[:_CHUNK])
                except BrokenPipeError:  # nobody listens any more
                    self._waiting.clear()
                    return
                del self._waiting[:done]

    def drain(self, limit: float) -> None:
        """Write all, within ``limit`` seconds."""
        end = time.monotonic() + limit
        self.flush()
        while self._waiting and time.monotonic() < end:
            time.sleep(0.01)
            self.flush()


class LinkPump(Pump):
    """Sends what an engine prints: ``log`` events with the bytes and the seconds since launch at which they came.

    Nothing is written on the node, and no secret is taken out here: that is done where the log is written.
    """

    chunk = _CHUNK

    def __init__(self, pipe: int, launched_at: float, out: Out) -> None:
        super().__init__(pipe, Path(os.devnull), Path(os.devnull), launched_at, Redactor(()).stream())
        self._out = out
        self._lost = 0

    @property
    def error(self) -> str | None:
        return f"the log is incomplete, {self._lost} bytes came while the link was stuck" if self._lost else None

    def _take(self, data: bytes, seconds: float) -> None:
        if self._out.waiting > MOST_WAITING:
            self._lost += len(data)
        else:
            self._out.say("log", seconds=seconds, data=base64.b64encode(data).decode())

    def flush(self) -> None:
        """Nothing is held back here."""
