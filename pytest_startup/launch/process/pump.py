"""Moves the engine's output from the pipe to its raw log, and notes when each line began to arrive."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup.launch.logfiles import LogFiles

if TYPE_CHECKING:
    from pytest_startup.redact import RedactedStream

_PIPE_SIZE = 1 << 20


class Pump:
    """Reads a non-blocking pipe end into a node's ``LogFiles``.

    Seconds count from ``launched_at`` (``time.monotonic()``). When the log can't be written the pipe is still emptied,
    so that the engine never blocks. An unfinished line is held back until ``flush``, which is due whenever the pipe has
    been quiet for a moment.
    """

    #: Bytes that are read at once, at most.
    chunk = 1 << 18

    def __init__(self, pipe: int, log: Path, lines: Path, launched_at: float, redacted: RedactedStream) -> None:
        self.pipe = pipe
        self.closed = False
        self.received = 0
        self.moved_at = time.monotonic()
        self._launched_at = launched_at
        self._files = LogFiles(log, lines, redacted)
        os.set_blocking(pipe, False)
        with contextlib.suppress(OSError):  # the user's limit for pipes is used up: a small one costs more wake-ups
            fcntl.fcntl(pipe, getattr(fcntl, "F_SETPIPE_SZ", 1031), _PIPE_SIZE)

    @property
    def error(self) -> str | None:
        """What was lost, when the log could not be written."""
        return self._files.error

    def pump(self) -> bool:
        """Move one chunk; False when nothing is there now or the pipe has ended (``closed``)."""
        if self.closed:
            return False
        try:
            data = os.read(self.pipe, self.chunk)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            self.close()
            return False
        self.received += len(data)
        self.moved_at = time.monotonic()
        self._take(data, self.moved_at - self._launched_at)
        return True

    def _take(self, data: bytes, seconds: float) -> None:
        """What has been read, at ``seconds`` since launch, goes where the log is written."""
        self._files.feed(data, seconds)

    def flush(self) -> None:
        """Write what is held back of an unfinished line (a progress bar): nothing more came for a moment."""
        self._files.flush()

    def drain(self) -> None:
        """Move what is in the pipe now; not endless when somebody goes on writing."""
        limit = self.received + 4 * _PIPE_SIZE
        while self.received < limit and self.pump():
            pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._files.close()
            os.close(self.pipe)
