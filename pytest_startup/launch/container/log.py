"""A container's log as records with times, read once each over every kind of break; its way into the node's files."""

from __future__ import annotations

import calendar
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere, Stream
from pytest_startup.launch.logfiles import LogFiles
from pytest_startup.redact import Redactor

_STAMP = re.compile(rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")
#: Records of stdout and stderr are written to the daemon's log by two of its threads, so that times can be slightly out
#: of order. A place to resume from is used when all that came before it is this many seconds older.
_ORDER = 5
#: A line without end is passed on in pieces from this size on.
_LONGEST = 1 << 20
_PAUSE = 0.2


@dataclass(frozen=True)
class Position:
    """How far a log has been read: ``ahead`` records of second ``since`` or later. Constant in size, and exact: the
    daemon gives records of and after a second in the order of its file, so the first ``ahead`` of them are known.

    ``next_since`` and ``next_ahead`` are the same for a later second that becomes the one to resume from.
    """

    since: int | None = None
    ahead: int = 0
    next_since: int | None = None
    next_ahead: int = 0

    def after(self, second: int) -> Position:
        """One record of ``second`` more."""
        known = replace(self, ahead=self.ahead + (self.since is None or second >= self.since))
        if self.next_since is None:
            return replace(known, next_since=second + 1)
        if second < self.next_since:
            return known
        known = replace(known, next_ahead=self.next_ahead + 1)
        if second >= self.next_since + _ORDER:
            return Position(known.next_since, known.next_ahead, second + 1, 0)
        return known


def split(record: bytes) -> tuple[float | None, bytes]:
    """(seconds since 1970, what the engine wrote) of a record with its time in front; None where it has none."""
    stamp, space, text = record.partition(b" ")
    found = _STAMP.fullmatch(stamp)
    if not space or not found:
        return None, record
    moment = calendar.timegm(tuple(int(found[i]) for i in range(1, 7)))
    zone = found[8]
    if zone != b"Z":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        moment -= offset if zone[:1] == b"+" else -offset
    return moment + float(found[7] or 0), text


def _exact(moment: float | None) -> bool:
    """Does this time tell records apart? Podman gives whole seconds, and every piece of a line its own."""
    return moment is not None and not moment.is_integer()


@dataclass
class Reading:
    """One pass over a log. ``position`` counts whole lines only: a line that a break cut is read again from its start.

    ``take`` gets (time, bytes) of each line, or of the pieces of an endless one.
    """

    position: Position
    take: Callable[[float | None, bytes], None]
    _rest: tuple[float | None, bytes, Position] | None = None

    def run(self, records: Iterator[bytes]) -> int:
        """Read to the end of ``records``; how many new lines. Raises DaemonLost from ``records``."""
        skip, lines = self.position.ahead, 0
        position = self.position
        held: list[bytes] = []
        between: list[tuple[float | None, bytes]] = []
        held_time: float | None = None
        size = 0
        for record in records:
            if skip > 0:
                skip -= 1
                continue
            moment, text = split(record)
            position = position.after(int(moment or 0))
            if held and moment != held_time and _exact(moment) and text.endswith(b"\n"):
                # the pieces of one line carry one time: this is a line of the other stream in between
                between.append((moment, text))
                size += len(text)
                continue
            held.append(text)
            held_time = moment if len(held) == 1 else held_time
            size += len(text)
            if text.endswith(b"\n") or size >= _LONGEST:
                self.take(held_time, b"".join(held))
                for other, whole in between:
                    self.take(other, whole)
                self.position = position
                held, between, size, lines = [], [], 0, lines + 1
        self._rest = (held_time, b"".join([*held, *(text for _, text in between)]), position)
        return lines

    def rest(self) -> None:
        """Take what is left of an unfinished line: nothing more will come."""
        if self._rest is not None and self._rest[1]:
            moment, text, self.position = self._rest
            self.take(moment, text)
        self._rest = None


class LogPump:
    """A thread that follows one boot of a container into the node's files until the boot is over and all is read.

    ``boot_over`` asks the daemon: True: the container does not run this boot any more; False: it does; DaemonLost.
    ``launched``: wall and monotonic clock at launch. The daemon's time of a line counts, so that neither a busy pytest
    nor a break of the connection moves it.
    """

    def __init__(
        self,
        daemon: Daemon,
        container: str,
        node: Path,
        redactor: Redactor,
        position: Position,
        launched: tuple[float, float],
        boot_over: Callable[[], bool],
    ) -> None:
        self.problem: str | None = None
        self._daemon, self._container, self._boot_over = daemon, container, boot_over
        self._wall, self._monotonic = launched
        self._last = 0.0
        self._files = LogFiles(node / "engine.log", node / "lines.tsv", redactor.stream())
        self._reading = Reading(position, self._take)
        self._stream: Stream | None = None
        self._opened = threading.Event()
        self._give_up = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="startup-container-log", daemon=True)

    @property
    def position(self) -> Position:
        """Where the next boot's log begins, once ``finish`` has said True."""
        return self._reading.position

    @property
    def error(self) -> str | None:
        return self._files.error or self.problem

    def start(self) -> None:
        self._thread.start()

    def opened(self, timeout: float) -> bool:
        """Wait until it is read for the first time, or can't be. Podman takes seconds for it where much else is done,
        and an engine must not be judged by a log that is not looked at yet."""
        return self._opened.wait(timeout)

    def reopen(self) -> None:
        """The daemon was away: a stream from before may be dead without a word."""
        stream = self._stream
        if stream is not None:
            stream.close()

    def finish(self, timeout: float) -> bool:
        """Wait until all is read; after ``timeout`` seconds give up, and say False. Idempotent."""
        whole = self._done.wait(timeout)
        self._give_up.set()
        self.reopen()
        self._thread.join(5.0)
        return whole

    def _run(self) -> None:
        try:
            while not self._give_up.is_set():
                if self._follow():
                    break
                self._give_up.wait(_PAUSE)
        except Exception as error:  # a defect of ours must be told, not end the log without a word
            self.problem = f"the log is incomplete: {type(error).__name__}: {error}"
        finally:
            self._files.close()
            if not self._give_up.is_set():
                self._done.set()

    def _follow(self) -> bool:
        """Read until the stream ends; True when the boot is over and nothing is left."""
        try:
            self._read(follow=True)
            over = self._boot_over()
            if over:
                self._read(follow=False)
                self._reading.rest()
            self.problem = None
            return over
        except NotThere:
            self.problem = "the log is incomplete: the container was removed by somebody else"
            return True
        except (DaemonLost, DaemonRefused) as error:
            self.problem = f"the log is incomplete: {error}"
            return False

    def _read(self, follow: bool) -> None:
        try:
            stream = self._daemon.logs(self._container, self._reading.position.since, follow)
        finally:
            self._opened.set()
        self._stream = stream
        try:
            self._reading.run(stream)
        finally:
            self._stream = None
            stream.close()

    def _take(self, moment: float | None, text: bytes) -> None:
        now = time.monotonic() - self._monotonic
        seconds = now if moment is None else min(now, moment - self._wall)
        self._last = max(self._last, seconds)
        self._files.feed(text, self._last)


def count(daemon: Daemon, container: str, position: Position) -> Position:
    """The position at the end of a stopped container's log, when it could not be read to its end before."""
    reading = Reading(position, lambda *_: None)
    stream = daemon.logs(container, position.since, follow=False)
    reading.run(stream)
    reading.rest()
    return reading.position
