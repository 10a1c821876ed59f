"""Following a log: every byte once, in order, with the time at which its line arrived."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.launch.base import NodeLog
from pytest_startup.observe.follow import Chunk, Follower, replay


def node_log(folder: Path) -> NodeLog:
    return NodeLog("head", folder / "engine.log", folder / "lines.tsv")


class Writer:
    """Writes as the launcher does: the rows of the lines that begin in a chunk, then the chunk."""

    def __init__(self, log: NodeLog) -> None:
        self.log, self.line, self.fresh = log, 0, True
        log.path.write_bytes(b"")
        log.lines.write_bytes(b"")

    def write(self, data: bytes, seconds: float) -> None:
        begun = int(self.fresh) + data.count(b"\n", 0, len(data) - 1)
        self.fresh = data.endswith(b"\n")
        with self.log.lines.open("ab") as rows:
            for _ in range(begun):
                self.line += 1
                rows.write(f"{self.line}\t{seconds:.3f}\n".encode())
        with self.log.path.open("ab") as file:
            file.write(data)


def split_lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return [p + b"\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def line_times(chunks: list[Chunk]) -> list[tuple[bytes, float | None]]:
    """Each line with the time of the chunk in which it began."""
    lines: list[tuple[bytes, float | None]] = []
    fresh = True
    for data, seconds in chunks:
        for piece in split_lines(data):
            if fresh:
                lines.append((piece, seconds))
            else:
                lines[-1] = (lines[-1][0] + piece, lines[-1][1])
            fresh = piece.endswith(b"\n")
    return lines


def test_nothing_there_yet(tmp_path: Path) -> None:
    with Follower(node_log(tmp_path)) as follower:
        assert list(follower.read()) == []
        writer = Writer(node_log(tmp_path))
        assert list(follower.read()) == []
        writer.write(b"a\n", 1.5)
        assert list(follower.read()) == [(b"a\n", 1.5)]
        assert list(follower.read()) == []


def test_lines_of_one_time_come_as_one_chunk_and_partial_lines_keep_theirs(tmp_path: Path) -> None:
    writer = Writer(node_log(tmp_path))
    writer.write(b"a\nb\nhalf ", 1.0)
    writer.write(b"a line\nc\n", 2.0)
    assert list(replay(node_log(tmp_path))) == [(b"a\nb\nhalf a line\n", 1.0), (b"c\n", 2.0)]


def test_a_line_that_is_read_in_two_halves_has_one_time(tmp_path: Path) -> None:
    log = node_log(tmp_path)
    writer = Writer(log)
    with Follower(log) as follower:
        writer.write(b"first ", 1.0)
        assert list(follower.read()) == [(b"first ", 1.0)]
        writer.write(b"half\nsecond\n", 2.0)
        assert list(follower.read()) == [(b"half\n", 1.0), (b"second\n", 2.0)]


@pytest.mark.parametrize("rows", [None, b"", b"garbage\n", b"1\t"], ids=["no file", "empty", "garbage", "torn row"])
def test_without_times_the_bytes_still_come(tmp_path: Path, rows: bytes | None) -> None:
    log = node_log(tmp_path)
    log.path.write_bytes(b"a\nb\n")
    if rows is not None:
        log.lines.write_bytes(rows)
    assert list(replay(log)) == [(b"a\nb\n", None)]


@given(
    st.lists(st.tuples(st.text("ab\r\n\n", min_size=1, max_size=12).map(str.encode), st.integers(0, 5)), max_size=20),
    st.integers(1, 4),
)
def test_every_byte_once_and_every_line_with_its_time(pieces: list[tuple[bytes, int]], every: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = node_log(Path(folder))
        writer = Writer(log)
        seen: list[Chunk] = []
        expected: list[tuple[bytes, float | None]] = []
        now = 0.0
        with Follower(log) as follower:
            for n, (data, later) in enumerate(pieces):
                now += later
                writer.write(data, now)
                for piece in split_lines(data):
                    if expected and not expected[-1][0].endswith(b"\n"):
                        expected[-1] = (expected[-1][0] + piece, expected[-1][1])
                    else:
                        expected.append((piece, now))
                if n % every == 0:
                    seen += follower.read()
            seen += follower.read()
        assert b"".join(d for d, _ in seen) == b"".join(d for d, _ in pieces)
        assert line_times(seen) == expected


def test_memory_is_constant(tmp_path: Path) -> None:
    log = node_log(tmp_path)
    writer = Writer(log)
    block = b"x" * 99 + b"\n"
    for n in range(40):
        writer.write(block * 4000, n / 10)
    tracemalloc.start()
    total = sum(len(d) for d, _ in replay(log))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == log.path.stat().st_size == 16_000_000
    assert peak < 4_000_000
