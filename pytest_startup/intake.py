"""The logs of a start taken in as a stream, live or replayed alike: facts, the profile's patterns, one summary."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from pytest_startup.launch.base import only_node
from pytest_startup.observe.patterns import PatternScan
from pytest_startup.record import JSON, Evidence, Fact

if TYPE_CHECKING:
    from pytest_startup.engines.base import Dialect, LogReader, LogSummary
    from pytest_startup.launch.base import NodeLog
    from pytest_startup.observe.follow import Chunk
    from pytest_startup.profile.expect import ExpectLog


@dataclass(frozen=True)
class LogReading:
    """What all logs of a start say: facts (``where`` relative to the start's folder), and one summary of the start.

    ``ends``: bytes read per node. Reading them again from files that have grown since gives the same.
    """

    facts: tuple[Fact, ...] = ()
    summary: LogSummary | None = None
    ends: Mapping[str, int] = field(default_factory=dict)


class Intake:
    """Feeds one reader and the pattern scan with the logs of a start, chunk by chunk."""

    def __init__(self, logs: Sequence[NodeLog], reader: LogReader, patterns: ExpectLog) -> None:
        self.logs = tuple(logs)
        self.reader = reader
        self._patterns = PatternScan(patterns)
        self._facts: list[Fact] = []
        self._matches: list[Fact] = []
        self._ends = {log.node: 0 for log in logs}

    def take(self, chunks: Iterable[tuple[NodeLog, Chunk]]) -> list[Fact]:
        """More of the logs; returns the facts that they completed."""
        new: list[Fact] = []
        for log, (data, seconds) in chunks:
            self._ends[log.node] += len(data)
            new += self.reader.feed(data, seconds, log.node)
            self._matches += self._patterns.feed(log, data, seconds)
        self._facts += new
        return new

    def close(self) -> LogReading:
        """End of input. A supervisor that restarts the engine by itself leaves several summaries: the last counts, and
        only its facts; each one before is a fact ``start.earlier``, which the check ``ready`` fails on."""
        rest, summaries = self.reader.close()
        matches = [*self._matches, *self._patterns.close()]
        single = len(self.logs) == 1
        last = summaries[-1].start if summaries else 0
        facts = [f for f in (*self._facts, *rest) if f.start >= last]
        facts = sorted((*facts, *map(_earlier, summaries[:-1])), key=_line if single else _time)
        found = placed([*facts, *sorted(matches, key=_line if single else _time)], self.logs)
        return LogReading(found, summaries[-1] if summaries else None, dict(self._ends))


def _earlier(summary: LogSummary) -> Fact:
    """A start that the log holds before the one that counts, with its end if the log says how it came."""
    failure = summary.failure
    said = failure.summary if failure is not None else "it was ready" if summary.ready else "nothing says how it ended"
    lines = Evidence("log", "engine.log", f"lines {summary.first_line} to {summary.last_line}", summary.first_line)
    cause = failure.cause if failure is not None and failure.cause is not None else lines
    detail: dict[str, JSON] = {"first_line": summary.first_line, "last_line": summary.last_line}
    return Fact("start.earlier", said, cause, node=cause.node, start=summary.start, detail=detail)


def _line(fact: Fact) -> int:
    return fact.evidence.line or 0


def _time(fact: Fact) -> tuple[float, str, int]:
    return fact.evidence.seconds or 0.0, fact.evidence.node or "", fact.evidence.line or 0


def placed(facts: Iterable[Fact], logs: Sequence[NodeLog]) -> tuple[Fact, ...]:
    """Log facts with their node and the place of their line relative to the folder of the start."""
    single = only_node(logs)
    names = {log.node: log.where for log in logs}

    def place(fact: Fact) -> Fact:
        node = fact.node or fact.evidence.node or single
        where = names.get(node or "", fact.evidence.where)
        return replace(fact, node=node, evidence=replace(fact.evidence, where=where, node=node))

    return tuple(place(f) for f in facts)


def placed_evidence(evidence: Evidence, logs: Sequence[NodeLog]) -> Evidence:
    """The same for one piece of evidence from a log."""
    node = evidence.node or only_node(logs)
    where = next((log.where for log in logs if log.node == node), evidence.where)
    return replace(evidence, node=node, where=where)


def merged(sources: Sequence[tuple[NodeLog, Iterable[Chunk]]]) -> Iterator[tuple[NodeLog, Chunk]]:
    """The chunks of several logs in the order in which they were received; those of one log keep their order."""
    if len(sources) == 1:
        ((log, chunks),) = sources
        return ((log, chunk) for chunk in chunks)

    def timed(number: int, log: NodeLog, chunks: Iterable[Chunk]) -> Iterator[tuple[float, int, NodeLog, Chunk]]:
        last = 0.0
        for data, seconds in chunks:
            last = max(last, seconds or 0.0)
            yield last, number, log, (data, seconds)

    rows = heapq.merge(*(timed(n, *source) for n, source in enumerate(sources)), key=itemgetter(0, 1))
    return ((log, chunk) for _, _, log, chunk in rows)


def read_logs(
    logs: Sequence[NodeLog], dialect: Dialect, patterns: ExpectLog, ends: Mapping[str, int] | None = None
) -> LogReading:
    """Read saved logs, in the order in which their lines were received; of each as many bytes as ``ends`` says."""
    from pytest_startup.observe.follow import replay

    intake = Intake(logs, dialect.reader(), patterns)
    intake.take(merged([(log, _up_to(replay(log), (ends or {}).get(log.node))) for log in logs]))
    return intake.close()


def _up_to(chunks: Iterable[Chunk], end: int | None) -> Iterator[Chunk]:
    left = end
    for data, seconds in chunks:
        if left is not None:
            data = data[:left]
            left -= len(data)
        if data:
            yield data, seconds
        if left == 0:
            return
