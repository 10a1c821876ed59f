"""Reads Python tracebacks out of a log as a stream: frames, chains of exceptions, and who printed them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_startup.engines.lines import Line

OPENING = "Traceback (most recent call last)"
CONNECTORS = (
    "The above exception was the direct cause of the following exception",
    "During handling of the above exception, another exception occurred",
)

FRAME_LIMIT = 400
MESSAGE_LIMIT = 2000
MESSAGE_LINES = 80
STRAY_LIMIT = 80
OPEN_LIMIT = 64
#: Lines of others after which a traceback without its exception, or with it, has ended.
OPEN_LINES = 400
ENDED_LINES = 40

#: Issue trackers turn the quotes of pasted logs into typographic ones.
_FRAME = re.compile(r'^\s*(?:\|\s*)?File ["“](?P<file>[^"”]*)["”], line \d+(?:, in (?P<function>.+))?')
#: A frame of a traceback whose head is not in the log.
_CUT = re.compile(r'^\s*File ["“][^"”]+["”], line \d+, in \S')
_EXCEPTION = re.compile(
    r"^(?:\s*\|\s*)?(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\([\w.]+\))?)(?P<colon>: ?(?P<message>.*))?$", re.S
)
_LOOKS_RAISED = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Timeout|Expired|Failed|Failure|Warning|Group|Abort|error|timeout)\)?$"
)
_LEVELS = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL", "NOTE", "WARN"}
_PREFIX = re.compile(r"^(?:\((?:[A-Za-z][\w.\-]*(?: [\w=]+)? )?pid=\d+(?:, [\w=.:, ]+)?\) ?)+")
#: What torch puts before each line of an uncaught exception.
_RANKED = re.compile(r"^(?:\[(?P<rank>rank\d+)\])?:(?: |$)")
_BRACKET = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d")
#: Beginnings of a new record or of another program's line: they end the message of an exception.
_RECORD = re.compile(
    r"^(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[: ]|\[?\d{4}-\d\d-\d\d[ T]\d\d:|[IWEF]\d{4} \d\d:|"
    r"\([\w ]+ pid=|\[rank\d+\]:|Process \w|===|\$ |root@)"
)


@dataclass(frozen=True)
class Frame:
    """One frame: the path as printed and the function's name."""

    file: str
    function: str


@dataclass
class Raised:
    """One exception as printed: its first physical line, its class, its message (shortened) and its frames."""

    line: Line
    name: str
    message: str
    frames: tuple[Frame, ...]
    at: int = 0

    @property
    def text(self) -> str:
        """``ValueError: no room``; with the continuation lines of the message behind it."""
        return f"{self.name}: {self.message}" if self.message else self.name


@dataclass
class Chain:
    """Exceptions that belong together, in the order in which they were printed (the first one is the first cause).

    ``at`` (also of each exception) counts the lines that were read until then: the order of time, also where line
    numbers fall (a log that is read backwards) or come from several files.
    """

    opener: Line
    at: int
    raised: list[Raised] = field(default_factory=list)

    @property
    def first(self) -> Raised:
        """The exception that was raised first: the others were raised while it was handled."""
        return self.raised[0]

    def frames(self) -> list[Frame]:
        """Of all its exceptions, in the order in which they were printed."""
        return [frame for raised in self.raised for frame in raised.frames]


@dataclass
class _Open:
    chain: Chain
    mode: str = "frames"
    frames: list[Frame] = field(default_factory=list)
    stray: int = 0
    carrier: Raised | None = None
    newest: int = 0

    def silent(self, now: int) -> bool:
        """Nobody went on with it for long: it has ended."""
        return now - self.newest > (OPEN_LINES if self.mode == "frames" else ENDED_LINES)


Key = tuple[str | None, str | None, int | None, str | None]


def speaker(line: Line) -> Key:
    """Who prints: node, process, pid and rank. Unnamed lines of a node share one speaker."""
    rank = line.rank
    if rank is None and line.process is None:
        ranked = _RANKED.match(line.text)
        rank = ranked["rank"] if ranked else None
    return (line.node, line.process, line.pid, rank)


def content(line: Line) -> str:
    """What the line says, with its indentation: behind the record header if it has one, else behind the prefix."""
    if line.level is not None or _BRACKET.match(line.text):
        return line.message.rstrip()
    return _RANKED.sub("", _PREFIX.sub("", line.text)).rstrip()


def raised_alone(line: Line) -> Raised | None:
    """The exception that stands on a line without any traceback, as in logs that were searched for errors."""
    found = _EXCEPTION.match(content(line))
    if not found or not found["colon"] or not _LOOKS_RAISED.search(found["name"]) or found["name"] in _LEVELS:
        return None
    return Raised(line, found["name"], (found["message"] or "")[:MESSAGE_LIMIT], ())


class TracebackReader:
    """Feed it lines in order; it returns each chain of exceptions when that has ended.

    Each speaker has its own open traceback, so those of several ranks may interleave. A record without a process prefix
    (SGLang) opens one whose other lines are bare; those are taken by the last such record.
    """

    def __init__(self) -> None:
        self._open: dict[Key, _Open] = {}
        self._bare: Key | None = None
        #: The last line fed was taken as part of a traceback (not the one that opens it).
        self.took = False
        #: How many lines were fed.
        self.count = 0
        #: The last line fed opens a traceback.
        self.began = False

    @property
    def reading(self) -> bool:
        """A traceback is open: the lines that follow are wanted, whatever they hold."""
        return bool(self._open)

    def feed(self, line: Line) -> list[Chain]:
        """One more line; the chains that it ended (usually none)."""
        self.count += 1
        done: list[Chain] = []
        key = self._key(line)
        for other in [k for k, o in self._open.items() if k != key and o.silent(self.count)]:
            self._close(other, done)
        opened = self._open.get(key)
        if opened is not None and not self._continue(opened, line):
            self._close(key, done)
            opened = None
        self.began = opened is None and OPENING in line.text
        headless = opened is None and not self.began and "File " in line.text and _CUT.match(content(line))
        if self.began or headless:
            self._begin(key, line, done)
        if headless:
            self._continue(self._open[key], line)
        self.took = opened is not None or bool(headless)
        return done

    def finish(self) -> list[Chain]:
        """The input has ended: what was open."""
        done: list[Chain] = []
        for key in list(self._open):
            self._close(key, done)
        return done

    def _key(self, line: Line) -> Key:
        key = speaker(line)
        if key in self._open or self._bare is None or self._bare not in self._open:
            return key
        if key[1] is None and key[3] is None and line.level is None and line.node == self._bare[0]:
            return key if _RECORD.match(line.text) else self._bare
        return key

    def _begin(self, key: Key, line: Line, done: list[Chain]) -> None:
        if len(self._open) >= OPEN_LIMIT:
            self._close(next(iter(self._open)), done)
        self._open[key] = _Open(Chain(line, self.count), newest=self.count)
        if line.process is None:
            self._bare = key

    def _close(self, key: Key, done: list[Chain]) -> None:
        opened = self._open.pop(key)
        if self._bare == key:
            self._bare = None
        if opened.carrier is not None:
            opened.chain.raised.append(opened.carrier)
        if opened.chain.raised:
            done.append(opened.chain)

    def _continue(self, opened: _Open, line: Line) -> bool:
        """Whether the line belongs to the open chain (and takes it in)."""
        opened.newest = self.count
        text = content(line)
        bare = opened.chain.opener.level is None
        if bare and (line.level is not None or _BRACKET.match(line.text) or _RECORD.match(text)):
            return False
        if not bare and line.level is None and line.process != opened.chain.opener.process:
            return False
        if opened.mode == "frames":
            return self._frame(opened, line, text)
        if OPENING in text:
            if opened.mode != "between":
                return False
            opened.mode, opened.frames, opened.stray = "frames", [], 0
            return True
        if any(words in text for words in CONNECTORS):
            opened.mode = "between"
            return True
        opener = opened.chain.opener
        if not bare and (line.level, line.source) != (opener.level, opener.source):
            return False
        opened.stray += 1
        if opened.stray > MESSAGE_LINES:
            return False
        last = opened.chain.raised[-1]
        if opened.mode == "message" and text.strip() and len(last.message) < MESSAGE_LIMIT:
            last.message = f"{last.message}\n{text.rstrip()}"[:MESSAGE_LIMIT]
        return True

    def _frame(self, opened: _Open, line: Line, text: str) -> bool:
        found = _FRAME.match(text)
        if found:
            opened.stray = 0
            if len(opened.frames) < FRAME_LIMIT:
                opened.frames.append(Frame(found["file"], (found["function"] or "").strip()))
            return True
        if OPENING in text:
            return False
        plain = text.lstrip("| ")
        if not plain or (text[:1].isspace() and not text.lstrip().startswith("|")):
            return True
        raised = _EXCEPTION.match(text)
        if raised and raised["name"] not in _LEVELS and (_LOOKS_RAISED.search(raised["name"]) or raised["colon"]):
            # ``self.comm: ncclComm_t = …`` is code of a frame that lost its indentation.
            if not _LOOKS_RAISED.search(raised["name"]) and not raised["name"].rsplit(".", 1)[-1][0].isupper():
                return self._stray(opened)
            seen = Raised(
                line, raised["name"], (raised["message"] or "")[:MESSAGE_LIMIT], tuple(opened.frames), self.count
            )
            if "RayTaskError(" in seen.name:
                opened.carrier = seen
                return True
            opened.carrier = None
            opened.chain.raised.append(seen)
            opened.mode, opened.stray = "message", 0
            return True
        return self._stray(opened)

    @staticmethod
    def _stray(opened: _Open) -> bool:
        opened.stray += 1
        return opened.stray <= STRAY_LIMIT
