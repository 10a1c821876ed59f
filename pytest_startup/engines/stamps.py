"""Printed times → seconds since the epoch, and whether a log runs newest first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

_FULL = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9})\d*)?\s*(Z|[+-]\d\d:?\d\d)?",
)
_SHORT = re.compile(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
#: vLLM prints no year. Only differences of record times mean anything, so any leap year will do.
YEAR = 2000


def full(text: str) -> float | None:
    """``2026-11-29T12:00:00.5Z`` (also a space, a comma, an offset) → seconds; without a zone it is taken as UTC."""
    match = _FULL.match(text)
    if not match:
        return None
    year, month, day, hour, minute, second = (int(match.group(i)) for i in range(1, 7))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62):
        return None
    seconds = float(_days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second)
    if match.group(7):
        seconds += float("0." + match.group(7))
    zone = match.group(8)
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds += offset if zone[0] == "-" else -offset
    return seconds


def _days(year: int, month: int, day: int) -> int:
    """Days since 1 January 1970 (``calendar`` and ``datetime`` are slow to import)."""
    year -= month <= 2
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return 365 * year + year // 4 - year // 100 + year // 400 + of_year - 719468


def clock(text: str) -> float | None:
    """The time of a record header, always in the year 2000: not every logger of a process prints the year."""
    return full(f"{YEAR}-{text}" if _SHORT.fullmatch(text) else f"{YEAR}{text[4:]}")


def newest_first(stamps: Iterable[float | None]) -> bool:
    """Do these printed times run backwards? (Journal and log-viewer exports often do.)"""
    known = [s for s in stamps if s is not None]
    steps = [b - a for a, b in itertools.pairwise(known) if a != b]
    back = sum(step < 0 for step in steps)
    return len(steps) >= 2 and back > 0.9 * len(steps)
