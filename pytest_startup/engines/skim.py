"""Skims the traffic of a serving engine: which of many lines are worth reading."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

#: An access line that was answered well: the bulk of a serving log, and no statement.
_WELL = b' HTTP/1.1" 20'


class Skimmer:
    """Finds the lines that hold an anchor of a rule, or of the diagnosis, among lines of traffic."""

    def __init__(self, anchors: Sequence[str], diagnosis: Sequence[str | bytes]) -> None:
        told = [a if isinstance(a, bytes) else a.encode() for a in diagnosis]
        self._tells = re.compile(b"|".join(map(re.escape, sorted(set(told), key=len, reverse=True))) or b"(?!)")
        literals = {a.encode() for a in anchors} | set(told)
        self._any = re.compile(b"|".join(map(re.escape, sorted(literals, key=len, reverse=True))))

    def interesting(self, lines: Sequence[bytes], begin: int) -> Iterator[int]:
        """Indices of lines to read, from ``begin`` on."""
        search = self._any.search
        for index in range(begin, len(lines)):
            raw = lines[index]
            if _WELL not in raw and search(raw):
                yield index

    def tells(self, raw: bytes) -> bool:
        """Does the line matter to the diagnosis, so that its neighbours do too?"""
        return self._tells.search(raw) is not None
