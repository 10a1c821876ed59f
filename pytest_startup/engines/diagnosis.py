"""What became of a start: its phases, readiness, the failure with its first cause, and the reuse of compilation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_startup.engines.base import LogSummary, Progress
from pytest_startup.engines.failure_help import advice
from pytest_startup.engines.failure_table import SIGN_ANCHORS, TABLE, sign_of
from pytest_startup.engines.failures import FailureClass, summary
from pytest_startup.engines.frames import phase_of_frames
from pytest_startup.engines.lines import Line
from pytest_startup.engines.phase_book import PhaseBook
from pytest_startup.engines.phases import OpenerTable
from pytest_startup.engines.reuse import CompileReuse
from pytest_startup.engines.rules import evidence
from pytest_startup.engines.tracebacks import OPENING, Chain, Key, TracebackReader, speaker
from pytest_startup.record import Evidence, Fact, Failure

_OPENERS = OpenerTable()

#: Literals of lines that the tracker must be shown, also amid the traffic of a serving engine.
ANCHORS: tuple[str, ...] = tuple(
    dict.fromkeys((OPENING, *TABLE.anchors, *SIGN_ANCHORS, " ERROR ", "CRITICAL ", *_OPENERS.anchors))
)

#: An error in serving that nothing confirms within so many lines was about one request.
EPISODE_LINES = 3000
#: So many lines later, the failing rank's own words still explain what others saw first.
SYMPATHY_LINES = 400
#: An old engine core that "died" so few lines before a stop was stopped.
STOP_LINES = 40
CANDIDATES = 32
LAST_LINES = 5

_PHASE_OF_FACT = {
    "weights.load": "weights",
    "compile.total": "compile",
    "graphs.seconds": "graph-capture",
}
_IGNORED_OPENERS = ("Exception ignored in", "--- Logging error ---")
_NOT_FATAL_OPENERS = ("Exception in thread", "Exception in ASGI application", "Task exception was never retrieved")
_WORKERS = ("Worker", "VllmWorker", "RayWorker", "ServeReplica")
_COMPILERS = ("/_inductor/", "/_dynamo/", "/compilation/")
_LOST = ("killed", "crashed", "process-died")


@dataclass
class _Candidate:
    """Something that may be why the start failed."""

    line: Line
    row: FailureClass | None
    text: str
    phase: str
    key: Key
    ready: bool
    last_line: int
    alone: bool = False

    @property
    def tier(self) -> str:
        return self.row.tier if self.row else "root"

    @property
    def kind(self) -> str:
        return self.row.kind if self.row else "unknown"

    @property
    def by_worker(self) -> bool:
        return self.line.rank is not None or (self.line.process or "").startswith(_WORKERS)


class StartTracker:
    """Follows one start line by line, in constant memory.

    ``line`` wants every line until the engine serves; after that at least those that hold one of ``ANCHORS``, and,
    while ``reading`` is true, whatever follows.
    """

    def __init__(self, where: str = "engine.log") -> None:
        self._where = where
        self._book = PhaseBook(where)
        self._tracebacks = TracebackReader()
        self._reuse = CompileReuse()
        self._candidates: list[_Candidate] = []
        self._latent: list[_Candidate] = []
        self._last: deque[Line] = deque(maxlen=LAST_LINES)
        self._before: deque[Line] = deque(maxlen=3)
        self._first: Line | None = None
        self._newest = 0
        self._engine: str | None = None
        self._ready: Line | None = None
        self._died: Line | None = None
        self._stopping: Line | None = None
        self._error: Line | None = None
        self._waiting: Line | None = None

    @property
    def reading(self) -> bool:
        """A traceback is open: the next lines are wanted whatever they hold."""
        return self._tracebacks.reading

    def line(self, line: Line, facts: Sequence[Fact]) -> None:
        """One more line of this start, with the facts that it states."""
        if self._first is None:
            self._first = line
            self._book.begin(line)
        self._newest = max(self._newest, line.number)
        for chain in self._tracebacks.feed(line):
            self._raised(chain)
        inside = self._tracebacks.took
        if not inside:
            self._plain(line)
            if line.text.strip():
                self._before.append(line)
        for fact in facts:
            if fact.evidence.where != self._where:
                self._where = fact.evidence.where
            self._reuse.fact(fact)
            phase = _PHASE_OF_FACT.get(fact.name)
            if phase and isinstance(fact.value, (int, float)):
                self._book.stated(phase, float(fact.value), line)
        if line.text.strip():
            self._last.append(line)

    def progress(self) -> Progress:
        """The current phase of the rank that is furthest behind."""
        return self._book.furthest_behind()

    def finish(self) -> LogSummary:
        """What the lines say all in all. The reader fills in ``start``, the lines and the engine."""
        for chain in self._tracebacks.finish():
            self._raised(chain)
        cause = self._cause()
        failure = self._failure(cause) if cause else self._ended()
        failed = True if cause or (failure and failure.kind == "interrupted") else False if self._ready else None
        ready: bool | None = True if self._ready else False if failed else None
        last = failure.phase if failed and failure and failure.phase else self._book.last_phase()
        return LogSummary(
            start=0,
            first_line=self._first.number if self._first else 0,
            last_line=self._newest,
            ready=ready,
            ready_line=self._ready.number if self._ready else None,
            failed=failed,
            failure=failure,
            compile_reused=self._reuse.verdict(self._engine),
            phases=self._book.spans(),
            last_phase=last,
        )

    # What one line says

    def _plain(self, line: Line) -> None:
        """A line outside of tracebacks."""
        message = line.message
        sign = sign_of(message, line.process)
        if sign is not None:
            if sign.effect == "ready":
                self._claims_ready(line)
            elif sign.effect == "died":
                if self._stopping is None and self._died is None:
                    self._died = line
            elif self._stopping is None:
                self._asked_to_stop(line)
        opener = _OPENERS.match(message) if line.level != "DEBUG" else None
        if opener is not None and self._stopping is None:
            self._engine = self._engine or opener.engine
            self._recovered(line)
            self._book.opened(opener, line)
        else:
            self._book.seen(line)
        if opener is None and sign is None and _answered(message):
            self._claims_ready(line)
        if self._stopping is None:
            self._alone(line)
        if line.level in ("ERROR", "CRITICAL"):
            self._error = line
        if "TCP client failed to connect" in message or (
            "distributed_init_method=" in message and line.level != "DEBUG"
        ):
            self._waiting = line

    def _alone(self, line: Line) -> None:
        if line.level in ("INFO", "DEBUG"):
            return
        row = TABLE.of_line(line.text)
        if row is None or (line.level == "WARNING" and row.kind not in _LOST):
            return
        phase = row.phase or self._book.phase_of(line.node, line.rank)
        found = _Candidate(line, row, line.text, phase, speaker(line), self._ready is not None, line.number, alone=True)
        if row.tier == "latent":
            if len(self._latent) < CANDIDATES:
                self._latent.append(found)
            return
        self._add(found)
        if row.fatal and self._died is None and row.tier != "latent":
            self._died = line

    def _raised(self, chain: Chain) -> None:
        """A chain of exceptions has ended."""
        if self._stopping is not None and chain.opener.number >= self._stopping.number:
            return
        opener = chain.opener
        heads = [opener.text, *(line.text for line in self._before)]
        if any(words in head for head in heads for words in _IGNORED_OPENERS):
            return
        if opener.level in ("WARNING", "INFO", "DEBUG"):
            return
        row = next((r for raised in chain.raised if (r := TABLE.of_error(raised.text, raised.frames))), None)
        first = chain.first
        whole = TABLE.of_error(first.text, chain.frames())
        row = whole or row
        if row is not None and row.kind == "interrupted" and self._ready is not None:
            self._stopping = self._stopping or opener
            return
        phase = self._phase_of(chain, row)
        text = "\n".join(raised.text for raised in chain.raised)
        found = _Candidate(
            first.line, row, text, phase, speaker(opener), self._ready is not None, chain.raised[-1].line.number
        )
        found.line = first.line
        self._add(found)
        if row is not None and row.tier == "summary" and row.kind != "interrupted" and "EngineDead" in text:
            self._died = self._died or first.line

    def _phase_of(self, chain: Chain, row: FailureClass | None) -> str:
        current = self._book.phase_of(chain.opener.node, chain.opener.rank)
        if row is not None and row.phase:
            return row.phase
        named: str | None = None
        weak_named: str | None = None
        for raised in chain.raised:
            phase, weak = phase_of_frames(raised.frames)
            if phase and not weak:
                named = phase
                break
            weak_named = weak_named or phase
        if named is None:
            named = weak_named if self._ready or current in ("launch", "api", "serving") else None
        if named == "profiling" and row is not None and row.kind in ("kernel-build", "corrupted-cache"):
            compiling = any(part in frame.file for frame in chain.frames() for part in _COMPILERS)
            return "compile" if compiling else named
        return named or current

    def _claims_ready(self, line: Line) -> None:
        if self._ready is not None or self._stopping is not None or self._died is not None:
            return
        self._ready = line
        self._candidates.clear()

    def _asked_to_stop(self, line: Line) -> None:
        if self._died is not None and not self._was_stopped(line):
            return
        if self._candidates and self._ready is None and self._cause() is not None:
            return
        self._stopping = line
        self._candidates.clear()

    def _was_stopped(self, line: Line) -> bool:
        """An old engine core that died just before a stop, and nobody missed it: both obeyed the same signal."""
        if self._ready is None or self._died is None or line.number - self._died.number > STOP_LINES:
            return False
        if any(c.kind != "process-died" or "ngine core proc" not in c.text for c in self._candidates):
            return False
        self._died = None
        return True

    def _recovered(self, line: Line) -> None:
        """Whoever makes progress after an error has recovered from it."""
        if self._died is None and self._candidates:
            key = speaker(line)
            self._candidates = [c for c in self._candidates if c.key != key or c.alone]

    def _add(self, found: _Candidate) -> None:
        if self._ready is not None and self._died is None:
            oldest = found.line.number - EPISODE_LINES
            self._candidates = [c for c in self._candidates if c.last_line >= oldest]
        if len(self._candidates) < CANDIDATES:
            self._candidates.append(found)

    # What they say together

    def _cause(self) -> _Candidate | None:
        """The first real cause, or None where nothing failed."""
        found = self._candidates
        if self._ready is not None and self._died is None:
            found = [c for c in found if c.alone and c.row and c.row.fatal]
        elif self._ready is None and self._died is None:
            found = [c for c in found if not self._harmless(c)]
        if not found:
            return None
        found = sorted(found, key=lambda c: c.line.number)
        telling = [c for c in found if c.tier in ("root", "peer")]
        if not telling:
            named = [c for c in found if c.kind != "unknown"]
            cause = (named or found)[0]
        else:
            cause = telling[0]
            if cause.tier == "peer":
                own = [
                    c
                    for c in telling
                    if c.tier == "root" and c.by_worker and c.line.number - cause.line.number <= SYMPATHY_LINES
                ]
                cause = own[0] if own else cause
        return self._native(cause)

    def _native(self, cause: _Candidate) -> _Candidate:
        """An error of native code that came before, went unnoticed, and explains the cause."""
        for latent in self._latent:
            related = latent.kind == cause.kind or (
                "NCCL WARN" in latent.text
                and cause.kind
                in ("collective-failed", "out-of-shared-memory", "out-of-device-memory", "device-fault", "crashed")
            )
            if related and latent.line.number < cause.line.number:
                return _Candidate(
                    latent.line, latent.row, cause.text, cause.phase, latent.key, cause.ready, cause.last_line
                )
        return cause

    def _harmless(self, candidate: _Candidate) -> bool:
        return candidate.tier == "latent"

    def _failure(self, cause: _Candidate) -> Failure:
        kind = cause.kind
        if kind == "unknown":
            others = [c for c in self._candidates if c.kind != "unknown" and c.text.startswith(cause.text[:40])]
            kind = others[0].kind if others else kind
        helps, no_help = advice(kind, cause.phase)
        line = cause.line
        begin = self._first.seconds if self._first and self._first.seconds is not None else 0.0
        return Failure(
            phase=cause.phase,
            kind=kind,
            summary=summary(kind, cause.text),
            cause=self._evidence(line),
            rank=line.rank,
            node=line.node,
            after_seconds=None if line.seconds is None else line.seconds - begin,
            helps=helps,
            no_help=no_help,
            last_lines=tuple(self._evidence(last) for last in self._last),
        )

    def _ended(self) -> Failure | None:
        """The log holds no error: nothing to explain if the engine was ready, else it was stopped or just stops."""
        if self._ready is not None or self._first is None:
            return None
        phase = self._book.last_phase()
        line: Line | None = None
        kind = "stopped"
        if self._died is not None:
            line = self._error if self._error and self._error.number <= self._died.number else self._died
            kind = "unknown"
        elif self._stopping is not None:
            kind, line = "interrupted", self._stopping
        elif phase == "device-init" and self._waiting is not None:
            kind = "peer-missing"
        helps, no_help = advice(kind, phase)
        text = summary("stopped", "") if kind == "peer-missing" else summary(kind, "")
        if kind == "peer-missing":
            text += "; its last act was to wait for its peers"
        return Failure(
            phase=phase,
            kind=kind,
            summary=text,
            cause=self._evidence(line) if line else None,
            rank=line.rank if line else None,
            helps=helps,
            no_help=no_help,
            last_lines=tuple(self._evidence(last) for last in self._last),
        )

    def _evidence(self, line: Line) -> Evidence:
        return evidence(line, self._where)


def _answered(message: str) -> bool:
    """The server's own answer 200 to a health check, a list of models or a completion."""
    if '" 200' not in message:
        return False
    return any(path in message for path in ('"GET /health', '"GET /v1/models', '"POST /v1/'))
