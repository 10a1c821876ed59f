"""Judges a generated text by itself: empty, looping, flooded, broken characters, leaked control tokens. Pure.

The limits are set so that code, tables, poems with refrains, counting and CJK text pass: a fault must be gross. A
marker that the prompt itself holds is not held against the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Blemish:
    """``kind``: empty, flood, loop, replacement-character, control-character, control-token."""

    kind: str
    reason: str
    excerpt: str


#: Characters that stand in long rows on purpose: rules, tables, underlines, indentation, binary figures.
_RULES = frozenset("-=_*#.~+|─━═·… \t\n0123456789")
_RUN, _RULE_RUN = 24, 240
_LONGEST_UNIT = 200  # words; keeps the search short
_SAME = re.compile(rf"(?s)(.)\1{{{_RUN - 1},}}")
_TOKEN = re.compile(r"[^\W_]+|_+|[^\w\s]")
_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")  # scripts without spaces: every character is a unit
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
#: Markers of chat templates and vocabularies that no user should see.
_MARKERS = re.compile(
    r"<\|[A-Za-z][A-Za-z0-9_ ]{0,40}\|>"  # <|im_end|>, <|eot_id|>, <|endoftext|> …
    r"|<\uff5c[^\uff5c>\n]{1,40}\uff5c>"  # DeepSeek, with full-width bars
    r"|\[/?INST\]|<</?SYS>>|\[/?(?:TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|SYSTEM_PROMPT)\]"
    r"|<(?:start|end)_of_turn>|<(?:unk|pad|bos|eos|mask)>|\[(?:PAD|UNK|CLS|SEP|MASK)\]"
    r"|</s>|(?<!\w)<s>"  # not vector<s>
)
_STRUCK = re.compile(r"<s>[^<]*</s>")  # HTML that strikes text out


def blemishes(text: str, *, prompt: str = "", cut: bool = False) -> tuple[Blemish, ...]:
    """What is wrong with ``text`` in itself, at most one of each kind; empty: nothing gross.

    ``cut``: the text ended at the token limit, so that a broken character at its very end is no fault.
    """
    if not text.strip():
        what = "only white space" if text else "empty"
        return (Blemish("empty", f"the text is {what}", repr(text[:40])),)
    found = [*_flood(text), *_replacement(text, cut), *_control_characters(text), *_markers(text, prompt)]
    if not any(b.kind == "flood" for b in found):
        found += _loop(text)
    return tuple(found)


def _flood(text: str) -> Iterator[Blemish]:
    """One character over and over: from 24 times on, from 240 for those that make rules and tables."""
    longest: re.Match[str] | None = None
    for match in _SAME.finditer(text):
        limit = _RULE_RUN if match[1] in _RULES else _RUN
        if len(match[0]) >= limit and (longest is None or len(match[0]) > len(longest[0])):
            longest = match
    if longest is not None:
        n = len(longest[0])
        yield Blemish("flood", f"{longest[1]!r} {n} times in a row", _around(text, longest.start(), longest.end()))
        return
    bare = "".join(text.split())
    if len(bare) >= 32 and len(set(bare)) == 1:
        yield Blemish("flood", f"nothing but {bare[0]!r}, {len(bare)} times", _around(text, 0, len(text)))


def _replacement(text: str, cut: bool) -> Iterator[Blemish]:
    body = text.rstrip("\ufffd") if cut and len(text) - len(text.rstrip("\ufffd")) <= 3 else text
    count = body.count("\ufffd")
    if count:
        at = body.index("\ufffd")
        yield Blemish("replacement-character", f"{count} × U+FFFD: broken UTF-8", _around(body, at, at + 1))


def _control_characters(text: str) -> Iterator[Blemish]:
    found = _CONTROL.findall(text)
    if found:
        at = text.index(found[0])
        yield Blemish(
            "control-character", f"{len(found)} × control character U+{ord(found[0]):04X}", _around(text, at, at + 1)
        )


def _markers(text: str, prompt: str) -> Iterator[Blemish]:
    struck = [m.span() for m in _STRUCK.finditer(text)]
    for match in _MARKERS.finditer(text):
        inside = any(a <= match.start() < b for a, b in struck)
        if match[0] not in prompt and not (match[0] in ("<s>", "</s>") and inside):
            yield Blemish("control-token", f"leaked {match[0]}", _around(text, match.start(), match.end()))
            return


def _loop(text: str) -> Iterator[Blemish]:
    """The same words again and again up to the end of the text (or, in the middle, twice as often)."""
    units = list(_units(text))
    words = [text[a:b] for a, b in units]
    for period in range(1, min(_LONGEST_UNIT, len(words) // 3) + 1):
        begin = end = 0
        run = 0
        for i in range(period, len(words) + 1):
            if i < len(words) and words[i] == words[i - period]:
                run += 1
                continue
            covered = run + period
            at_end = i == len(words)
            if run and _is_loop(words[i - period : i], covered, at_end):
                begin, end = units[i - covered][0], units[i - 1][1]
                break
            run = 0
        if end:
            unit = text[begin : units[next(k for k, u in enumerate(units) if u[0] == begin) + period - 1][1]]
            times = covered // period
            yield Blemish("loop", f"{_short(unit)!r} {times} times in a row", _around(text, begin, end))
            return


def _is_loop(unit: list[str], covered: int, at_end: bool) -> bool:
    """Is ``covered`` words of repeated ``unit`` a loop? Units without letters (tables, figures) need far more."""
    period = len(unit)
    times = covered / period
    if period == 1:
        least = 10.0
    elif period <= 3:
        least = 8.0
    elif period < 10:
        least = 5.0
    else:
        least = 4.0 if period < 20 else 3.0
    characters = set("".join(unit))
    if len(characters) == 1 and characters <= _RULES:
        return False  # a rule or a column of figures; a flood has its own limit
    if not any(c.isalpha() for c in characters):
        least = 60.0 / period + 10.0
    return times >= (least if at_end else 2 * least) and covered >= 12


def _units(text: str) -> Iterator[tuple[int, int]]:
    """Spans of words, of punctuation marks, and of single characters of scripts without spaces."""
    for match in _TOKEN.finditer(text):
        if _WIDE.search(match[0]):
            yield from ((i, i + 1) for i in range(match.start(), match.end()))
        else:
            yield match.span()


def _around(text: str, begin: int, end: int, margin: int = 30, limit: int = 120) -> str:
    piece = text[max(0, begin - margin) : min(len(text), end + margin)]
    return _short(piece, limit)


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
