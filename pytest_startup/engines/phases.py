"""Phases: what a line that opens one is, how it is found among all others, and the order of phases."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_startup.record import PHASES

#: Whom an opening line speaks for: the rank that prints it, all ranks of its node or engine core, or the whole engine.
SCOPES = ("rank", "node", "engine")


@dataclass(frozen=True)
class Opener:
    """A wording that shows that a phase has been reached (at the latest now). ``anchor`` is part of every match."""

    engine: str
    phase: str
    anchor: str
    example: str
    counter: str
    pattern: str | None = None
    scope: str = "node"
    versions: str = ""


_compiled = functools.cache(re.compile)


class OpenerTable:
    """Openers, found by way of their anchors."""

    def __init__(self, openers: Iterable[Opener]) -> None:
        self._by_anchor: dict[str, list[Opener]] = {}
        for opener in openers:
            self._by_anchor.setdefault(opener.anchor, []).append(opener)
        self.anchors = tuple(self._by_anchor)

    def match(self, message: str) -> Opener | None:
        """The first opener that the message is."""
        for anchor, rows in self._by_anchor.items():
            if anchor in message:
                for opener in rows:
                    if opener.pattern is None or _compiled(opener.pattern).search(message):
                        return opener
        return None


def order(phase: str) -> int:
    """Place of a phase in the usual order."""
    return PHASES.index(phase)
