"""The starts inside a log: where one begins, which lines belong to it, and the last states of its progress bars."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_startup.engines.base import LogSummary, Progress
from pytest_startup.engines.detect import ARGUMENTS, BANNER, CORE, engine_of, launch_stage
from pytest_startup.engines.lines import Line
from pytest_startup.record import JSON, Fact

#: Facts that prove that a start got beyond its launch: another launch line then begins another start.
_PROGRESS = ("weights.", "compile.cache_", "kv.tokens", "kv.available", "graphs.captured", "init.", "rank.assigned")
_PROGRESS_TEXT = (
    "Traceback (most recent call last)",
    "Engine core initialization failed",
    "EngineCore failed to start",
    "Application startup complete",
    "Starting to load model",
    "Shutting down",
)
#: The engine serves: from here on most lines are traffic.
SERVING_TEXT = (
    "Application startup complete",
    "fired up and ready to roll",
    "Avg prompt throughput: ",
    "Decode batch",
    'GET /health HTTP/1.1" 200',
)
_ELAPSED = re.compile(r"\[(?P<minutes>\d{1,5}):(?P<seconds>\d\d)<")
#: A server of its own launches here, not one more node of an engine: those print no banner, and SGLang their number.
_SERVER = re.compile(
    r"vLLM (?:OpenAI )?(?:API|api) server version |vLLM server version |[█▀▄]\s+version \d"
    r"|server_args=.*?\bnnodes'?[=:] ?1[,)}]"
)
#: One of several API servers of an engine: each may print the banner.
_ONE_OF_MANY = re.compile(r"(?i:apiserver)_\w+$")
_SGLANG_CLAIM = ("fired up and ready to roll", "Decode batch")


class Tracker(Protocol):
    """What the reader needs of ``engines.diagnosis.StartTracker``."""

    def line(self, line: Line, facts: Sequence[Fact]) -> None: ...

    def progress(self) -> Progress: ...

    def finish(self) -> LogSummary: ...


@dataclass
class Series:
    """The first and the last of many reports of a fact."""

    first: Fact
    last: Fact
    reports: int

    def facts(self) -> list[Fact]:
        """One or two facts, each with the number of reports."""
        ends = [self.first] if self.first.evidence.line == self.last.evidence.line else [self.first, self.last]
        return [replace(fact, detail={**fact.detail, "reports": self.reports}) for fact in ends]


@dataclass
class Start:
    """One start of the log while it is being read."""

    index: int
    tracker: Tracker
    first_line: int = 0
    last_line: int = 0
    engine: str | None = None
    serving: bool = False
    progressed: set[str | None] = field(default_factory=set)
    stages: dict[str | None, int] = field(default_factory=dict)
    cores: set[str] = field(default_factory=set)
    fronts: set[str] = field(default_factory=set)
    group: int = 0
    bars: dict[tuple[object, ...], Fact] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    tallies: dict[tuple[object, ...], Fact] = field(default_factory=dict)
    votes: dict[str, int] = field(default_factory=dict)

    def bar(self, fact: Fact) -> Fact | None:
        """Keep the bar's newest state; returns the last one of the bar before it when a new bar of that name begins."""
        value = fact.value if isinstance(fact.value, dict) else {}
        key = (
            fact.name,
            value.get("kind"),
            value.get("who"),
            fact.rank,
            fact.engine,
            fact.node,
            fact.detail.get("process"),
        )
        before = self.bars.get(key)
        if before is None:
            self._go_on(key, fact)
        self.bars[key] = fact
        if before is None or not isinstance(before.value, dict):
            return None
        done, was = value.get("done"), before.value.get("done")
        again = isinstance(done, (int, float)) and isinstance(was, (int, float)) and done < was
        again = again or (done == was == value.get("total") and _restarted(before, fact))
        return before if again or before.value.get("total") != value.get("total") else None

    def tally(self, fact: Fact) -> None:
        """Of the rows of a table that the engine prints again and again, keep the one of each kind with the most steps;
        how many rows there were, and their steps together, go with it."""
        row = fact.value if isinstance(fact.value, dict) else {}
        key = (fact.name, row.get("kind"), fact.rank, fact.engine, fact.node)
        before = self.tallies.get(key)
        detail = {**fact.detail, "reports": 1, "total": _steps(fact)}
        if before is not None:
            detail["reports"] = _whole(before.detail.get("reports")) + 1
            detail["total"] = _whole(before.detail.get("total")) + _steps(fact)
        most = fact if before is None or _steps(fact) > _steps(before) else before
        self.tallies[key] = replace(most, detail=detail)

    def _go_on(self, key: tuple[object, ...], fact: Fact) -> None:
        """A record of another process broke the bar's line, and with the line break it lost its prefix: the bar that is
        going on here is one that is open, so that its state there was not its last."""
        value = fact.value if isinstance(fact.value, dict) else {}
        done, total = value.get("done"), value.get("total")
        best: tuple[object, ...] | None = None
        for other, bar in self.bars.items():
            one = bar.value if isinstance(bar.value, dict) else {}
            was = one.get("done")
            same = other[:3] == key[:3] and other[5] == key[5] and one.get("total") == total
            bare = (other[6] is None) != (key[6] is None)
            if not (same and bare and isinstance(was, (int, float)) and isinstance(done, (int, float))):
                continue
            if was <= done and was != total and not _elapsed(fact) < _elapsed(bar):
                best = other
        if best is not None:
            del self.bars[best]


def _steps(fact: Fact) -> int:
    return _whole(fact.value.get("steps")) if isinstance(fact.value, dict) else 0


def _whole(value: JSON) -> int:
    return value if isinstance(value, int) else 0


def _elapsed(fact: Fact) -> int:
    """Seconds since the bar began, 0 where it does not say."""
    found = _ELAPSED.search(fact.evidence.text or "")
    return 60 * int(found["minutes"]) + int(found["seconds"]) if found else 0


def _restarted(before: Fact, now: Fact) -> bool:
    """A bar is complete twice: printed again at its end, or another one of the same size that took another time?"""
    times = [_ELAPSED.search(fact.evidence.text or "") for fact in (before, now)]
    was, took = (60 * int(t["minutes"]) + int(t["seconds"]) if t else None for t in times)
    return was is not None and took is not None and not was <= took <= was + 1


class Starts:
    """Tells to which start a line belongs, and opens a new one where the engine is launched again."""

    def __init__(self, tracker: Callable[[], Tracker], engine: str | None = None) -> None:
        self._tracker = tracker
        self._engine = engine
        self._of_node: dict[str | None, int] = {}
        self._open: dict[int, Start] = {}
        self._latest = -1
        self._begin(None)

    @property
    def latest(self) -> Start:
        """The start to which the newest line belongs."""
        return self._open[self._latest]

    def of(self, line: Line, named: bool = False) -> tuple[Start, list[Start]]:
        """The start of the line, and those which it has ended. ``named``: its node is one of those that were given to
        the reader as the nodes of one engine, not the name of a service in a prefix."""
        ended: list[Start] = []
        node = line.node
        if node is None and " exited with code " in line.text:
            node = line.text.split(" ", 1)[0]  # Docker Compose: "<service> exited with code 1"
        start = self._open.get(self._of_node.get(node, self._latest), self.latest)
        stage = launch_stage(line)
        if stage:
            if not named and self._other_engine(start, line):
                start = self._begin(line.node, self._latest + 1)
                self._of_node[line.node] = start.index
            elif self._again(start, line, stage):
                start = self._next(line.node, start)
                ended = self._ended()
            self._of_node.setdefault(line.node, start.index)
            start.stages[line.node] = max(stage, start.stages.get(line.node, 0))
            if _one_of_many(line):
                start.fronts.add(line.process or "")
            if stage == CORE:
                start.cores.add(_core(line))
        if not start.first_line or line.number < start.first_line:
            start.first_line = line.number
        start.last_line = max(start.last_line, line.number)
        found = engine_of(line.text) if start.engine is None else None
        if found:
            start.engine = found
        return start, ended

    def seen(self, start: Start, line: Line, facts: Sequence[Fact]) -> None:
        """Take note of what shows how far the start is."""
        if line.node not in start.progressed and (
            any(f.name.startswith(_PROGRESS) for f in facts) or any(text in line.text for text in _PROGRESS_TEXT)
        ):
            start.progressed.add(line.node)
        if not start.serving and any(text in line.text for text in SERVING_TEXT):
            start.serving = start.engine != "sglang" or any(text in line.text for text in _SGLANG_CLAIM)

    def rest(self) -> list[Start]:
        """All starts that are still open, in order; to be called once, at the end."""
        rest = [self._open[i] for i in sorted(self._open)]
        self._open = {self._latest: self.latest}
        return rest

    @staticmethod
    def _other_engine(start: Start, line: Line) -> bool:
        """A service beside the one that the start is of (two of them in one compose file)."""
        if line.node is None or line.node in start.stages or not any(node for node in start.stages):
            return False
        return bool(_SERVER.search(line.message))

    def _again(self, start: Start, line: Line, stage: int) -> bool:
        if stage != CORE and _one_of_many(line) and line.process not in start.fronts:
            return False
        reached = start.stages.get(line.node, 0)
        progressed = line.node in start.progressed  # a node may have come far before another one is launched
        if stage == BANNER:
            return reached >= ARGUMENTS or (progressed and (reached > 0 or not start.stages))
        if stage == ARGUMENTS:
            return reached >= CORE or (progressed and reached >= ARGUMENTS)
        return progressed and (_core(line) in start.cores or not start.stages)

    def _next(self, node: str | None, start: Start) -> Start:
        later = [i for i, other in self._open.items() if i > start.index and other.group == start.group]
        index = min(later) if later else self._begin(node, start.group).index
        self._of_node[node] = index
        return self._open[index]

    def _begin(self, node: str | None, group: int = 0) -> Start:
        self._latest += 1
        start = Start(self._latest, self._tracker(), engine=self._engine, group=group)
        self._open[self._latest] = start
        if self._latest:
            self._of_node[node] = self._latest
        return start

    def _ended(self) -> list[Start]:
        """Starts that every node which ever launched has left."""
        oldest = min(self._of_node.values(), default=self._latest)
        return [self._open.pop(i) for i in sorted(self._open) if i < oldest]


def _one_of_many(line: Line) -> bool:
    return line.process is not None and bool(_ONE_OF_MANY.match(line.process))


def _core(line: Line) -> str:
    return f"{line.node}/{line.engine or line.process}"


def summary(start: Start) -> LogSummary:
    """The tracker's summary with the reader's own knowledge of the start's place in the log."""
    return replace(
        start.tracker.finish(),
        start=start.index,
        first_line=start.first_line,
        last_line=start.last_line,
        # Where no line names the engine: the one whose wordings the facts are.
        engine=start.engine or max(start.votes, key=start.votes.__getitem__, default=None),
    )
