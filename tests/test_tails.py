"""The last lines of a log: numbers and times are right however long it is, and odd bytes do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.launch.base import NodeLog
from pytest_startup.tails import last_lines


def log_of(folder: Path, data: bytes, times: bool = True) -> NodeLog:
    log = NodeLog("head", folder / "engine.log", folder / "lines.tsv")
    log.path.write_bytes(data)
    count = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    log.lines.write_text("".join(f"{n}\t{n / 10:.3f}\n" for n in range(1, count + 1)) if times else "")
    return log


def shown(log: NodeLog, count: int = 3) -> list[tuple[int | None, str, float | None]]:
    return [(e.line, e.text, e.seconds) for e in last_lines(log, count)]


CASES = {
    "fewer than asked for": (b"one\ntwo\n", [(1, "one", 0.1), (2, "two", 0.2)]),
    "empty lines are left out": (b"one\n\n \ntwo\n\n", [(1, "one", 0.1), (4, "two", 0.4)]),
    "an unfinished line": (b"one\ntwo", [(1, "one", 0.1), (2, "two", 0.2)]),
    "colours": (b"\x1b[36mone\x1b[0m\n", [(1, "one", 0.1)]),
    "the last state of a bar": (b"bar 1%\rbar 50%\rbar 99%\n", [(1, "bar 99%", 0.1)]),
    "a carriage return at the end": (b"one\r\n", [(1, "one", 0.1)]),
    "no text": (b"\n\n\n", []),
    "nothing": (b"", []),
    "broken UTF-8": (b"a\xff\n", [(1, "a\ufffd", 0.1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_last_lines(tmp_path: Path, name: str) -> None:
    data, expected = CASES[name]
    assert shown(log_of(tmp_path, data)) == expected


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = log_of(tmp_path, b"".join(b"line %d of many\n" % n for n in range(1, 50_001)))
    assert shown(log, 2) == [(49_999, "line 49999 of many", 4999.9), (50_000, "line 50000 of many", 5000.0)]
    assert last_lines(log, 1)[0].place() == "head/engine.log:50000"
    assert last_lines(log, 1)[0].node == "head"


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_a_line_without_end_is_shortened(tmp_path: Path, end: bytes) -> None:
    (line,) = last_lines(log_of(tmp_path, b"x" * 300_000 + end), 5)
    assert len(line.text) == 400
    assert line.line == 1


def test_damaged_times_do_no_harm(tmp_path: Path) -> None:
    log = log_of(tmp_path, b"one\ntwo\n")
    log.lines.write_bytes(b"1\t0.1\n2\tnever\nx\ty\n\xff")
    assert [e.text for e in last_lines(log, 5)] == ["one", "two"]


@pytest.mark.parametrize("missing", ["engine.log", "lines.tsv"])
def test_a_log_that_is_not_there_gives_none(tmp_path: Path, missing: str) -> None:
    log = log_of(tmp_path, b"one\n")
    (tmp_path / missing).unlink()
    assert last_lines(log, 5) == ()


def test_without_times_there_are_no_numbers(tmp_path: Path) -> None:
    assert shown(log_of(tmp_path, b"one\ntwo\n", times=False)) == [(None, "one", None), (None, "two", None)]


@given(st.lists(st.sampled_from([b"text", b"", b" ", b"a\rb", b"\xff\x00"]), max_size=40), st.integers(1, 6))
def test_numbers_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], count: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    found = last_lines(log_of(folder, b"".join(line + b"\n" for line in lines)), count)
    wanted = [n for n, line in enumerate(lines, 1) if line.strip()][-count:]
    assert [e.line for e in found] == wanted
