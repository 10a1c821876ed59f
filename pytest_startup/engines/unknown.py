"""Lines that look like facts but match no rule: how a new engine release is noticed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_startup.engines.lines import Line

_AMOUNT = re.compile(r"-?\d[\d,.]* ?(?:GiB|GB|MiB|secs?\b|seconds?\b|s\b|tokens\b|blocks\b|graphs\b|configs\b|%)")
_SUBJECT = re.compile(
    r"(?i)kv.?cache|weights|cuda.?graph|compil|autotun|memory|loading|loaded|warm.?up|prefix cache|init engine"
    r"|concurrency"
)
_CHOICE = re.compile(r"^(?:Using|Selected|Selecting|Use|Chosen)\b.*(?i:backend|kernel|all2all|GEMM|attention)")
_KNOWN = re.compile(
    r"(?i)chunked prefill|max model len|page cache started|shared memory broadcast|Encoder cache will be|gloo|"
    r"prefetching checkpoint files: |default sampling|Route: |Starting to load|sampling|^\s*File \"|"
    r"\d%\s*(?:\||Completed)|^\w*Error: "
)
_DIGITS = re.compile(r"\d+")


class UnknownLines:
    """Collects such lines, each wording once, at most ``limit``."""

    def __init__(self, limit: int = 200) -> None:
        self._limit = limit
        self._seen: set[str] = set()
        self.lines: list[Line] = []

    def line(self, line: Line) -> None:
        """Look at a line for which no rule stated anything."""
        if len(self.lines) < self._limit and looks_like_fact(line):
            shape = _DIGITS.sub("0", line.message)[:200]
            if shape not in self._seen:
                self._seen.add(shape)
                self.lines.append(line)

    def lines_of(self, lines: Iterable[Line]) -> None:
        """Look at several."""
        for line in lines:
            self.line(line)


def looks_like_fact(line: Line) -> bool:
    """A record of an engine that names a choice, or an amount of something that our facts are about."""
    message = line.message[:2000]
    if (line.level is None and line.process is None) or line.level == "DEBUG" or _KNOWN.search(message):
        return False
    return bool(_CHOICE.search(message) or (_SUBJECT.search(message) and _AMOUNT.search(message)))
