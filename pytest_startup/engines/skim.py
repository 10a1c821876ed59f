"""Skims the traffic of a serving engine: which of many lines are worth reading, and what statistics lines state."""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from pytest_startup.engines.rules import TEXT_LIMIT
from pytest_startup.engines.search import search_any

#: The end of an access line that was answered well: the bulk of a serving log, and no statement.
_WELL = b' HTTP/1.1" 200 OK\n'
_RATE = b", Prefix cache hit rate: "
_HEADER = b"INFO "
_USUAL_HEAD = re.compile(
    rb"(?:\d{4}-\d\d-\d\dT[\d:.]+Z )?(?P<rest>(?:\((?P<process>APIServer|ApiServer_\d+) pid=\d+\) )?)"
)
_PERCENT = ord("%")


#: The short form of a ``Fact`` of a statistics line: name, value, line, text, process, node, start, receive time.
Statistic = tuple[str, float, int, str, "str | None", "str | None", int, "float | None"]


class Traffic:
    """A block of lines, sorted: their number, and those that are worth a look.

    ``others``: ``(index in the block, line)``; ``statistics`` also with what stands behind the words "Prefix cache hit
    rate: " (without the last character, which is the per-cent sign).
    """

    def __init__(self, block: bytes, at: int, stop: int) -> None:
        """Lines of ``block``, each with its LF. Access lines answered with 200 are only counted."""
        self.total = 0
        self.statistics: list[tuple[int, bytes, bytes]] = []
        self.others: list[tuple[int, bytes]] = []
        if not self._usual(block, at, stop):
            self._any(block[at:stop])

    def _usual(self, block: bytes, at: int, stop: int) -> bool:
        """Where all are access or statistics lines, nothing has to be split."""
        found: list[tuple[int, bytes, bytes]] = []
        index = self.total
        well = block.count(_WELL, at, stop)
        while (hit := block.find(_RATE, at, stop)) >= 0:
            begin = block.rfind(b"\n", at, hit) + 1 or at
            end = block.find(b"\n", hit)
            if block[end - 1] != _PERCENT:  # no access line ends like that
                return False
            index += block.count(b"\n", at, begin)
            found.append((index, block[begin:end], block[hit + len(_RATE) : end - 1]))
            index += 1
            at = end + 1
        index += block.count(b"\n", at, stop)
        if index - self.total != well + len(found):
            return False
        self.statistics += found
        self.total = index
        return True

    def _any(self, part: bytes) -> None:
        pieces = part.split(_WELL)
        index = self.total - 1
        behind = -1
        for position in [i for i, piece in enumerate(pieces) if b"\n" in piece]:
            index += position - behind
            behind = position
            lines = pieces[position].split(b"\n")
            lines.pop()  # the head of an access line; nothing behind the last one
            for line in lines:
                begin = line.find(_RATE)
                if begin < 0:
                    self.others.append((index, line))
                else:
                    self.statistics.append((index, line, line[begin + len(_RATE) : -1]))
                index += 1
        self.total += part.count(b"\n")


_STALLED = b" 0.0 tokens/s, Running: 0 reqs, Waiting: "
_NOT_STALLED = _STALLED + b"0 reqs"
#: So few statistics lines are found one by one; more are counted.
FEW = 24


def only_traffic(block: bytes, at: int, stop: int) -> tuple[int, int] | None:
    """Numbers of lines and of statistics lines of a part of a block that holds nothing but access lines answered with
    200 and statistics of an engine that is not stalled; None where there is anything else."""
    total = block.count(b"\n", at, stop)
    statistics = total - block.count(_WELL, at, stop)
    if statistics > FEW:
        if block.count(_RATE, at, stop) != statistics:
            return None
        idle = block.count(_STALLED, at, stop)
        return None if idle and idle != block.count(_NOT_STALLED, at, stop) else (total, statistics)
    for _ in range(statistics):
        at = block.find(_RATE, at, stop) + 1
        # The words on stalled requests stand a little before the hit rate.
        if not at or block.find(_STALLED, max(0, at - 160), at) > block.find(_NOT_STALLED, max(0, at - 160), at):
            return None
    return total, statistics


def statistics_ends(block: bytes, at: int, stop: int, total: int) -> list[tuple[int, int, int]]:
    """The first and the last statistics line of such a part of ``total`` lines: lines before it, begin and end (behind
    its LF)."""
    first, last = block.find(_RATE, at, stop), block.rfind(_RATE, at, stop)
    begin = block.rfind(b"\n", at, first) + 1 or at
    found = [(block.count(b"\n", at, begin), begin, block.find(b"\n", first) + 1)]
    if last > first:
        end = block.find(b"\n", last) + 1
        begin = block.rfind(b"\n", at, last) + 1
        found.append((total - 1 - block.count(b"\n", end, stop), begin, end))
    return found


class Skimmer:
    """Finds the lines that hold an anchor of a rule, or of the diagnosis, among lines of traffic."""

    def __init__(self, anchors: Sequence[str], diagnosis: Sequence[str | bytes]) -> None:
        self._told, self._literals = _literals(tuple(anchors), tuple(diagnosis))
        self._search: Callable[..., Any] | None = None
        self._heads: dict[bytes, tuple[str | None, bool, int]] = {}

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
        self, traffic: Traffic, first: int, step: int, known: tuple[str | None, int, float | None]
    ) -> tuple[list[Statistic], list[tuple[int, bytes]]]:
        """The hit rates of statistics lines, and the lines that have not the usual form: read them like any other.

        ``known``: node, start, receive time.
        """
        out: list[Statistic] = []
        odd: list[tuple[int, bytes]] = []
        heads = self._heads
        for index, raw, rates in traffic.statistics:
            head = raw[: raw.find(_HEADER, 0, 120)]
            process, usual, skip = heads.get(head) or self._head(head)
            if not usual or (_STALLED in raw and _NOT_STALLED not in raw) or b"\x1b" in raw or len(raw) > TEXT_LIMIT:
                odd.append((index, raw))
                continue
            try:
                text = raw[skip:].decode() if skip else raw.decode()
                prefix, external = (rates, b"") if len(rates) < 6 else _rates(rates)
                rate, outer = _rate(prefix), _rate(external) if external else None
            except ValueError:
                odd.append((index, raw))
                continue
            line = first + index * step
            out.append(("cache.prefix_hit_rate", rate, line, text, process, *known))
            if outer is not None:
                out.append(("cache.external_hit_rate", outer, line, text, process, *known))
        return out, odd

    def _head(self, head: bytes) -> tuple[str | None, bool, int]:
        """What stands before the record: the process, whether it is of the usual form (no rank, no colours, no prefix
        but docker's time), and the length of that time."""
        match = _USUAL_HEAD.fullmatch(head)
        process = match.group("process").decode() if match and match.group("process") else None
        found = (process, match is not None, match.start("rest") if match else 0)
        if not found[2] and len(self._heads) < 1000:
            self._heads[head] = found
        return found


@functools.cache
def _literals(
    anchors: tuple[str, ...], diagnosis: tuple[str | bytes, ...]
) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """The literals of the diagnosis, and all of them, as bytes."""
    told = frozenset(a if isinstance(a, bytes) else a.encode() for a in diagnosis)
    return told, told | {a.encode() for a in anchors}


def _rate(text: bytes) -> float:
    """A rate as ``rules.number`` would read it. Raises ValueError for anything else."""
    if not text.replace(b".", b"", 1).isdigit() or text[-1:] == b"." or text[:1] == b".":
        raise ValueError(text)
    return float(text)


def _rates(rates: bytes) -> tuple[bytes, bytes]:
    """``51.9%, External prefix cache hit rate: 97.7`` → both numbers. Raises ValueError for any other form."""
    prefix, *parts = rates.split(b"%, ")
    external = b""
    for part in parts:
        name, _, rate = part.rpartition(b": ")
        if name == b"External prefix cache hit rate":
            external = rate
        elif name != b"MM cache hit rate":
            raise ValueError(name)
    return prefix, external
