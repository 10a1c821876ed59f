"""Follows a log while it is written, or reads a finished one again: chunks of bytes with their receive time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pytest_startup.observe.sources import NodeLog

BLOCK = 1 << 18
Chunk = tuple[bytes, "float | None"]


class Follower:
    """Reads ``log.path`` with the times of ``log.lines``, from where the last read ended. Constant memory.

    A chunk holds one or more whole or partial lines that were received at the same time; joined, the chunks are the
    log, byte for byte. The time is that of the line's first byte (seconds since launch); None where the launcher left
    no time. Neither file need exist yet.
    """

    def __init__(self, log: NodeLog) -> None:
        self.log = log
        self.offset = 0
        self._data: IO[bytes] | None = None
        self._times = _Times(log.lines)

    def read(self) -> Iterator[Chunk]:
        """All that is there now, up to the present end of the log."""
        if self._data is None:
            try:
                self._data = open(self.log.path, "rb", buffering=0)  # noqa: SIM115 - kept open between reads
            except FileNotFoundError:
                return
        while block := self._data.read(BLOCK):
            self.offset += len(block)
            yield from self._timed(block)

    def close(self) -> None:
        if self._data is not None:
            self._data.close()
            self._data = None
        self._times.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _timed(self, block: bytes) -> Iterator[Chunk]:
        """``block``, split where the receive time changes."""
        begin = at = 0
        while at < len(block):
            end = block.find(b"\n", at) + 1 or len(block)
            if self._times.seconds_changed():
                if at > begin:
                    yield block[begin:at], self._times.before
                begin = at
            if block[end - 1] == 0x0A:
                self._times.next_line()
            at = end
        yield block[begin:], self._times.seconds


class _Times:
    """The receive time of the current line, from a ``lines.tsv`` that is read in step with the log."""

    def __init__(self, path: Path) -> None:
        self.seconds: float | None = None
        self.before: float | None = None
        self._path = path
        self._file: IO[bytes] | None = None
        self._rows: list[bytes] = []
        self._next = 0
        self._rest = b""
        self._due = True

    def next_line(self) -> None:
        self._due = True

    def seconds_changed(self) -> bool:
        """Take the row of a line that begins here, if one does; does its time differ from the line's before?"""
        if not self._due:
            return False
        self._due = False
        self.before = self.seconds
        row = self._row()
        if row is not None:
            self.seconds = row
        return self.seconds != self.before

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _row(self) -> float | None:
        if self._next >= len(self._rows) and not self._more():
            return None
        row = self._rows[self._next]
        self._next += 1
        try:
            return float(row.partition(b"\t")[2])
        except ValueError:
            return None

    def _more(self) -> bool:
        if self._file is None:
            try:
                self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 - kept open between reads
            except FileNotFoundError:
                return False
        block = self._rest + (self._file.read(BLOCK) or b"")
        whole, newline, self._rest = block.rpartition(b"\n")
        self._rows, self._next = (whole.split(b"\n") if newline else []), 0
        return bool(self._rows)


def replay(log: NodeLog) -> Iterator[Chunk]:
    """A finished log, from its beginning to its end."""
    with Follower(log) as follower:
        yield from follower.read()
