"""What became of a start: its phases, readiness, the failure with its first cause, and the reuse of compilation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from pytest_startup.engines import suspects
from pytest_startup.engines.anchors import anchored, answered, bracketed, in_use
from pytest_startup.engines.base import LogSummary, Progress
from pytest_startup.engines.episodes import Candidate, first_cause, phase_of
from pytest_startup.engines.failure_table import sign_of
from pytest_startup.engines.lines import Line
from pytest_startup.engines.phase_book import PhaseBook
from pytest_startup.engines.phase_table import SERVING
from pytest_startup.engines.phase_table import TABLE as OPENERS
from pytest_startup.engines.phases import order
from pytest_startup.engines.reuse import CompileReuse
from pytest_startup.engines.tracebacks import Chain, TracebackReader, speaker
from pytest_startup.engines.verdict import described, without_reason
from pytest_startup.record import Fact, Failure

#: An error in serving that nothing confirms within so many lines was about one request.
EPISODE_LINES = 3000
#: An old engine core that "died" so few lines before a stop was stopped.
STOP_LINES = 40
CANDIDATES = 32
LAST_LINES = 5
SERVICES = 64

_PHASE_OF_FACT = {
    "weights.load": "weights",
    "compile.total": "compile",
    "graphs.seconds": "graph-capture",
}
_GIVEN_UP = "Engine core initialization failed"


class StartTracker:
    """Follows one start line by line, in constant memory.

    ``line`` wants every line until the engine serves; after that at least those that hold one of ``anchors.ANCHORS``,
    and, while ``reading`` is true, whatever follows.
    """

    def __init__(self, where: str = "engine.log") -> None:
        self._where = where
        self._book = PhaseBook(where)
        self._tracebacks = TracebackReader()
        self._reuse = CompileReuse()
        self._candidates: list[Candidate] = []
        self._latent: list[Candidate] = []
        self._last: deque[Line] = deque(maxlen=LAST_LINES)
        self._before: deque[Line] = deque(maxlen=2)
        self._heads: dict[int, tuple[Line, ...]] = {}
        self._first: Line | None = None
        self._newest = 0
        self._since = 0
        self._died_at = 0
        self._stopped_at = 0
        self._error_at = 0
        self._engine: str | None = None
        self._ready: Line | None = None
        self._died: Line | None = None
        self._stopping: Line | None = None
        self._error: Line | None = None
        self._waiting: Line | None = None
        self._services: set[str] = set()

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
        if line.node is not None and len(self._services) < SERVICES:
            self._services.add(line.node)
        for chain in self._tracebacks.feed(line):
            self._raised(chain)
        if not self._tracebacks.took:
            if self._tracebacks.began:
                self._heads[self._tracebacks.count] = tuple(self._before)
                if len(self._heads) > CANDIDATES:
                    del self._heads[next(iter(self._heads))]
            self._plain(line)
            if line.text.strip():
                self._before.append(line)
        if "rank" in line.message:
            self._reuse.line(line)
        for fact in facts:
            self._where = fact.evidence.where or self._where
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
        cause = first_cause(
            self._candidates, self._latent, self._ready is not None, self._died is not None, self._engine is not None
        )
        failure = self._failure(cause) if cause else self._without_cause()
        failed = True if failure and failure.kind != "stopped" and failure.kind != "peer-missing" else None
        if cause or self._died is not None:
            failed = True
        elif failed is None and self._ready is not None:
            failed = False
        ready: bool | None = True if self._ready else False if failed else None
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
            last_phase=failure.phase if failed and failure and failure.phase else self._book.last_phase(),
        )

    # What one line says

    def _plain(self, line: Line) -> None:
        """A line outside of tracebacks."""
        message = line.message
        if line.level in ("ERROR", "CRITICAL"):
            self._error, self._error_at = line, self._tracebacks.count
        if not anchored(line.text):
            if self._ready is None and self._stopping is None and in_use(message):
                self._book.opened(SERVING, line)
            self._book.seen(line)
            if self._stopping is None and "rror: " in message:
                self._alone(line)
            if answered(message, self._engine == "sglang" or bracketed(line.text)):
                self._claims_ready(line, explicit=False)
            return
        self._sign(line)
        opener = OPENERS.match(message) if line.level != "DEBUG" else None
        if opener is not None and opener.phase == "serving" and opener is not SERVING and self._ready is None:
            opener = None
        if opener is not None and self._stopping is None:
            self._engine = self._engine or opener.engine
            self._recovered(line)
            self._book.opened(opener, line)
        else:
            self._book.seen(line)
        if self._stopping is None:
            self._alone(line)
        if "TCP client failed to connect" in message or (
            "distributed_init_method=" in message and line.level != "DEBUG"
        ):
            self._waiting = line

    def _sign(self, line: Line) -> None:
        sign = sign_of(line.message, line.process)
        if sign is None:
            return
        if sign.effect == "ready":
            sglang = self._engine == "sglang" or bracketed(line.text)
            if not (sglang and "startup complete" in line.message):
                self._claims_ready(line, explicit=True)
        elif sign.effect == "died":
            if self._stopping is None:
                self._forget(self._tracebacks.count)
                self._dies(line, self._tracebacks.count)
        elif self._stopping is None:
            self._asked_to_stop(line)

    def _alone(self, line: Line) -> None:
        """An error that is no traceback."""
        if self._services and " exited with code " in line.text and not self._own(line.text.split(" ", 1)[0]):
            return
        found = suspects.of_line(line, self._tracebacks.count, self._phase_of, self._ready is not None)
        if found is None:
            return
        if found.tier == "latent":
            if len(self._latent) < CANDIDATES:
                self._latent.append(found)
            return
        if found.kind == "port-taken" and "attempting to bind" in line.text:
            self._ready = None
        self._add(found)
        if found.fatal:
            self._dies(line, found.at)

    def _own(self, name: str) -> bool:
        """Whether a service of a compose file is one whose lines were seen. Compose 1 put the project before the name
        where a service ends, others put a number behind it."""
        return any(name in (one, f"{one}-1", f"{one}_1") or name.endswith(f"_{one}") for one in self._services)

    def _raised(self, chain: Chain) -> None:
        """A chain of exceptions has ended."""
        heads = self._heads.pop(chain.at, ())
        late = self._stopping is not None and chain.at >= self._stopped_at
        found = None
        if not late and chain.first.at >= self._since:
            found = suspects.of_chain(chain, heads, self._phase_of, self._ready is not None)
        if found is None:
            return
        if found.kind == "interrupted" and self._ready is not None:
            self._asked_to_stop(chain.opener)
            return
        self._add(found)
        if found.tier == "summary" and any(words in found.text for words in ("EngineDead", _GIVEN_UP)):
            self._dies(found.line, found.at)

    def _phase_of(self, line: Line) -> str:
        return self._book.phase_of(line.node, line.rank)

    def _dies(self, line: Line, at: int) -> None:
        if self._died is None:
            self._died, self._died_at = line, at

    def _claims_ready(self, line: Line, explicit: bool) -> None:
        """The engine is ready. An explicit claim outweighs every death before it: that was another attempt's."""
        if self._ready is not None or self._stopping is not None or (self._died is not None and not explicit):
            return
        self._ready, self._died = line, None
        self._since = self._tracebacks.count
        self._candidates.clear()
        self._book.opened(SERVING, line)

    def _asked_to_stop(self, line: Line) -> None:
        if self._stopping is not None or (self._died is not None and not self._was_stopped(line)):
            return
        if self._ready is None and first_cause(self._candidates, (), False, False) is not None:
            return
        self._stopping, self._stopped_at = line, self._tracebacks.count
        self._candidates.clear()
        self._book.stopping(line)

    def _was_stopped(self, line: Line) -> bool:
        """An engine core of an old version that is gone just before a stop: both obeyed the same signal.

        Where the front end only ends because its engine died, it prints uvicorn's bare words.
        """
        if self._ready is None or self._died is None or self._tracebacks.count - self._died_at > STOP_LINES:
            return False
        if line.message.strip() == "Shutting down":
            return False
        if any(c.tier != "summary" and "ngine core proc" not in c.text for c in self._candidates):
            return False
        self._died = None
        return True

    def _recovered(self, line: Line) -> None:
        """Whoever makes progress after an error has recovered from it."""
        self._candidates = [c for c in self._candidates if c.kind != "launch-failed"]
        if self._died is not None and _GIVEN_UP in self._died.text and "LLM engine" in line.message:
            # The front end had given up: this is another attempt in a log that does not show its beginning.
            self._died = None
            self._since = self._tracebacks.count
            self._candidates.clear()
        if self._died is None and self._candidates:
            key = speaker(line)
            self._candidates = [c for c in self._candidates if c.key != key or c.fatal]

    def _add(self, found: Candidate) -> None:
        self._forget(found.at)
        if len(self._candidates) < CANDIDATES:
            self._candidates.append(found)

    def _forget(self, now: int) -> None:
        """Errors of single requests that the engine survived for long."""
        if self._ready is not None and self._died is None:
            self._candidates = [c for c in self._candidates if c.last >= now - EPISODE_LINES]

    # What they say together

    def _failure(self, cause: Candidate) -> Failure:
        line = cause.line
        begin = self._first.seconds if self._first and self._first.number > 1 and self._first.seconds else 0.0
        known = line if cause.tier != "summary" or cause.kind != "unknown" else None
        failure = self._described(cause.kind, phase_of(cause, self._candidates), cause.text, known)
        if known is None:
            failure = without_reason(failure, line.number, cause.text)
        after = None if line.seconds is None else line.seconds - begin
        return replace(failure, rank=cause.key[3], node=line.node, after_seconds=after)

    def _without_cause(self) -> Failure | None:
        """No error explains the end. None where there is nothing to explain."""
        if self._first is None:
            return None
        phase = self._book.reached()
        if self._died is not None:
            failure = self._described("unknown", phase, "", self._last_error())
            if failure.cause is None:
                return without_reason(failure, self._died.number, self._died.message)
            return failure
        if self._ready is not None:
            return None
        if self._stopping is not None:
            return self._described("interrupted", phase, "", self._stopping) if self._interrupted(phase) else None
        if phase == "device-init" and self._waiting is not None:
            return self._described("peer-missing", phase, "", None)
        return self._described("stopped", phase, "", None)

    def _last_error(self) -> Line | None:
        """The last record of an error before the engine died, if it is more than the news of that."""
        error = self._error
        if error is None or not 0 <= self._died_at - self._error_at <= STOP_LINES:
            return None
        return None if sign_of(error.message, error.process) else error

    def _described(self, kind: str, phase: str, text: str, line: Line | None) -> Failure:
        return described(kind, phase, text, line, self._last, self._where)

    def _interrupted(self, phase: str) -> bool:
        """Stopped before it was up. A node without API server and an engine without one never claim to be ready."""
        if self._engine is None or self._stopping is None:
            return False
        headless = self._stopping.process == "MainProcess"
        return order(phase) < order("kv-reservation" if headless else "api")
