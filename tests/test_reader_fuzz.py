"""Whatever bytes come: no traceback, no hang, and never a fact whose line does not contain its value."""

from __future__ import annotations

import random

import pytest
from helpers_fuzz import fault, mutate, stock
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup.engines.lines import Line
from pytest_startup.engines.reader import Reader, read, statistic_fact
from pytest_startup.engines.registry import table, tables
from pytest_startup.engines.search import search_any, tree
from pytest_startup.engines.skim import Skimmer, Traffic

LOGS = stock()


@given(st.integers(0, 2**32), st.integers(1, 5000))
@settings(max_examples=200, deadline=None)
def test_mutated_logs(seed, chunk):
    data = mutate(random.Random(seed), LOGS)  # noqa: S311 (test input)
    assert fault(data, chunk) is None


@given(
    st.lists(
        st.sampled_from([b"\n", b"Model loading took ", b"12.5 GiB", b" and 3 seconds", b"\r", b"\xff", b"(", b"{"])
    )
)
@settings(max_examples=200, deadline=None)
def test_pieces_of_a_statement_in_any_order(pieces):
    assert fault(b"".join(pieces), 7) is None


def test_the_property_itself_notices_a_wrong_value():
    class Wrong(Reader):
        def feed(self, *args, **more):
            facts = super().feed(*args, **more)
            return [type(f)(f.name, 7, f.evidence, f.unit) for f in facts]

    facts, _ = read([b"GPU KV cache size: 94,784 tokens\n"], Wrong(tables("vllm")))
    assert facts[0].value == 7
    from helpers_fuzz import _holds

    assert not _holds("GPU KV cache size: 94,784 tokens", 7)
    assert _holds("GPU KV cache size: 94,784 tokens", 94784)


RATE = st.sampled_from(["0.0", "51.9", "100.0", "", "x", "1e3", "5."])
TAIL = st.sampled_from(
    ["", ", External prefix cache hit rate: 97.7%", ", MM cache hit rate: 2.0%", ", Other: 1%", "%", " "]
)
FRONT = st.sampled_from(
    [
        "",
        "(APIServer pid=7) ",
        "2026-11-29T16:47:30.07Z (APIServer pid=7) ",
        "\x1b[36m(APIServer pid=7)\x1b[0m ",
        "vllm-1  | ",
    ]
)


@given(FRONT, RATE, TAIL, st.sampled_from([0, 1]), st.sampled_from([0, 3]))
@settings(max_examples=150, deadline=None)
def test_the_quick_way_and_the_slow_way_state_the_same(front, rate, tail, running, waiting):
    text = (
        f"{front}INFO 11-29 12:10:00 [loggers.py:310] Engine 000: Avg prompt throughput: 11.0 tokens/s, Avg generation "
        f"throughput: 7.0 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: 1.0%, "
        f"Prefix cache hit rate: {rate}%{tail}"
    )
    data = text.encode() + b"\n"
    traffic = Traffic(data, 0, len(data))
    quick, odd = Skimmer([], []).statistics(traffic, 1, 1, (None, 0, None))
    assert traffic.total == 1
    if odd or traffic.others:
        return
    from pytest_startup.engines.framing import frame

    (line,) = frame(text.encode(), 1)
    slow = [f for f in table("vllm").facts(line, "x") if f.name.startswith("cache.")]
    assert [statistic_fact(s, "x") for s in quick] == slow


@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=8), st.binary(max_size=60))
def test_the_tree_finds_what_any_literal_finds(literals, data):
    import re

    found = re.search(tree(literals), data)
    expected = any(literal in data for literal in literals)
    assert bool(found) == expected
    assert bool(search_any(literals)(data, 0)) == expected


@pytest.mark.parametrize("line", ["", " ", "(", "[2026-11-29 12:00:00", "{}"])
def test_odd_lines(line):
    assert table("vllm").facts(Line(1, line.encode(), line, line), "x") == []
