"""Skims the traffic of a serving engine: which of many lines are worth reading, and what statistics lines state."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pytest_startup.engines.framing import frame

#: The end of an access line that was answered well: the bulk of a serving log, and no statement.
_WELL = b' HTTP/1.1" 200 OK\n'
_STATISTICS = b"Avg prompt throughput: "
_RATE = b", Prefix cache hit rate: "
_EXTERNAL = b", External prefix cache hit rate: "
_HEADER = b"INFO "


class Statistic(NamedTuple):
    """What one statistics line states of one hit rate: the short form of a ``Fact``."""

    name: str
    value: float
    line: int
    text: str
    process: str | None
    node: str | None
    start: int
    seconds: float | None


class Traffic(NamedTuple):
    """A block of lines, sorted. Numbers are indices of lines in the block."""

    total: int
    statistics: list[tuple[int, bytes]]
    others: list[tuple[int, bytes]]


def sort(block: bytes) -> Traffic:
    """Take whole lines (the last without LF) apart. Access lines that were answered with 200 are only counted."""
    statistics: list[tuple[int, bytes]] = []
    others: list[tuple[int, bytes]] = []
    parts = (block + b"\n").split(_WELL)
    more = 0
    for index in [i for i, part in enumerate(parts) if b"\n" in part]:
        pieces = parts[index].split(b"\n")
        pieces.pop()  # the head of an access line; nothing behind the last one
        number = index + more
        for piece in pieces:
            (statistics if _STATISTICS in piece else others).append((number, piece))
            number += 1
        more += len(pieces)
    return Traffic(len(parts) - 1 + more, statistics, others)


class Skimmer:
    """Finds the lines that hold an anchor of a rule, or of the diagnosis, among lines of traffic."""

    def __init__(self, anchors: Sequence[str], diagnosis: Sequence[str | bytes]) -> None:
        self._told = {a if isinstance(a, bytes) else a.encode() for a in diagnosis}
        self._literals = self._told | {a.encode() for a in anchors}
        self._search: Callable[..., Any] | None = None
        self._heads: dict[bytes, tuple[str | None, bool]] = {}

    def hits(self, lines: Sequence[bytes]) -> list[int]:
        """Indices of the lines that hold a literal."""
        if self._search is None:
            self._search = search_any(self._literals)
        block = b"\n".join(lines)
        ends = list(itertools.accumulate(len(line) + 1 for line in lines))
        out: list[int] = []
        at = 0
        while match := self._search(block, at):
            index = bisect.bisect_right(ends, match.start())
            out.append(index)
            at = ends[index]
            if at >= len(block):
                break
        return out

    def tells(self, raw: bytes) -> bool:
        """Does the line matter to the diagnosis, so that its neighbours do too?"""
        return any(literal in raw for literal in self._told)

    def statistics(
        self, raw: bytes, number: int, node: str | None, start: int, seconds: float | None
    ) -> list[Statistic] | None:
        """The hit rates of a statistics line of the usual form; None: read it like any other line."""
        begin = raw.find(_RATE)
        end = raw.find(b"%", begin)
        if begin < 0 or end < 0 or (b"Running: 0 reqs" in raw and b"Waiting: 0 reqs" not in raw) or len(raw) > 380:
            return None
        head = raw[: raw.find(_HEADER, 0, 120)]
        if head[:2] == b"20" and head[-5:-4] != b"-":
            head = head[head.find(b" ") + 1 :]  # docker's time
        process, usual = self._heads[head] if head in self._heads else self._head(head, raw)
        if not usual or b"\x1b" in raw or b"\r" in raw:
            return None
        text = raw[raw.find(head) :].decode("utf-8", "replace") if head else raw.decode("utf-8", "replace")
        if not head:
            text = text[text.find("INFO ") :]
        try:
            rate = float(raw[begin + len(_RATE) : end])
            out = [Statistic("cache.prefix_hit_rate", rate, number, text, process, node, start, seconds)]
            if raw.startswith(_EXTERNAL, end + 1):
                rate = float(raw[end + 1 + len(_EXTERNAL) : raw.find(b"%", end + 1)])
                out.append(Statistic("cache.external_hit_rate", rate, number, text, process, node, start, seconds))
        except ValueError:
            return None
        return out

    def _head(self, head: bytes, raw: bytes) -> tuple[str | None, bool]:
        """What stands before the record: the process, and whether it is of the usual form (no rank, no prefix)."""
        lines = frame(raw, 0)
        usual = len(lines) == 1 and lines[0].rank is None and lines[0].node is None and lines[0].level == "INFO"
        usual = usual and re.fullmatch(rb"(?:\((?:APIServer|ApiServer_\d+) pid=\d+\) )?", head) is not None
        found = (lines[0].process, usual) if lines else (None, False)
        if len(self._heads) < 1000:
            self._heads[head] = found
        return found


def search_any(literals: Iterable[bytes]) -> Callable[..., Any]:
    """``search(block, position)`` for any of the literals: google-re2 where it is installed (extra ``fast``), else one
    regular expression in the shape of a tree, which ``re`` walks faster than a flat alternation."""
    wanted = sorted(set(literals))
    try:
        import re2
    except ImportError:
        return re.compile(tree(wanted)).search
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    search: Callable[..., Any] = re2.compile(b"|".join(map(re2.escape, wanted)), options).search
    return search


def tree(literals: Sequence[bytes]) -> bytes:
    """A pattern that matches where any of the literals begins, with common beginnings shared."""
    groups = itertools.groupby(sorted(literals), key=lambda literal: literal[:1])
    parts: list[bytes] = []
    for first, members in groups:
        rests = [member[1:] for member in members]
        # One that ends here is the beginning of all others: they add nothing.
        parts.append(re.escape(first) + (b"" if b"" in rests else tree(rests)))
    if not parts:
        return b"(?!)"
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"
