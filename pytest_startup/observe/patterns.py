"""The profile's own log patterns: where each stands, with node and rank, as ``log.match`` facts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_startup.record import JSON, Evidence, Fact

if TYPE_CHECKING:
    from pytest_startup.launch.base import NodeLog
    from pytest_startup.profile.model import ExpectLog

#: Matches of one pattern that are kept: a pattern that fits every line would fill the record.
MOST = 50
LONGEST = 1 << 20


class PatternScan:
    """Searches logs for ``expect.log`` patterns, in the lines as the reader sees them (no colours, no prefixes)."""

    def __init__(self, expect: ExpectLog) -> None:
        rows = [("forbid", p) for p in expect.forbid] + [("require", p) for p in expect.require]
        self._patterns = [(kind, p.pattern, re.compile(p.pattern)) for kind, p in rows]

    def read(self, log: NodeLog, until: float | None = None) -> Iterator[Fact]:
        """One fact per matching line (at most MOST per pattern and log). ``value`` is the pattern.

        Lines received after ``until`` seconds don't count: an engine that is being stopped says what no engine that
        serves would (vLLM prints a traceback at about every third clean stop).
        """
        if not self._patterns:
            return
        from pytest_startup.engines.framing import frame

        counts = [0] * len(self._patterns)
        where = f"{log.node}/{log.path.name}"
        for number, (raw, seconds) in enumerate(physical_lines(log), start=1):
            if until is not None and seconds is not None and seconds > until:
                return
            for line in frame(raw, number, log.node, seconds):
                for n, (kind, text, pattern) in enumerate(self._patterns):
                    if counts[n] < MOST and pattern.search(line.text):
                        counts[n] += 1
                        shown = line.text[:400]
                        evidence = Evidence("log", where, shown, line.number, log.node, line.rank, line.seconds)
                        detail: dict[str, JSON] = {"pattern": text, "kind": kind}
                        yield Fact("log.match", text, evidence, rank=line.rank, node=log.node, detail=detail)


def physical_lines(log: NodeLog) -> Iterator[tuple[bytes, float | None]]:
    """Each line of a finished log without its LF, with its receive time; a line of over 1 MB is cut there."""
    from pytest_startup.observe.follow import replay

    rest, since = b"", None
    for data, seconds in replay(log):
        *whole, tail = data.split(b"\n")
        for piece in whole:
            yield (rest + piece)[:LONGEST], since if rest else seconds
            rest = b""
        if tail and not rest:
            since = seconds
        rest = (rest + tail)[:LONGEST]
    if rest:
        yield rest, since
