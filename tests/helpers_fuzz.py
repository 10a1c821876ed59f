"""Mutations of logs, and what must hold of whatever the reader makes of them."""

from __future__ import annotations

import random
import re

from helpers_logs import COLD, FAILED, traffic

from pytest_startup.engines.framing import plain
from pytest_startup.engines.reader import Reader, read
from pytest_startup.engines.registry import tables
from pytest_startup.engines.rules import number
from pytest_startup.record import JSON
from pytest_startup.redact import MASK

_SGLANG = """\
[2026-11-29 12:00:00] server_args=ServerArgs(model_path='m', attention_backend='fa3', tp_size=2)
[2026-11-29 12:00:05 TP0] Load weight begin. avail mem=139.00 GB
[2026-11-29 12:00:09 TP0] Load weight end. elapsed=4.00 s, avail mem=109.00 GB, mem usage=3.22 GB.
[2026-11-29 12:00:09 TP0] KV Cache is allocated. #tokens: 5539718, K size: 18.49 GB, V size: 18.49 GB
[2026-11-29 12:00:10] The server is fired up and ready to roll!
"""
_JUNK = (
    b"\r",
    b"\x1b[31m",
    b"\x00",
    b"\xff\xfe",
    b"{",
    b"}",
    b"\n",
    b"(",
    b"[",
    b",",
    b"%",
    b" ",
    b"9" * 400,
    b"-",
    b'"',
)


def stock() -> list[bytes]:
    """Small logs to mutate."""
    rules = "\n".join(rule.example for _, table in tables() for rule in table.rules)
    return [COLD.encode(), FAILED.encode(), traffic(60, 5).encode(), _SGLANG.encode(), rules.encode()]


def mutate(chance: random.Random, logs: list[bytes]) -> bytes:
    """One input: a piece of a log, mutated up to six times."""
    data = _piece(chance, chance.choice(logs), 6000)
    for _ in range(chance.randrange(7)):
        way = chance.randrange(9)
        at = chance.randrange(len(data) + 1)
        lines = data.split(b"\n")
        if way == 0:
            data = data[:at]
        elif way == 1:
            data = data[:at] + _piece(chance, chance.choice(logs), 2000) + data[at:]
        elif way == 2:
            data = b"\n".join(reversed(lines))
        elif way == 3:
            data = data[:at] + chance.choice(_JUNK) + data[at:]
        elif way == 4:
            chance.shuffle(lines)
            data = b"\n".join(lines)
        elif way == 5:
            data = b"\n".join(line for line in lines for _ in range(chance.randrange(3)))[:20000]
        elif way == 6:
            data = data[:at] + chance.randbytes(chance.randrange(40)) + data[at:]
        elif way == 7:
            data = data[:at] + data[at : at + chance.randrange(1, 30)] * 2 + data[at + 30 :]
        else:
            data = data.replace(b"\n", chance.choice((b"\r\n", b"\r", b" ", b"\n\n")))
    return data


def _piece(chance: random.Random, data: bytes, longest: int) -> bytes:
    begin = chance.randrange(len(data) or 1)
    return data[begin : begin + chance.randrange(1, longest)]


def fault(data: bytes, chunk: int) -> str | None:
    """What is wrong with how these bytes are read; None: nothing."""
    chunks = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    facts, starts = read(chunks, Reader(tables()))
    lines = data.split(b"\n")
    for fact in facts:
        number = fact.evidence.line
        if number is None or not 1 <= number <= len(lines):
            return f"{fact.name}: line {number} of {len(lines)}"
        text = plain(lines[number - 1].decode("utf-8", "replace"))
        if not _holds(text, fact.value):
            return f"{fact.name}: {fact.value!r} is not in line {number}: {text[:300]!r}"
    if [s.start for s in starts] != list(range(len(starts))) or not starts:
        return f"starts {[s.start for s in starts]}"
    return None


def _holds(text: str, value: JSON) -> bool:
    """Does the line contain the value, as a number or as words?"""
    if isinstance(value, dict):
        return all(_holds(text, v) for v in value.values())
    if isinstance(value, list):
        return all(_holds(text, v) for v in value)
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, (int, float)):
        # Whole numbers only: with their commas, or each part between them, with an exponent or without.
        forms = (r"\d[\d,]*(?:\.\d+)?", r"\d+(?:\.\d+)?", r"\d+(?:\.\d+)?[eE][-+]?\d+")
        return any(number(found) == abs(value) for form in forms for found in re.findall(form, text))
    flat = " ".join(text.split())
    words = " ".join(value.replace(MASK, "\0").split()).split("\0")
    return all(part.strip() in flat for part in words)
