"""Keeps where every rank of a start stands, and the spans of its phases."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_startup.engines.base import Progress
from pytest_startup.engines.lines import Line
from pytest_startup.engines.phases import Opener, order
from pytest_startup.engines.rules import evidence
from pytest_startup.record import Evidence, PhaseSpan

SPANS_PER_RANK = 48
RANKS = 256

Who = tuple[str | None, str | None]
WHOLE: Who = (None, None)


@dataclass
class _Span:
    phase: str
    first_line: int
    last_line: int
    begin: float | None
    begin_stamp: float | None
    end: float | None = None
    end_stamp: float | None = None
    stated: float | None = None


@dataclass
class _Rank:
    spans: list[_Span] = field(default_factory=list)
    line: Line | None = None
    since: float = 0.0

    @property
    def phase(self) -> str:
        return self.spans[-1].phase if self.spans else "launch"


class PhaseBook:
    """Phases per rank. ``Who`` is (node, rank); (None, None) is the engine as a whole, or a rank without a name."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._ranks: dict[Who, _Rank] = {WHOLE: _Rank()}
        self._reached: str | None = None

    def who(self, line: Line) -> Who:
        """The rank for whom the line speaks. DP engines without worker prefixes count as ranks."""
        return (line.node, line.rank) if line.rank else WHOLE

    def begin(self, line: Line) -> None:
        """The first line of the start. Where it is the first of the log, the launch began before it: at 0 s."""
        rank = self._ranks[WHOLE]
        if not rank.spans:
            begin = 0.0 if line.number == 1 and line.seconds is not None else line.seconds
            rank.spans.append(_Span("launch", line.number, line.number, begin, line.stamp))
            rank.since = begin or 0.0
            rank.line = line

    def opened(self, opener: Opener, line: Line) -> None:
        """A line that opens a phase for its rank, its node or the engine."""
        if self._ranks[WHOLE].phase in ("serving", "shutdown"):
            self.seen(line)
            return
        who = self.who(line)
        self._enter(who, opener.phase, line)
        for other, state in self._ranks.items():
            if other == who:
                continue
            if order(state.phase) >= order(opener.phase):
                continue
            near = opener.scope == "node" and (other[0] == who[0] or other == WHOLE)
            if near or opener.scope == "engine" or (other == WHOLE and self._all_at_least(opener.phase)):
                self._enter(other, opener.phase, line)

    def stopping(self, line: Line) -> None:
        """The engine was asked to stop."""
        self._reached = self.reached()
        self._enter(WHOLE, "shutdown", line)

    def reached(self) -> str:
        """How far the start came, before anybody asked it to stop."""
        return self._reached or self.last_phase()

    def stated(self, phase: str, seconds: float, line: Line) -> None:
        """A duration that the engine prints for a phase of this rank (the last span of that phase)."""
        for who in (self.who(line), WHOLE):
            state = self._ranks.get(who)
            for span in reversed(state.spans if state else ()):
                if span.phase == phase:
                    span.stated = seconds
                    return

    def seen(self, line: Line) -> None:
        """Any other line of a rank: the current phase goes on at least until here."""
        state = self._ranks.get(self.who(line))
        if state is not None and state.spans:
            span = state.spans[-1]
            span.last_line = max(span.last_line, line.number)
            span.end, span.end_stamp = line.seconds, line.stamp
            state.line = line

    def phase_of(self, node: str | None, rank: str | None) -> str:
        """The current phase of a rank; of the engine where the rank is unknown."""
        state = self._ranks.get((node, rank)) if rank else None
        if state is None:
            return self._ranks[WHOLE].phase
        whole = self._ranks[WHOLE].phase
        return whole if len(self._ranks) > 1 and order(whole) >= order("api") > order(state.phase) else state.phase

    def furthest_behind(self) -> Progress:
        """The rank that is furthest behind, with its last line."""
        named = [(who, state) for who, state in self._ranks.items() if who != WHOLE]
        whole = self._ranks[WHOLE]
        if not named or order(whole.phase) >= order("api"):
            return Progress(whole.phase, None, whole.since, self._evidence(whole.line))
        (_, rank), state = min(named, key=lambda row: order(row[1].phase))
        return Progress(state.phase, rank, state.since, self._evidence(state.line))

    def last_phase(self) -> str:
        """The phase in which the start stood at the end: that of the whole engine, or of the rank furthest ahead."""
        whole = self._ranks[WHOLE].phase
        ahead = max((state.phase for state in self._ranks.values()), key=order)
        return ahead if order(ahead) > order(whole) else whole

    def spans(self) -> tuple[PhaseSpan, ...]:
        """All spans, in the order of their first lines."""
        out: list[PhaseSpan] = []
        for (node, rank), state in self._ranks.items():
            for span in state.spans:
                out.append(_span(span, rank, node))
        return tuple(sorted(out, key=lambda s: (s.first_line or 0, s.rank or "")))

    def _evidence(self, line: Line | None) -> Evidence | None:
        return evidence(line, self._where) if line is not None else None

    def _all_at_least(self, phase: str) -> bool:
        return all(order(state.phase) >= order(phase) for who, state in self._ranks.items() if who != WHOLE)

    def _enter(self, who: Who, phase: str, line: Line) -> None:
        state = self._ranks.get(who)
        if state is None:
            if len(self._ranks) >= RANKS:
                return
            state = self._ranks[who] = _Rank()
        last = state.spans[-1] if state.spans else None
        if last is not None:
            last.end, last.end_stamp = line.seconds, line.stamp
            last.last_line = max(
                last.last_line, line.number if last.phase == phase else line.number - 1, last.first_line
            )
        state.line = line
        if last is not None and last.phase == phase:
            return
        state.since = line.seconds or 0.0
        span = _Span(phase, line.number, line.number, line.seconds, line.stamp)
        if len(state.spans) < SPANS_PER_RANK:
            state.spans.append(span)
        else:
            state.spans[-1] = span


def _span(span: _Span, rank: str | None, node: str | None) -> PhaseSpan:
    seconds: float | None = None
    source: str | None = None
    if span.stated is not None:
        seconds, source = span.stated, "stated"
    elif span.begin is not None and span.end is not None:
        seconds, source = max(0.0, span.end - span.begin), "received"
    elif span.begin_stamp is not None and span.end_stamp is not None and span.end_stamp >= span.begin_stamp:
        seconds, source = span.end_stamp - span.begin_stamp, "log"
    return PhaseSpan(span.phase, rank, node, span.first_line, span.last_line, span.begin, span.end, seconds, source)
