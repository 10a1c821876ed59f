"""A failure as it is told: its kind and phase, the line that shows it, what helps, and the last lines of the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pytest_startup.engines.failure_help import HELD_BY_OTHERS, advice
from pytest_startup.engines.failures import OTHERS, summary
from pytest_startup.engines.lines import Line
from pytest_startup.engines.rules import evidence, masked
from pytest_startup.record import Failure


def described(kind: str, phase: str, text: str, line: Line | None, last: Iterable[Line], where: str) -> Failure:
    """``text``: of the error, if there is one; ``line``: that shows it. ``where``: as in ``Evidence.where``."""
    helps, no_help = advice(kind, phase)
    said = summary(kind, text)
    if OTHERS in said:
        helps = (HELD_BY_OTHERS, *helps)
    if kind == "peer-missing" and line is None:
        said = f"{summary('stopped', '')}; the last thing it did was to wait for its peers"
    return Failure(
        phase=phase,
        kind=kind,
        summary=said,
        cause=evidence(line, where) if line else None,
        rank=line.rank if line else None,
        node=line.node if line else None,
        helps=helps,
        no_help=no_help,
        last_lines=tuple(evidence(one, where) for one in last),
    )


def without_reason(failure: Failure, number: int, text: str) -> Failure:
    """Of an engine whose log tells no more than that it died, in line ``number``."""
    return replace(failure, summary=f"the log shows that the engine died, not why (line {number}: {_cut(text)})")


def _cut(text: str) -> str:
    text = masked(text)
    return text if len(text) <= 80 else f"{text[:79].rstrip()}…"
