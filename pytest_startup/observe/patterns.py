"""The profile's own log patterns: where each stands, with node and rank, as ``log.match`` facts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_startup.record import JSON, Evidence, Fact

if TYPE_CHECKING:
    from pytest_startup.launch.base import NodeLog
    from pytest_startup.profile.model import ExpectLog

#: Matches of one pattern that are kept: a pattern that fits every line would fill the record.
MOST = 50
LONGEST = 1 << 20


@dataclass
class _Log:
    """Where one node's stream stands: its finished lines, the unfinished one, and matches so far by pattern."""

    log: NodeLog
    number: int = 0
    rest: bytes = b""
    since: float | None = None
    counts: dict[int, int] = field(default_factory=dict)


class PatternScan:
    """Searches logs for ``expect.log`` patterns, in the lines as the reader sees them (no colours, no prefixes).

    One fact per matching line (at most MOST per pattern and log); ``value`` is the pattern, ``detail.kind`` forbid or
    require. A stream: any chunks of bytes in order, a line of over 1 MB is cut there.
    """

    def __init__(self, expect: ExpectLog) -> None:
        rows = [("forbid", p) for p in expect.forbid] + [("require", p) for p in expect.require]
        self._patterns = [(kind, p.pattern, re.compile(p.pattern)) for kind, p in rows]
        self._logs: dict[str, _Log] = {}

    def feed(self, log: NodeLog, data: bytes, seconds: float | None) -> list[Fact]:
        """More bytes of ``log``, received at ``seconds``."""
        if not self._patterns:
            return []
        state = self._logs.setdefault(log.node, _Log(log))
        found: list[Fact] = []
        *whole, tail = data.split(b"\n")
        for piece in whole:
            since = state.since if state.rest else seconds
            found += self._line((state.rest + piece)[:LONGEST], since, state)
            state.rest = b""
        if tail and not state.rest:
            state.since = seconds
        state.rest = (state.rest + tail)[:LONGEST]
        return found

    def close(self) -> list[Fact]:
        """End of input: matches in lines that were not finished."""
        found: list[Fact] = []
        for state in self._logs.values():
            if state.rest:
                found += self._line(state.rest, state.since, state)
                state.rest = b""
        return found

    def _line(self, raw: bytes, seconds: float | None, state: _Log) -> Iterator[Fact]:
        from pytest_startup.engines.framing import frame

        state.number += 1
        where = f"{state.log.node}/{state.log.path.name}"
        for line in frame(raw, state.number, state.log.node, seconds):
            for n, (kind, text, pattern) in enumerate(self._patterns):
                if state.counts.get(n, 0) < MOST and pattern.search(line.text):
                    state.counts[n] = state.counts.get(n, 0) + 1
                    shown = line.text[:400]
                    evidence = Evidence("log", where, shown, line.number, line.node, line.rank, line.seconds)
                    detail: dict[str, JSON] = {"pattern": text, "kind": kind}
                    yield Fact("log.match", text, evidence, rank=line.rank, node=line.node, detail=detail)
