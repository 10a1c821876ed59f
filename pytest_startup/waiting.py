"""The wait for a start: logs followed, deadlines kept, an end noticed at once, until ready or failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pytest_startup.record import Evidence, Fact, Failure
from pytest_startup.tails import last_lines

if TYPE_CHECKING:
    from pytest_startup.engines.base import LogReader, Progress
    from pytest_startup.launch.base import NodeLog, Running
    from pytest_startup.profile.model import Deadlines

#: The longest time between two looks at logs and deadlines; the end of the engine wakes the wait at once.
LOOK = 0.05
#: Seconds between two progress lines.
TELL = 20.0


class Source(Protocol):
    """A log that is being followed (``observe.follow.Follower``)."""

    def read(self) -> Iterable[tuple[bytes, float | None]]:
        """What has come since the last call: chunks with their receive time."""


@dataclass(frozen=True)
class Usual:
    """How long things usually take (baseline, else the reference): seconds per phase, and until ready."""

    phases: dict[str, float]
    ready: float | None = None


class Follow:
    """All logs of a start, followed into one reader; collects the facts that they give."""

    def __init__(self, logs: Sequence[NodeLog], sources: Sequence[Source], reader: LogReader) -> None:
        self.logs = tuple(logs)
        self.reader = reader
        self.facts: list[Fact] = []
        self._sources = list(zip(logs, sources, strict=True))
        self._single = len(self._sources) == 1

    def look(self) -> list[Fact]:
        """Read what has come; returns the new facts."""
        new: list[Fact] = []
        for log, source in self._sources:
            for data, seconds in source.read():
                new += self.reader.feed(data, seconds, log.node)
        self.facts += new
        return new

    def last_lines(self, count: int = 5) -> tuple[Evidence, ...]:
        """The last lines of every log, for messages."""
        return tuple(e for log, _ in self._sources for e in last_lines(log, count))


@dataclass
class Wait:
    """Waits until ``ready()`` is true, the engine ends, a deadline passes or ``diverged`` speaks.

    ``diverged`` is given each batch of new facts and the time; a Failure that it returns ends the wait.
    ``tell`` gets one progress line about every 20 s.
    """

    running: Running
    follow: Follow
    deadlines: Deadlines
    usual: Usual
    ready: Callable[[], bool]
    why_not_ready: Callable[[], str]
    diverged: Callable[[Sequence[Fact], float], Failure | None]
    tell: Callable[[str], None]
    name: str

    def run(self) -> Failure | None:
        """None: ready. Otherwise why not; ``cause`` is only set where the wait itself knows it."""
        told = time.monotonic()
        while True:
            new = self.follow.look()
            now = time.monotonic() - self.running.launched_at
            if self.ready():
                return None
            progress = self.follow.reader.progress()
            failure = self.diverged(new, now) or self.overrun(progress, now)
            if failure is not None:
                return failure
            if time.monotonic() - told >= TELL:
                told = time.monotonic()
                self.tell(self.line(progress, now))
            ended = self.running.wait_exit(LOOK)
            if ended is not None and not self.ready():
                code = "" if ended.code is None else f" (exit code {ended.code})"
                return Failure(
                    phase=progress.phase,
                    kind="ended",
                    summary=f"the engine ended before it was ready{code}: {ended.text}",
                    rank=progress.rank,
                    node=ended.node,
                    after_seconds=round(now, 3),
                )

    def overrun(self, progress: Progress, now: float) -> Failure | None:
        """A phase, or the whole start, that took longer than its deadline."""
        in_phase = now - progress.since_seconds
        limit = self.deadlines.phases.get(progress.phase)
        where = f" on rank {progress.rank}" if progress.rank else ""
        if limit is not None and in_phase > limit:
            usual = self.usual.phases.get(progress.phase)
            known = f"; it usually takes {usual:.1f} s" if usual is not None else ""
            text = f"phase {progress.phase}{where} ran {in_phase:.1f} s, its deadline is {limit:.0f} s{known}"
        elif now > self.deadlines.ready:
            usual = self.usual.ready
            known = f"; it usually takes {usual:.1f} s" if usual is not None else ""
            reason = self.why_not_ready()
            because = f"; {reason}" if reason else ""
            text = (
                f"not ready after {now:.1f} s, the deadline is {self.deadlines.ready:.0f} s{known}:"
                f" in phase {progress.phase}{where}{because}"
            )
        else:
            return None
        return Failure(
            phase=progress.phase,
            kind="deadline",
            summary=text,
            rank=progress.rank,
            after_seconds=round(now, 3),
            last_lines=self.follow.last_lines(),
        )

    def line(self, progress: Progress, now: float) -> str:
        """``restart-1: weights on TP1, 61 s (usually 12 s); 75 s since launch``."""
        rank = f" on {progress.rank}" if progress.rank else ""
        usual = self.usual.phases.get(progress.phase)
        known = f" (usually {usual:.0f} s)" if usual is not None else ""
        return (
            f"{self.name}: {progress.phase}{rank}, {now - progress.since_seconds:.0f} s{known};"
            f" {now:.0f} s since launch"
        )
