"""The two files of a node's log: the raw bytes as received, and the receive time of each line."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_startup.redact import RedactedStream


class LogFiles:
    """Writes ``engine.log`` and ``lines.tsv`` (``line<TAB>seconds since launch``).

    A line's row is written before its bytes, so that whoever follows the log always finds the time of a line it sees.
    Memory is constant. When the disk is full nothing is raised: ``error`` says what was lost. Secrets are taken out on
    the way (``redacted``), so that none is ever on disk; for that an unfinished line is held back until ``flush``.
    """

    def __init__(self, log: Path, lines: Path, redacted: RedactedStream) -> None:
        self.error: str | None = None
        self._line = 0
        self._fresh = True
        self._redacted = redacted
        self._held_since: float | None = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._log = os.open(log, flags, 0o644)
        try:
            self._lines = os.open(lines, flags, 0o644)
        except OSError:
            os.close(self._log)
            raise

    def feed(self, data: bytes, seconds: float) -> None:
        """More bytes, received at ``seconds`` since launch."""
        ready = self._redacted.feed(data)
        self._emit(ready, seconds)
        if data.endswith(b"\n"):
            self._held_since = None
        elif ready or self._held_since is None:
            self._held_since = seconds

    def flush(self) -> None:
        """Write what is held back of an unfinished line (a progress bar): nothing more came for a moment."""
        if self._held_since is not None:
            self._emit(self._redacted.close(), self._held_since)
            self._held_since = None

    def close(self) -> None:
        self.flush()
        for handle in (self._log, self._lines):
            with contextlib.suppress(OSError):  # a full disk may only be told now; ``error`` says it already
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
