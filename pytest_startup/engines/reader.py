"""The log reader: bytes in, facts out, one summary per start; a stream in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_startup.engines.anchors import ANCHORS
from pytest_startup.engines.base import LogSummary, Progress
from pytest_startup.engines.diagnosis import StartTracker
from pytest_startup.engines.framing import LINE_LIMIT, frame
from pytest_startup.engines.lines import Line, quotes_a_client
from pytest_startup.engines.prefixes import Prefixes
from pytest_startup.engines.rules import RuleTable
from pytest_startup.engines.skim import Skimmer, Statistic, Traffic, only_traffic, statistics_ends
from pytest_startup.engines.starts import Series, Start, Starts, summary
from pytest_startup.engines.unknown import UnknownLines
from pytest_startup.record import JSON, Evidence, Fact

#: While traffic is skimmed, so many lines behind one that matters are read as well: a traceback is more than its head.
CONTEXT = 200
#: Traffic is skimmed in parts of so many bytes.
PART = 1 << 17
#: Facts of statistics lines, of which a serving log holds one every ten seconds.
SERIES = {
    "cache.prefix_hit_rate": b" Prefix cache hit rate: ",
    "cache.external_hit_rate": b" External prefix cache hit rate: ",
}


@dataclass
class _Node:
    """The state of one node's byte stream."""

    line: int = 0
    context: int = 0
    parts: list[bytes] = field(default_factory=list)
    prefixes: Prefixes = field(default_factory=Prefixes)


class _Place(NamedTuple):
    """Where a block stands: the number of its first line, the step to the next, receive time, node."""

    first: int
    step: int
    seconds: float | None
    node: str | None

    def number(self, index: int) -> int:
        return self.first + index * self.step

    def behind(self, count: int) -> _Place:
        return self._replace(first=self.number(count))


class Reader:
    """A ``LogReader`` (``engines.base``) for the engines whose tables it is given.

    ``where`` is the log's path relative to the start's folder; with a node it becomes ``<node>/<where>``, or what
    ``paths`` says. ``unknown`` collects lines that look like facts but match no rule. ``series``: of the hit rates
    of a serving log, of which there may be hundreds of thousands, only the first and the last of each start become
    facts, with ``reports`` (how many there were); they are given out when the start ends. Otherwise they are facts
    like all others.
    """

    def __init__(
        self,
        tables: Sequence[tuple[str, RuleTable]],
        where: str = "engine.log",
        unknown: UnknownLines | None = None,
        paths: Mapping[str, str] | None = None,
        series: bool = False,
    ) -> None:
        self._tables = tables
        self._where = where
        self._paths = paths or {}
        self._collapse = series
        self._unknown = unknown
        self._nodes: dict[str | None, _Node] = {}
        self._starts = Starts(StartTracker, tables[0][0] if len(tables) == 1 else None)
        self._skim = Skimmer([a for _, table in tables for a in table.anchors], ANCHORS)
        self._summaries: list[LogSummary] = []

    def feed(self, data: bytes, seconds: float | None = None, node: str | None = None) -> list[Fact]:
        """More bytes of a node's log; returns the facts of the lines that they complete."""
        state = self._nodes.setdefault(node, _Node())
        end = data.rfind(b"\n") + 1
        if not end:
            self._keep(state, data)
            return []
        facts: list[Fact] = []
        place = _Place(state.line + 1, 1, seconds, node)
        at = 0
        if state.parts:
            at = data.find(b"\n") + 1
            place = place.behind(self._block(b"".join([*state.parts, data[:at]]), 0, at, place, state, facts))
        place = place.behind(self._block(data, at, end, place, state, facts))
        state.line = place.first - 1
        state.parts = [data[end:]] if end < len(data) else []
        return facts

    def lines(self, lines: Sequence[bytes], first: int, step: int = 1, node: str | None = None) -> list[Fact]:
        """Whole lines (without LF) in the order of time; ``step`` -1: of a log that runs newest first, so that their
        numbers fall from ``first``."""
        facts: list[Fact] = []
        state = self._nodes.setdefault(node, _Node())
        block = b"".join(line + b"\n" for line in lines)
        self._block(block, 0, len(block), _Place(first, step, None, node), state, facts)
        return facts

    def progress(self) -> Progress:
        """Where the newest start stands."""
        return self._starts.latest.tracker.progress()

    def close(self) -> tuple[list[Fact], list[LogSummary]]:
        """The facts of unfinished lines and the last states of progress bars, and a summary of each start."""
        facts: list[Fact] = []
        for node, state in self._nodes.items():
            rest = b"".join(state.parts)
            state.parts = []
            if rest:
                state.line += 1
                self._line(rest, state.line, _Place(state.line, 1, None, node), facts)
        for start in self._starts.rest():
            self._end(start, facts)
        return facts, self.summaries()

    def summaries(self) -> list[LogSummary]:
        """One summary per start that has ended; after ``close`` of every start."""
        return sorted(self._summaries, key=lambda s: s.start)

    def _keep(self, state: _Node, data: bytes) -> None:
        """An unfinished line; of one without end only its head and its newest part are kept."""
        state.parts.append(data)
        if sum(map(len, state.parts)) > 2 * LINE_LIMIT:
            whole = b"".join(state.parts)
            state.parts = [whole[: LINE_LIMIT // 2] + b"\r", whole[-LINE_LIMIT // 2 :]]

    def _block(self, block: bytes, at: int, stop: int, place: _Place, state: _Node, facts: list[Fact]) -> int:
        """Read whole lines of the block, from ``at`` up to ``stop``, traffic quickly; returns their number."""
        total = 0
        while at < stop:
            if self._starts.latest.serving:
                end = block.rfind(b"\n", at, min(stop, at + PART)) + 1 or block.find(b"\n", at) + 1
                if self._collapse and not state.context:
                    lines = self._counted(block, at, end, place.behind(total))
                    if lines:
                        total += lines
                        at = end
                        continue
                count = self._traffic(block, at, end, place.behind(total), state, facts)
                total += count
                if self._starts.latest.serving:
                    at = end
                else:
                    for _ in range(count):
                        at = block.find(b"\n", at) + 1
            else:
                end = block.find(b"\n", at)
                self._line(block[at:end], place.number(total), place, facts)
                total += 1
                at = end + 1
        return total

    def _counted(self, block: bytes, at: int, stop: int, place: _Place) -> int:
        """Nothing but traffic is counted, not read; returns the number of lines, 0 where there is something else."""
        found = only_traffic(block, at, stop)
        if found is None:
            return 0
        total, statistics = found
        start = self._starts.latest
        for before, begin, end in statistics_ends(block, at, stop, total) if statistics else ():
            known = (place.node, start.index, place.seconds)
            rates, odd = self._skim.statistics(Traffic(block, begin, end), place.number(before), 1, known)
            if odd:
                return 0
            for rate in rates:
                self._series(start, statistic_fact(rate, self._path(rate[5])), 0)
        for name, words in SERIES.items() if statistics else ():
            if name in start.series:
                start.series[name].reports += block.count(words, at, stop)
        start.last_line = max(start.last_line, place.number(0), place.number(total - 1))
        return total

    def _series(self, start: Start, fact: Fact, reports: int = 1) -> None:
        series = start.series.get(fact.name)
        if series is None:
            start.series[fact.name] = Series(fact, fact, reports)
        else:
            series.last = fact
            series.reports += reports

    def _traffic(self, block: bytes, at: int, stop: int, place: _Place, state: _Node, facts: list[Fact]) -> int:
        """Skim serving traffic up to a line that begins another start; returns the number of lines."""
        start = self._starts.latest
        traffic = Traffic(block, at, stop)
        known = (place.node, start.index, place.seconds)
        found, odd = self._skim.statistics(traffic, place.first, place.step, known)
        others = traffic.others + odd
        others.sort()
        hits = set(self._skim.hits([raw for _, raw in others])) if others else set()
        for position, (index, raw) in enumerate(others):
            hit = position in hits
            if not (hit or state.context):
                if self._unknown is not None:
                    self._unknown.lines_of(frame(raw, place.number(index), place.node))
                continue
            if index:
                start.last_line = max(start.last_line, place.number(index - 1))
            state.context = CONTEXT if hit and self._skim.tells(raw) else max(0, state.context - 1)
            self._line(raw, place.number(index), place, facts)
            if not self._starts.latest.serving:
                self._bulk([s for s in found if (s[2] - place.number(index)) * place.step < 0], facts)
                return index + 1
        start.last_line = max(start.last_line, place.number(0), place.number(traffic.total - 1))
        self._bulk(found, facts)
        return traffic.total

    def _bulk(self, found: list[Statistic], facts: list[Fact]) -> None:
        self._told([statistic_fact(s, self._path(s[5])) for s in found], self._starts.latest, facts)

    def _told(self, found: list[Fact], start: Start, facts: list[Fact]) -> None:
        """Facts that were found, on their way out; those of a series wait for its end."""
        if not self._collapse:
            facts.extend(found)
            return
        for fact in found:
            if fact.name in SERIES:
                self._series(start, fact)
            else:
                facts.append(fact)

    def _line(self, raw: bytes, number: int, place: _Place, facts: list[Fact]) -> None:
        prefixes = self._nodes[place.node].prefixes
        for line in frame(raw, number, place.node, place.seconds, prefixes):
            if quotes_a_client(line.message):
                continue
            start, ended = self._starts.of(line, place.node is not None)
            for old in ended:
                self._end(old, facts)
            found = self._facts(line, start)
            self._told(found, start, facts)
            self._starts.seen(start, line, found)
            start.tracker.line(line, found)

    def _facts(self, line: Line, start: Start) -> list[Fact]:
        where = self._path(line.node)
        out: list[Fact] = []
        stated = False
        for engine, table in self._tables:
            if start.engine is not None and engine != start.engine:
                continue
            for fact, rule in table.matches(line, where, start.index):
                stated = True
                if start.engine is None:
                    start.votes[engine] = start.votes.get(engine, 0) + 1
                if rule.bar:
                    before = start.bar(fact)
                    if before is not None:
                        out.append(before)
                elif rule.tally:
                    start.tally(fact)
                elif fact not in out:
                    out.append(fact)
        if self._unknown is not None and not stated:
            self._unknown.line(line)
        return out

    def _path(self, node: str | None) -> str:
        """The log's path: only nodes that were named to ``feed`` have a log of their own."""
        if node is None or node not in self._nodes:
            return self._where
        return self._paths.get(node, f"{node}/{self._where}")

    def _end(self, start: Start, facts: list[Fact]) -> None:
        for series in start.series.values():
            facts.extend(series.facts())
        facts.extend(start.bars.values())
        facts.extend(start.tallies.values())
        start.bars.clear()
        start.tallies.clear()
        self._summaries.append(summary(start))


def statistic_fact(found: Statistic, where: str) -> Fact:
    """The long form of a statistic."""
    name, value, line, text, process, node, start, seconds = found
    proof = Evidence("log", where, text, line, node, None, seconds)
    detail: dict[str, JSON] = {"process": process} if process else {}
    return Fact(name, value, proof, "percent", None, node, None, start, detail)


def read(chunks: Iterable[bytes], reader: Reader) -> tuple[list[Fact], list[LogSummary]]:
    """Everything at once, for tests and small logs."""
    facts: list[Fact] = []
    for chunk in chunks:
        facts.extend(reader.feed(chunk))
    rest, summaries = reader.close()
    return facts + rest, summaries
