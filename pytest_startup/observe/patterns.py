"""The profile's own log patterns: where each stands, with node and rank, as ``log.match`` facts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_startup.record import JSON, Evidence, Fact

if TYPE_CHECKING:
    from pytest_startup.observe.sources import NodeLog
    from pytest_startup.profile.expect import ExpectLog

#: Matches of one pattern that are kept: a pattern that fits every line would fill the record.
MOST = 50
LONGEST = 1 << 20
#: A raw line that holds one of these may differ from what is searched in more than in its prefixes: colours (as viewers
#: spell them), redrawn bars, JSON.
_REWRITTEN = re.compile(rb"\x1b|\xe2\x90\x9b|\^\[|#033|\\x1b|\\u001b|\\033|\[\d{1,3}(?:;\d{1,3})*m|\r|\{\"")


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
        self._hints = [hint(pattern) for _, pattern, _ in self._patterns]
        self._logs: dict[str, _Log] = {}

    def feed(self, log: NodeLog, data: bytes, seconds: float | None) -> list[Fact]:
        """More bytes of ``log``, received at ``seconds``."""
        if not self._patterns:
            return []
        state = self._logs.setdefault(log.node, _Log(log))
        found: list[Fact] = []
        *whole, tail = data.split(b"\n")
        if not state.rest and not self._may_match(data):
            state.number += len(whole)
            whole = []
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

    def _may_match(self, data: bytes) -> bool:
        """Could a line of this chunk match? Taking a line apart costs far more than to search it as it is."""
        text = data.decode("utf-8", "replace")
        if _REWRITTEN.search(data) or "\ufffd" in text:
            return True
        return any(hint is None or hint.search(text) for hint in self._hints)

    def _line(self, raw: bytes, seconds: float | None, state: _Log) -> Iterator[Fact]:
        from pytest_startup.engines.framing import frame

        state.number += 1
        where = state.log.where
        for line in frame(raw, state.number, state.log.node, seconds):
            for n, (kind, text, pattern) in enumerate(self._patterns):
                if state.counts.get(n, 0) < MOST and pattern.search(line.text):
                    state.counts[n] = state.counts.get(n, 0) + 1
                    shown = line.text[:400]
                    evidence = Evidence("log", where, shown, line.number, line.node, line.rank, line.seconds)
                    detail: dict[str, JSON] = {"pattern": text, "kind": kind}
                    yield Fact("log.match", text, evidence, rank=line.rank, node=line.node, detail=detail)


def hint(pattern: str) -> re.Pattern[str] | None:
    """A pattern that matches every raw line whose searched part ``pattern`` matches; None: there is no simple one."""
    inner = pattern
    if re.search(r"[\^$]", _bare(inner)):
        inner = inner.removeprefix("^")
        if inner.endswith("$") and _bare(inner).endswith("$"):
            inner = inner[:-1]
        if "|" in _bare(inner):
            return None
    plain = not re.search(r"\(\?(?!:)|\\[ABZ]|[\^$\[]", _bare(inner))
    return re.compile(inner) if plain else None


def _bare(pattern: str) -> str:
    """Without escaped characters and sets: these hold no anchors."""
    return re.sub(r"\\[^ABZ]|\[[^\]\[]*\]", "x", pattern)
