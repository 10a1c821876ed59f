"""Makes candidates for the cause of a failure out of tracebacks and of lines that are errors in themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pytest_startup.engines.episodes import Candidate
from pytest_startup.engines.failure_table import TABLE
from pytest_startup.engines.failures import FailureClass
from pytest_startup.engines.frames import phase_of_frames
from pytest_startup.engines.lines import Line
from pytest_startup.engines.tracebacks import Chain, raised_alone, speaker

#: The current phase of whoever printed a line, as far as earlier lines tell.
PhaseOf = Callable[[Line], str]

_IGNORED_HEADS = ("Exception ignored in", "--- Logging error ---")
_MILD_HEADS = ("Exception in thread", "Exception in ASGI application", "Task exception was never retrieved")
_COMPILERS = ("/_inductor/", "/_dynamo/", "/compilation/")
_ENGINE_FILES = ("vllm", "sglang", "torch", "/ray/", "uvicorn", "transformers", "huggingface_hub", "multiprocessing")
_LOST = ("killed", "crashed", "process-died")
#: Warnings of torch and other native code: ``W0607 11:56:57.513000 1 torch/x.py:3] …``.
_GLOG_WARNING = re.compile(r"^(?:\[rank\d+\]:)?\[?[WI]\d{3,4} \d\d:")


def of_chain(chain: Chain, heads: Sequence[Line], phase_of: PhaseOf, ready: bool) -> Candidate | None:
    """What a chain of exceptions may be the cause of; None where it says itself that it was survived.

    ``heads``: the lines of the log before the traceback. The first printed exception is the cause; the phase is that
    of the innermost telling frame of the first exception that has one.
    """
    opener, first = chain.opener, chain.first
    words = [opener.text, *(line.text for line in heads)]
    if any(mark in text for text in words for mark in _IGNORED_HEADS) or _GLOG_WARNING.match(opener.text):
        return None
    if opener.level in ("WARNING", "INFO", "DEBUG") and opener.source is not None:
        return None
    row = TABLE.of_error(first.text, chain.frames())
    if row is None:
        row = next((r for raised in chain.raised if (r := TABLE.of_error(raised.text, raised.frames))), None)
    phase = _phase(chain, row)
    announced = _announced(heads, opener, first.message)
    return Candidate(
        line=announced or first.line,
        row=row,
        text="\n".join(raised.text for raised in chain.raised),
        phase=phase or phase_of(opener),
        guessed=phase is None,
        key=speaker(opener),
        ready=ready,
        at=chain.at - 1 if announced else first.at,
        last=chain.raised[-1].at,
        mild=any(mark in text for text in words for mark in _MILD_HEADS) or not _of_engine(chain),
    )


def of_line(line: Line, at: int, phase_of: PhaseOf, ready: bool) -> Candidate | None:
    """What a line outside of tracebacks may be the cause of: an error in itself, or an exception without traceback."""
    if line.level in ("INFO", "DEBUG") and line.source is not None:
        return None
    if _GLOG_WARNING.match(line.text):
        return None
    # What native code prints behind the prefix of a process (Ray puts one before everything) begins there.
    row = TABLE.of_line(line.text) or (TABLE.of_line(line.message) if line.message != line.text else None)
    text = line.text
    alone = row is not None
    if row is None:
        raised = raised_alone(line) if line.level in ("ERROR", "CRITICAL", None) else None
        if raised is None:
            return None
        text = raised.text
        row = TABLE.of_error(text)
    elif line.level == "WARNING" and row.kind not in _LOST:
        return None
    stated = row.phase if row else None
    return Candidate(
        line=line,
        row=row,
        text=text,
        phase=stated or phase_of(line),
        guessed=stated is None,
        key=speaker(line),
        ready=ready,
        at=at,
        last=at,
        alone=alone,
        mild=not alone and line.level is None,
    )


def _phase(chain: Chain, row: FailureClass | None) -> str | None:
    """What the rank was doing, as far as the errors and their frames say so."""
    rows = (row, *(TABLE.of_error(raised.text) for raised in chain.raised))
    stated = next((found.phase for found in rows if found is not None and found.phase), None)
    if stated:
        return stated
    named: str | None = None
    weakly: str | None = None
    for raised in chain.raised:
        phase, weak = phase_of_frames(raised.frames)
        if phase and not weak:
            named = phase
            break
        weakly = weakly or phase
    if named == "profiling" and row is not None and row.kind in ("kernel-build", "corrupted-cache"):
        compiling = any(part in frame.file for frame in chain.frames() for part in _COMPILERS)
        return "compile" if compiling else named
    return named or weakly


def _announced(heads: Sequence[Line], opener: Line, message: str) -> Line | None:
    """The record before the traceback, where that is the exception's message already (``logger.exception(error)``)."""
    if not heads or opener.source is None or len(message) < 12:
        return None
    said = heads[-1]
    same = said.source == opener.source and speaker(said) == speaker(opener)
    return said if same and said.message.strip() and message.startswith(said.message.strip()[:60]) else None


def _of_engine(chain: Chain) -> bool:
    """Whether a traceback is one of the engine's processes, not of a script that waits beside it in the same log."""
    opener = chain.opener
    if opener.process is not None or opener.level is not None or opener.message != opener.text:
        return True
    return any(part in frame.file for frame in chain.frames() for part in _ENGINE_FILES)
