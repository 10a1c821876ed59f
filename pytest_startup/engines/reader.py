"""The log reader: bytes in, facts out, one summary per start; a stream in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_startup.engines.base import LogSummary, Progress
from pytest_startup.engines.diagnosis import ANCHORS, StartTracker
from pytest_startup.engines.framing import LINE_LIMIT, frame
from pytest_startup.engines.lines import Line
from pytest_startup.engines.rules import RuleTable
from pytest_startup.engines.skim import Skimmer
from pytest_startup.engines.starts import Start, Starts, summary
from pytest_startup.engines.unknown import UnknownLines
from pytest_startup.record import Fact

#: While traffic is skimmed, so many lines behind one that matters are read as well: a traceback is more than its head.
CONTEXT = 200


@dataclass
class _Node:
    """The state of one node's byte stream."""

    rest: bytes = b""
    line: int = 0
    context: int = 0
    parts: list[bytes] = field(default_factory=list)


class Reader:
    """A ``LogReader`` (``engines.base``) for the engines whose tables it is given.

    ``where`` is the log's path relative to the start's folder; with a node it becomes ``<node>/<where>``, or what
    ``paths`` says. ``unknown`` collects lines that look like facts but match no rule.
    """

    def __init__(
        self,
        tables: Sequence[tuple[str, RuleTable]],
        where: str = "engine.log",
        unknown: UnknownLines | None = None,
        paths: Mapping[str, str] | None = None,
    ) -> None:
        self._tables = tables
        self._where = where
        self._paths = paths or {}
        self._unknown = unknown
        self._nodes: dict[str | None, _Node] = {}
        self._starts = Starts(StartTracker, tables[0][0] if len(tables) == 1 else None)
        self._skim = Skimmer([a for _, table in tables for a in table.anchors], ANCHORS)
        self._summaries: list[LogSummary] = []

    def feed(self, data: bytes, seconds: float | None = None, node: str | None = None) -> list[Fact]:
        """More bytes of a node's log; returns the facts of the lines that they complete."""
        state = self._nodes.setdefault(node, _Node())
        end = data.rfind(b"\n")
        if end < 0:
            self._keep(state, data)
            return []
        state.parts.append(data[:end])
        lines = b"".join(state.parts).split(b"\n")
        state.parts = [data[end + 1 :]]
        first = state.line + 1
        state.line += len(lines)
        return self.lines(lines, first, seconds, node)

    def lines(
        self, lines: Sequence[bytes], first: int, seconds: float | None = None, node: str | None = None, step: int = 1
    ) -> list[Fact]:
        """Whole lines (without LF), numbered from ``first`` in steps of ``step`` (-1: the log is read backwards)."""
        state = self._nodes.setdefault(node, _Node())
        facts: list[Fact] = []
        at = 0
        while at < len(lines):
            if self._starts.latest.serving and not state.context:
                at = self._traffic(lines, at, first, seconds, node, step, state, facts)
                continue
            state.context = max(0, state.context - 1)
            self._line(lines[at], first + at * step, seconds, node, facts)
            at += 1
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
                self._line(rest, state.line, None, node, facts)
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

    def _traffic(
        self,
        lines: Sequence[bytes],
        at: int,
        first: int,
        seconds: float | None,
        node: str | None,
        step: int,
        state: _Node,
        facts: list[Fact],
    ) -> int:
        """Skim serving traffic from ``at``; returns where the full reading goes on."""
        for index in self._skim.interesting(lines, at):
            number = first + index * step
            raw = lines[index]
            if self._skim.tells(raw):
                state.context = CONTEXT
                return index
            self._line(raw, number, seconds, node, facts)
            if not self._starts.latest.serving:
                return index + 1
        return len(lines)

    def _line(self, raw: bytes, number: int, seconds: float | None, node: str | None, facts: list[Fact]) -> None:
        for line in frame(raw, number, node, seconds):
            start, ended = self._starts.of(line)
            for old in ended:
                self._end(old, facts)
            found = self._facts(line, start)
            facts.extend(found)
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
                if rule.bar:
                    before = start.bar(fact)
                    if before is not None:
                        out.append(before)
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
        facts.extend(start.bars.values())
        start.bars.clear()
        self._summaries.append(summary(start))


def read(chunks: Iterable[bytes], reader: Reader) -> tuple[list[Fact], list[LogSummary]]:
    """Everything at once, for tests and small logs."""
    facts: list[Fact] = []
    for chunk in chunks:
        facts.extend(reader.feed(chunk))
    rest, summaries = reader.close()
    return facts + rest, summaries
