"""Durations, percentages and sizes; and strict YAML with and without the C parser."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from helpers_profile import MINIMAL, errors, read
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.profile import units
from pytest_startup.profile.yamltree import parse, scalar


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("20m", 1200), ("1h30m", 5400), ("1h2m3s", 3723), ("0.5s", 0.5), ("250ms", 0.25), ("0s", 0)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert units.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "1m1h", "-5s", "1.5h", "1h 30m", "1s\n", "\u0661s", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        units.duration(text)


@given(st.integers(0, 10**9))
def test_a_duration_shown_is_read_back(milli: int) -> None:
    assert units.duration(units.shown_duration(milli / 1000)) == pytest.approx(milli / 1000, abs=1e-6)


@pytest.mark.parametrize(("value", "part"), [("3%", 0.03), ("0.5%", 0.005), ("100%", 1.0), (0.25, 0.25), (0, 0.0)])
def test_fractions(value: Any, part: float) -> None:
    assert units.fraction(value) == pytest.approx(part)


@pytest.mark.parametrize(
    ("value", "size"), [("64k", 65536), ("16g", 16 << 30), ("1gb", 1 << 30), ("5b", 5), (4096, 4096)]
)
def test_sizes(value: Any, size: int) -> None:
    assert units.size(value) == size


@given(st.integers(1, 1 << 50))
def test_a_size_shown_is_read_back(count: int) -> None:
    assert units.size(units.shown_size(count)) == count


@pytest.mark.parametrize(
    ("kind", "value", "guess"),
    [
        ("duration", "1.5h", "1h30m"),
        ("duration", 90, "1m30s"),
        ("duration", "2 hours 5 minutes", "2h5m"),
        ("duration", "1:02:03", "1h2m3s"),
        ("duration", "soon", None),
        ("duration", True, None),
        ("fraction", "3 percent", "3%"),
        ("fraction", 250, None),
        ("size", "16 GiB", "16g"),
        ("size", "many", None),
        ("date", "2027.3.1", "2027-03-01"),
        ("date", "tomorrow", None),
    ],
)
def test_suggestions(kind: str, value: Any, guess: str | None) -> None:
    assert units.suggest(kind, value) == guess


@given(st.sampled_from(["duration", "fraction", "size", "date"]), st.text(max_size=45) | st.integers() | st.floats())
def test_a_suggestion_is_legal(kind: str, value: Any) -> None:
    guess = units.suggest(kind, value)
    if guess is not None and kind != "date":
        for one in guess.split(" or "):
            {"duration": units.duration, "fraction": units.fraction, "size": units.size}[kind](one)


@pytest.mark.parametrize(
    "word",
    [
        *("on", "off", "yes", "no", "y", "N", "1:30", "0755", "0x1f", "0o17", "1_000", "+5", ".inf", ".nan"),
        *("2026-11-29", "1e999", "=", "-", ".", "e5", "-e5", "9" * 41),
    ],
)
def test_plain_words_that_stay_text(word: str) -> None:
    assert scalar(word) == word


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *(("1", 1), ("-3", -3), ("0", 0), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0)),
        *(("true", True), ("FALSE", False), ("~", None), ("", None)),
    ],
)
def test_plain_words_with_a_value(word: str, value: Any) -> None:
    assert scalar(word) == value
    assert type(value) in type(scalar(word)).__mro__


def test_quotes_make_text() -> None:
    assert parse(b"a: '1'\nb: \"true\"\nc: |\n  1\n").data == {"a": "1", "b": "true", "c": "1\n"}


def test_marks_are_those_of_keys_and_entries() -> None:
    tree = parse(b"a:\n  - x\n  - {b: 1,\n     c: 2}\n")
    assert tree.mark(("a",)) == (1, 1)
    assert tree.mark(("a", 0)) == (2, 5)
    assert tree.mark(("a", 1, "c")) == (4, 6)
    assert tree.mark(("a", 1, "missing", "deeper")) == (3, 5), "the nearest above"


def test_without_the_c_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert read(MINIMAL).name == "small"
    assert errors(MINIMAL + "expct: &a 1\nschema: 1\n") == [
        "p.yaml:6: expct: unknown key; did you mean expect?",
        "p.yaml:6: expct: anchors (&a) are not supported; write the values out",
        "p.yaml:7: schema: key is given twice, first in line 1; remove one",
    ]
    assert errors("[" * 5000) == ["p.yaml:1:33: nested deeper than 32 levels"]
    assert errors('a: "\\ud800"\nb: "\\UFFFFFFFF"')[0].startswith("p.yaml:")
    assert errors("a: [")[0].startswith("p.yaml:1:5: not YAML: ")
