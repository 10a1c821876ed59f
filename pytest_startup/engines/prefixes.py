"""Prefixes that nobody knows, of some log shipper: learnt from the records that stand behind them."""

from __future__ import annotations

import re

#: So many records of one shape of prefix, and this share of all records, make it the log's own.
ENOUGH = 3
SHARE = 0.7
LONGEST = 200
SHAPES = 32
#: Parts of progress bars, which share lines with records too.
_BAR = re.compile(r"\d%|it/s|s/it|[█▏▎▍▌▋▊▉]")
_PART = re.compile(
    r"(?P<space>\s+)|(?P<level>\b(?:DEBUG|INFO|WARN|WARNING|ERROR|[DIWEF])\b)"
    r"|(?P<name>\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b)"
    r"|(?P<mixed>[A-Za-z_]*\d\w*)|(?P<word>[A-Za-z_]+)|(?P<other>.)",
    re.S,
)
_SHAPE = {"space": r"\s+", "level": "[A-Z]+", "name": "[A-Z][a-z]{2}", "mixed": r"\w+"}


class Prefixes:
    """The unknown prefix of one node's log. ``pattern`` is None until one is known."""

    def __init__(self) -> None:
        self.pattern: re.Pattern[str] | None = None
        self._counts: dict[str, int] = {}
        self._records = 0

    def learn(self, prefix: str) -> None:
        """One more record, with what stood before it (behind all prefixes that are known), perhaps nothing."""
        if self.pattern is not None or self._records > 4000:
            return
        self._records += 1
        if not prefix.strip() or len(prefix) > LONGEST or _BAR.search(prefix):
            return
        shape = shape_of(prefix)
        if shape not in self._counts and len(self._counts) >= SHAPES:
            return
        self._counts[shape] = count = self._counts.get(shape, 0) + 1
        if count >= ENOUGH and count >= SHARE * self._records:
            self.pattern = re.compile(shape)


def shape_of(prefix: str) -> str:
    """A pattern for prefixes like this one: words and signs as they are, whatever holds digits free."""
    out = []
    for part in _PART.finditer(prefix):
        out.append(_SHAPE.get(part.lastgroup or "") or re.escape(part.group(0)))
    return "".join(out)
