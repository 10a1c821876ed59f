"""Durations, percentages and sizes as people write them, and the nearest legal spelling of what is not one."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_DURATION = re.compile(r"(?=[0-9])(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+(?:\.[0-9]+)?)s)?(?:([0-9]+)ms)?")
_LOOSE = re.compile(
    r"([0-9]+(?:\.[0-9]+)?)\s*(milliseconds?|ms|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)?", re.I
)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([bkmgt])(?:i?b)?)?", re.I)
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def duration(text: str) -> float:
    """Seconds of ``1h30m``, ``20m``, ``90s``, ``250ms``. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if not found:
        raise ValueError(f"not a duration: {text!r}")
    hours, minutes, seconds, milli = (float(g or 0) for g in found.groups())
    return hours * 3600 + minutes * 60 + seconds + milli / 1000


def shown_duration(seconds: float) -> str:
    """``1h30m`` of 5400: the spelling that ``duration`` reads back (to the millisecond)."""
    milli = round(seconds * 1000)
    hours, rest = divmod(milli, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    whole, milli = divmod(rest, 1000)
    parts = [f"{n}{unit}" for n, unit in ((hours, "h"), (minutes, "m"), (whole, "s"), (milli, "ms")) if n]
    return "".join(parts) or "0s"


def fraction(value: str | float) -> float:
    """0.03 of ``3%`` or of 0.03. Raises ValueError."""
    if isinstance(value, (int, float)):
        return float(value)
    found = _PERCENT.fullmatch(value)
    if not found:
        raise ValueError(f"not a percentage: {value!r}")
    return float(found[1]) / 100


def size(value: str | int) -> int:
    """Bytes of ``16g``, ``512m``, ``10.24g``, ``65536`` (powers of 1024, rounded down). Raises ValueError."""
    if isinstance(value, int):
        return int(value)
    found = _SIZE.fullmatch(value)
    if not found:
        raise ValueError(f"not a size: {value!r}")
    return int(Decimal(found[1]) * (1 << (10 * "bkmgt".index((found[2] or "b").lower()))))


def shown_size(count: int) -> str:
    """``16g`` of 17179869184: the shortest spelling that ``size`` reads back."""
    for power, unit in ((40, "t"), (30, "g"), (20, "m"), (10, "k")):
        if count and count % (1 << power) == 0:
            return f"{count >> power}{unit}"
    return str(count)


def suggest(kind: str, value: object) -> str | None:
    """How ``value`` was probably meant, as a legal ``kind`` (duration, fraction, size, date); None: no idea."""
    text = str(getattr(value, "source", value)).strip()
    if len(text) > 40 or isinstance(value, bool):
        return None
    return {"duration": _as_duration, "fraction": _as_fraction, "size": _as_size, "date": _as_date}[kind](text)


def _as_duration(text: str) -> str | None:
    clock = re.fullmatch(r"([0-9]{1,3}):([0-9]{2})(?::([0-9]{2}))?", text)
    if clock:
        first, second, third = clock.groups()
        if third:
            return f"{int(first)}h{int(second)}m{int(third)}s"
        return f"{int(first)}h{int(second)}m or {int(first)}m{int(second)}s"
    parts = _LOOSE.findall(text)
    if not parts or _LOOSE.sub("", text).strip():
        return None
    total = 0.0
    for number, unit in parts:
        short = "ms" if unit.lower().startswith(("ms", "milli")) else (unit[:1].lower() or "s")
        total += float(number) * _SECONDS[short]
    return shown_duration(total) if math.isfinite(total) else None


def _as_fraction(text: str) -> str | None:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:%|percent|pct)?", text)
    return f"{found[1]}%" if found and float(found[1]) <= 100 else None


def _as_size(text: str) -> str | None:
    found = re.fullmatch(r"([1-9][0-9]*)\s*([kmgt])(?:i?b|ib?ytes?|bytes?)?", text, re.I)
    return f"{found[1]}{found[2].lower()}" if found else None


def _as_date(text: str) -> str | None:
    found = re.fullmatch(r"([0-9]{4})[-/.]?([0-9]{1,2})[-/.]?([0-9]{1,2})", text)
    return f"{found[1]}-{int(found[2]):02}-{int(found[3]):02}" if found else None
