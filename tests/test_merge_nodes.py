"""Logs of several nodes in the order of their printed times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.engines.merge import merged, stamp_of


def text(seconds, words="m"):
    return f"INFO 11-29 12:00:{seconds:02} [a.py:1] {words}\n".encode()


def order(nodes):
    return [(node, line) for node, lines in merged(nodes) for line in lines.decode().splitlines()]


@pytest.mark.parametrize(
    ("line", "same"),
    [
        (b"INFO 11-29 12:00:05 [a.py:1] m", True),
        (b"(EngineCore pid=1) INFO 11-29 12:00:05 [a.py:1] m", True),
        (b"2026-11-29T12:00:05.000000000Z INFO 11-29 13:00:05 [a.py:1] m", True),
        (b"[2026-11-29 12:00:05 TP0] m", True),
        (b"no time", False),
        (b"11-99 99:99:99", False),
    ],
)
def test_the_first_time_of_a_line(line, same):
    assert (stamp_of(line) == stamp_of(b"11-29 12:00:05")) is same
    assert (stamp_of(line) is not None) is same


def test_lines_without_a_time_stay_behind_theirs():
    head = text(1) + b"Traceback\n  File x\n" + text(5)
    worker = text(3) + b"more\n"
    assert [line[-4:] for _, line in order({"a": iter([head]), "b": iter([worker])})] == [
        "1] m",
        "back",
        "le x",
        "1] m",
        "more",
        "1] m",
    ]


@given(st.lists(st.integers(0, 59)), st.lists(st.integers(0, 59)), st.integers(1, 70))
def test_no_line_is_lost_and_each_node_keeps_its_order(first, second, size):
    logs = {"a": b"".join(map(text, first)), "b": b"".join(map(text, second)) + b"end without LF"}
    chunks = {node: iter([log[i : i + size] for i in range(0, len(log), size)]) for node, log in logs.items()}
    parts = {"a": b"", "b": b""}
    for node, lines in merged(chunks):
        parts[node] += lines
    assert parts == logs


def test_clocks_that_cannot_be_compared_leave_the_order_of_the_files():
    head = b"INFO 11-29 22:00:00 [a.py:1] m\nINFO 11-29 22:00:09 [a.py:1] m\n"
    worker = b"INFO 11-29 01:00:03 [a.py:1] m\n"
    assert [node for node, _ in order({"a": iter([head]), "b": iter([worker])})] == ["a", "a", "b"]
    assert [node for node, _ in order({"a": iter([b"x\n"]), "b": iter([worker])})] == ["a", "b"]
    assert order({"a": iter([]), "b": iter([b""])}) == []
