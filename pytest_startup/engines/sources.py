"""Where log bytes come from: files, standard input, gzip and zstandard; and logs that run newest first."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, cast

from pytest_startup.engines.framing import frame
from pytest_startup.engines.stamps import newest_first

CHUNK = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: So much of the beginning is looked at to tell the order of a log.
_PROBE = 1 << 16


class SourceError(Exception):
    """The log can't be read; the message names the file and the reason."""


@contextmanager
def open_source(path: str) -> Iterator[IO[bytes]]:
    """A binary stream of the log at ``path`` (``-`` standard input), unpacked where it is packed.

    Raises SourceError. What is packed is told by the first bytes, not by the name.
    """
    with ExitStack() as stack:
        if path == "-" and sys.stdin is None:
            raise SourceError("-: standard input is closed")
        try:
            raw = sys.stdin.buffer if path == "-" else stack.enter_context(open(path, "rb"))
            head = cast("io.BufferedReader", raw).peek(4)[:4]
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror or error}") from None
        if head.startswith(_GZIP):
            import gzip

            yield cast("IO[bytes]", stack.enter_context(gzip.open(raw, "rb")))
        elif head == _ZSTD:
            yield stack.enter_context(_zstandard(raw, path))
        else:
            yield raw


def _zstandard(raw: IO[bytes], path: str) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise SourceError(f"{path}: reading .zst needs the package zstandard: pip install zstandard") from None
    return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))


def chunks(stream: IO[bytes], path: str) -> Iterator[bytes]:
    """The stream in pieces of at most 256 KiB. Raises SourceError for damaged packing and read errors."""
    while True:
        try:
            data = cast("io.BufferedReader", stream).read1(CHUNK)
        except (OSError, EOFError) as error:
            raise SourceError(f"{path}: {error}") from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("zlib", "zstandard"):
                raise SourceError(f"{path}: {error}") from None
            raise
        if not data:
            return
        yield data


def beginning(pieces: Iterator[bytes]) -> tuple[bytes, SourceError | None]:
    """Enough of a log to tell its order by; and the error that ended it early, if one did."""
    head: list[bytes] = []
    try:
        for data in pieces:
            head.append(data)
            if sum(map(len, head)) >= _PROBE:
                break
    except SourceError as error:
        return b"".join(head), error
    return b"".join(head), None


def is_newest_first(head: bytes) -> bool:
    """Do the printed times at the beginning of a log run backwards?"""
    lines = head[:_PROBE].split(b"\n")[:400]
    return newest_first(frame(raw, 0)[0].stamp for raw in lines if raw)


def spooled(head: bytes, rest: Iterator[bytes]) -> IO[bytes]:
    """All bytes in an unnamed temporary file, so that they can be read backwards."""
    import tempfile

    out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by the caller)
    out.write(head)
    for data in rest:
        out.write(data)
    return out


def backwards(stream: IO[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """The lines of a seekable file from the last to the first, in groups: number of the group's first line (which is
    the highest), and the lines."""
    size = stream.seek(0, 2)
    total = 0
    stream.seek(0)
    last = b"\n"
    while data := stream.read(CHUNK):
        total += data.count(b"\n")
        last = data[-1:]
    number = total + (last != b"\n")
    carried = b""
    position = size
    first = True
    while position:
        step = min(CHUNK, position)
        position -= step
        stream.seek(position)
        lines = (stream.read(step) + carried).split(b"\n")
        carried = lines.pop(0) if position else b""
        lines.reverse()
        if first and lines and lines[0] == b"":
            lines.pop(0)
        first = first and not lines
        if lines:
            yield number, lines
            number -= len(lines)
