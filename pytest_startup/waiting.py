"""The wait for a start: logs followed, deadlines kept, an end noticed at once, until ready or failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytest_startup import stages
from pytest_startup.ends import failure_of
from pytest_startup.intake import LogReading, merged
from pytest_startup.launch.base import only_node
from pytest_startup.record import Evidence, Fact, Failure
from pytest_startup.tails import last_lines

if TYPE_CHECKING:
    from pytest_startup.engines.base import Progress
    from pytest_startup.intake import Intake
    from pytest_startup.launch.base import Exit, NodeLog, Running
    from pytest_startup.observe.follow import Chunk
    from pytest_startup.profile.model import Deadlines

#: The longest time between two looks at logs and deadlines; the end of the engine wakes the wait at once.
LOOK = 0.05
#: The least that a phase without a deadline of its own may take, in seconds. Above that it may take half of ``ready``;
#: only reading a checkpoint, and serving without a completion, may use up all of it.
PHASE_LEAST = 600.0
_WHOLE = ("weights", "serving")
_HELPS = (
    "compare the last lines with the same place in the log of an accepted start: what does it wait for? (storage, a "
    "download, a peer rank, a compilation that should have been a cache hit)",
)
_NO_HELP = ("a longer deadline, where the last lines stand still",)
SERVING_HELPS = (
    "the API server is up; what it answers is wrong or does not come: read the log's end, ask it by hand",
    "whether something stands in front of the engine: a proxy, a gateway, a wrapper",
)
NAME_HELP = (
    "the name that is asked for: engine.served_name, or engine.model where that is not given; the key sets nothing, the"
    " argument --served-model-name makes an engine serve under another name",
)
SERVING_NO_HELP = ("a longer deadline: health 200 proves nothing about the engine behind it",)


def serving_helps(reason: str) -> tuple[str, ...]:
    """What helps where an API server answers, but not with a completion; ``reason``: what it said."""
    return (*NAME_HELP, *SERVING_HELPS) if "HTTP 404" in reason else SERVING_HELPS


class Source(Protocol):
    """A log that is being followed (``observe.follow.Follower``)."""

    def read(self) -> Iterable[Chunk]:
        """What has come since the last call: chunks with their receive time."""


@dataclass(frozen=True)
class Usual:
    """How long things usually take: seconds per phase, and until ready; ``source`` is ``baseline`` or ``reference``."""

    phases: dict[str, float] = field(default_factory=dict)
    ready: float | None = None
    source: str = "baseline"

    def text(self, seconds: float | None) -> str:
        """``it usually takes 12.0 s``, ``it took 12.0 s on the reference start``; empty where it is not known."""
        if seconds is None:
            return ""
        if self.source == "reference":
            return f"it took {seconds:.1f} s on the reference start"
        return f"it usually takes {seconds:.1f} s"


class Follow:
    """All logs of a start, followed into one intake."""

    def __init__(self, sources: Sequence[Source], intake: Intake) -> None:
        self.intake = intake
        self.changed_at = time.monotonic()
        self._sources = tuple(sources)

    def look(self) -> list[Fact]:
        """Read what has come; returns the new facts."""
        return self.intake.take(self._noted(merged(list(zip(self.intake.logs, self._read(), strict=True)))))

    def progress(self) -> Progress:
        return self.intake.reader.progress()

    def close(self) -> LogReading:
        """All that has been read until now, and no more."""
        return self.intake.close()

    def last_lines(self, count: int = 5) -> tuple[Evidence, ...]:
        """The last lines of every log, for messages."""
        return tuple(e for log in self.intake.logs for e in last_lines(log, count))

    def _read(self) -> list[Iterable[Chunk]]:
        return [source.read() for source in self._sources]

    def _noted(self, chunks: Iterable[tuple[NodeLog, Chunk]]) -> Iterable[tuple[NodeLog, Chunk]]:
        for chunk in chunks:
            self.changed_at = time.monotonic()
            yield chunk


@dataclass
class Wait:
    """Waits until ``ready()`` is true, the engine ends, a deadline passes or ``diverged`` speaks.

    ``diverged`` is given each batch of new facts and the time; a Failure that it returns ends the wait.
    ``tell`` gets one progress line about every 20 s. ``notes``: what was odd, but no failure (a long silence).
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
    interval: float = field(default_factory=lambda: stages.TELL)
    notes: list[str] = field(default_factory=list)
    _silent_since: float | None = None

    def run(self) -> Failure | None:
        """None: ready. Otherwise why not; ``cause`` is only set where the wait itself knows it."""
        told = time.monotonic()
        while True:
            new = self.follow.look()
            now = time.monotonic() - self.running.launched_at
            if self.ready():
                return None
            progress = self.follow.progress()
            ended = self.running.exited()
            if ended is not None:
                return self.end(ended, progress, now)
            failure = self.diverged(new, now) or self.overrun(progress, now)
            if failure is not None:
                return failure
            self.silence(progress, now)
            if time.monotonic() - told >= self.interval:
                told = time.monotonic()
                self.tell(self.line(progress, now))
            self.running.wait_exit(LOOK)

    def end(self, ended: Exit, progress: Progress, now: float) -> Failure:
        """The engine ended, with whatever code, before it had served anything."""
        there = progress.line is None or progress.line.node in (None, ended.node)
        rank = progress.rank if there else None
        return failure_of(ended, "before it was ready", progress.phase, round(now, 3), rank)

    def overrun(self, progress: Progress, now: float) -> Failure | None:
        """A phase, or the whole start, that took longer than its deadline."""
        in_phase = now - progress.since_seconds
        reason = self.why_not_ready()
        own = self.deadlines.phases.get(progress.phase)
        limit = own or (None if progress.phase in _WHOLE else max(PHASE_LEAST, self.deadlines.ready / 2))
        where = f" on rank {progress.rank}" if progress.rank else ""
        if limit is not None and in_phase > limit:
            known = self.usual.text(self.usual.phases.get(progress.phase))
            text = f"phase {progress.phase}{where} ran {in_phase:.1f} s, its deadline is {limit:g} s"
            text += "" if own else " (none is given for it: half of ready)"
            text += f"; {known}" if known else ""
        elif now > self.deadlines.ready:
            known = self.usual.text(self.usual.ready)
            text = f"not ready after {now:.1f} s, the deadline is {self.deadlines.ready:g} s"
            text += f"; {known}" if known else ""
            text += f"; in phase {progress.phase}{where} for {in_phase:.1f} s"
            text += f"; {reason}" if reason else ""
        else:
            return None
        line, serving = progress.line, progress.phase == "serving"
        single = only_node(self.running.logs)
        return Failure(
            phase=progress.phase,
            kind="deadline",
            summary=text,
            rank=progress.rank,
            node=(line.node if line else None) or single,
            after_seconds=round(now, 3),
            helps=serving_helps(reason) if serving else _HELPS,
            no_help=SERVING_NO_HELP if serving else _NO_HELP,
            last_lines=self.follow.last_lines(),
        )

    def silence(self, progress: Progress, now: float) -> None:
        """No new line for ``deadlines.silence`` seconds: told once for each silence, and noted."""
        since = self.follow.changed_at
        if since == self._silent_since or time.monotonic() - since <= self.deadlines.silence:
            return
        self._silent_since = since
        text = f"no new log line for {self.deadlines.silence:g} s, {now:.0f} s after launch, in phase {progress.phase}"
        self.notes.append(text)
        self.tell(f"{self.name}: {text}")

    def line(self, progress: Progress, now: float) -> str:
        """``restart-1: weights on TP1, 61 s (usually 12 s); 75 s since launch``."""
        rank = f" on {progress.rank}" if progress.rank else ""
        usual = self.usual.phases.get(progress.phase)
        word = "reference" if self.usual.source == "reference" else "usually"
        known = f" ({word} {usual:.0f} s)" if usual is not None else ""
        return (
            f"{self.name}: {progress.phase}{rank}, {now - progress.since_seconds:.0f} s{known};"
            f" {now:.0f} s since launch"
        )
