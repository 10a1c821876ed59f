"""The last lines of a log file, with their numbers and receive times, without reading the whole file."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup.record import Evidence

if TYPE_CHECKING:
    from pytest_startup.launch.base import NodeLog

_BLOCK = 64 << 10
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def last_lines(log: NodeLog, count: int) -> tuple[Evidence, ...]:
    """Up to ``count`` last non-empty lines as evidence, oldest first. An unreadable log gives none."""
    try:
        size = log.path.stat().st_size
        with log.path.open("rb") as file:
            file.seek(max(0, size - _BLOCK))
            tail = file.read(_BLOCK).split(b"\n")
        stamps = _stamps(log.lines)
    except OSError:
        return ()
    if size > _BLOCK and any(part.strip() for part in tail[1:]):
        tail = tail[1:]  # its beginning is not there
    number = max(stamps, default=None)  # every line has a receive time, so the last one numbers the last line
    out: list[Evidence] = []
    rows = tail[:-1] if tail[-1] == b"" else tail
    for row in reversed(rows):
        shown = [part for part in row.split(b"\r") if part.strip()][-1:]
        text = _COLOUR.sub("", b"".join(shown).decode("utf-8", "replace"))
        if text.strip():
            at = None if number is None else stamps.get(number)
            out.append(Evidence("log", log.where, text.strip()[:400], number, log.node, seconds=at))
        number = None if number is None else number - 1
        if len(out) == count:
            break
    return tuple(reversed(out))


def _stamps(path: Path) -> dict[int, float]:
    """Receive times of the last lines by line number."""
    with path.open("rb") as file:
        file.seek(0, 2)
        size = file.tell()
        file.seek(max(0, size - _BLOCK))
        rows = file.read().split(b"\n")
    out = {}
    for row in rows[1 if size > _BLOCK else 0 :]:
        number, tab, seconds = row.partition(b"\t")
        if tab and number.isdigit():
            with contextlib.suppress(ValueError):
                out[int(number)] = float(seconds)
    return out
