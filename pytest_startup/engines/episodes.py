"""Which of the errors of a start is its first real cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_startup.engines.failures import FailureClass
from pytest_startup.engines.lines import Line
from pytest_startup.engines.tracebacks import Key

#: So many lines later, the failing rank's own words still explain what others saw first.
SYMPATHY_LINES = 400
_WORKERS = ("Worker", "VllmWorker", "RayWorker", "ServeReplica")
_NCCL_EXPLAINS = ("collective-failed", "out-of-shared-memory", "out-of-device-memory", "device-fault", "crashed")


@dataclass(frozen=True)
class Candidate:
    """Something that may be why the start failed.

    ``line`` is the first physical line with the text of the error; ``at`` and ``last`` count, over all lines in the
    order of time, that line and the last exception that belongs to it. ``text`` is everything that was said, for the
    class and its figures. ``ready``: the engine had been ready before. ``alone``: no traceback. ``mild``: usually
    survived (an error of a side thread), so it counts only where something else shows that the engine died.
    ``guessed``: no frame names the phase.
    """

    line: Line
    row: FailureClass | None
    text: str
    phase: str
    key: Key
    ready: bool
    at: int
    last: int
    alone: bool = False
    mild: bool = False
    guessed: bool = False

    @property
    def tier(self) -> str:
        """As in ``failures.TIERS``; an error of no known class may be the cause."""
        return self.row.tier if self.row else "root"

    @property
    def kind(self) -> str:
        """As in ``failures.KINDS``."""
        return self.row.kind if self.row else "unknown"

    @property
    def fatal(self) -> bool:
        """It needs no other sign: a line of its own that says that a process is lost."""
        return self.alone and self.row is not None and self.row.fatal

    @property
    def by_worker(self) -> bool:
        """Said by the process of a rank, not by the front end that hears of it."""
        process = self.key[1]
        return self.key[3] is not None if process is None else process.startswith(_WORKERS)


def first_cause(
    candidates: Sequence[Candidate], latent: Sequence[Candidate], ready: bool, died: bool, engine: bool = True
) -> Candidate | None:
    """The first real cause among the errors of a start, or None where none of them was its end.

    An engine that serves survives the errors of single requests, so then only those count that come with a sign of
    death. Before that an error that nobody recovered from is the end. What a rank says of itself wins over what its
    peers saw of it, if it says so soon; a consequence is a cause only where nothing else was said. ``engine``: the
    engine itself was heard of, so that errors of other programs do not count.
    """
    if died:
        found = list(candidates)
    elif ready:
        found = [c for c in candidates if c.fatal]
    else:
        found = [c for c in candidates if not (c.mild and engine)]
    if not found:
        return None
    found.sort(key=lambda c: c.at)
    telling = [c for c in found if c.tier in ("root", "peer")]
    telling = [c for c in telling if not c.mild] or telling
    if not telling:
        named = [c for c in found if c.kind != "unknown"]
        return _native((named or found)[0], latent)
    cause = telling[0]
    if cause.tier == "peer":
        near = cause.at + SYMPATHY_LINES
        own = [c for c in telling if c.tier == "root" and c.by_worker and c.at <= near]
        cause = own[0] if own else cause
    return _native(cause, latent)


def phase_of(cause: Candidate, candidates: Sequence[Candidate]) -> str:
    """The phase of the cause; where its own traceback was cut short, that of the same error printed again."""
    if cause.guessed:
        for other in candidates:
            if not other.guessed and other.kind == cause.kind and other.text[:80] == cause.text[:80]:
                return other.phase
    return cause.phase


def _native(cause: Candidate, latent: Sequence[Candidate]) -> Candidate:
    """An error of native code that came before, went unnoticed, and explains the cause."""
    for earlier in latent:
        explains = earlier.kind == cause.kind or ("NCCL WARN" in earlier.text and cause.kind in _NCCL_EXPLAINS)
        if explains and earlier.at < cause.at:
            return replace(cause, line=earlier.line, at=earlier.at, row=earlier.row, key=earlier.key)
    return cause
