"""Moves the engine's output from the pipe to its raw log, and notes when each line began to arrive."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_startup.redact import RedactedStream

_CHUNK = 1 << 18
_PIPE_SIZE = 1 << 20


class Pump:
    """Reads a non-blocking pipe end into ``engine.log`` (bytes as received) and ``lines.tsv`` (``line<TAB>seconds``).

    Seconds count from ``launched_at`` (``time.monotonic()``). A line's row is written before its bytes, so that
    whoever follows the log always finds the time of a line it sees. Memory is constant. When the disk is full or the
    log can't be written the pipe is still emptied, so that the engine never blocks: ``error`` says what was lost.
    Secrets are taken out on the way (``redacted``), so that none is ever on disk; for that an unfinished line is held
    back until ``flush``, which is due whenever the pipe has been quiet for a moment.
    """

    def __init__(self, pipe: int, log: Path, lines: Path, launched_at: float, redacted: RedactedStream) -> None:
        self.pipe = pipe
        self.closed = False
        self.error: str | None = None
        self.received = 0
        self._launched_at = launched_at
        self._line = 0
        self._fresh = True
        self._redacted = redacted
        self._held_since: float | None = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._log = os.open(log, flags, 0o644)
        self._lines = os.open(lines, flags, 0o644)
        os.set_blocking(pipe, False)
        with contextlib.suppress(OSError):  # the user's limit for pipes is used up: a small one costs more wake-ups
            fcntl.fcntl(pipe, getattr(fcntl, "F_SETPIPE_SZ", 1031), _PIPE_SIZE)

    def pump(self) -> bool:
        """Move one chunk; False when nothing is there now or the pipe has ended (``closed``)."""
        if self.closed:
            return False
        try:
            data = os.read(self.pipe, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            self.close()
            return False
        self.received += len(data)
        now = time.monotonic() - self._launched_at
        ready = self._redacted.feed(data)
        self._emit(ready, now)
        if data.endswith(b"\n"):
            self._held_since = None
        elif ready or self._held_since is None:
            self._held_since = now
        return True

    def flush(self) -> None:
        """Write what is held back of an unfinished line (a progress bar): nothing more came for a moment."""
        if self._held_since is not None:
            self._emit(self._redacted.close(), self._held_since)
            self._held_since = None

    def drain(self) -> None:
        """Move what is in the pipe now; not endless when somebody goes on writing."""
        limit = self.received + 4 * _PIPE_SIZE
        while self.received < limit and self.pump():
            pass

    def close(self) -> None:
        if not self.closed:
            self.flush()
            self.closed = True
            for handle in (self.pipe, self._log, self._lines):
                os.close(handle)

    def _emit(self, data: bytes, seconds: float) -> None:
        """``seconds``: when all but the first line of ``data`` began to arrive; that one may have been held back."""
        if not data:
            return
        rows = []
        if self._fresh:
            self._line += 1
            rows.append(f"{self._line}\t{seconds if self._held_since is None else self._held_since:.3f}\n")
        for _ in range(data.count(b"\n", 0, len(data) - 1)):
            self._line += 1
            rows.append(f"{self._line}\t{seconds:.3f}\n")
        self._fresh = data.endswith(b"\n")
        self._write(self._lines, "".join(rows).encode())
        self._write(self._log, data)

    def _write(self, handle: int, data: bytes) -> None:
        view = memoryview(data)
        while view and self.error is None:
            try:
                view = view[os.write(handle, view) :]
            except OSError as error:
                self.error = f"the log is incomplete, {len(view)} or more bytes are lost: {error.strerror}"
