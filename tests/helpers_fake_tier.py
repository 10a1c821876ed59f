"""The caches of the stand-in engine: its own, which drops whole prompts, and an external tier that may keep them."""

from __future__ import annotations

from collections import OrderedDict

#: Prompts that begin alike are one conversation.
HEAD = 8


class Tier:
    """``room``: tokens of the own cache. ``how``: works | quiet (asked, gives nothing) | idle (never asked)."""

    def __init__(self, room: int, how: str) -> None:
        self.room, self.how = room, how
        self.own_hits = self.queries = self.hits = 0
        self._own: OrderedDict[tuple[str, ...], int] = OrderedDict()
        self._seen: dict[tuple[str, ...], int] = {}

    def ask(self, prompt: list[str]) -> None:
        """One request for these tokens, counted as vLLM counts it: what the own cache lacks is asked of the tier."""
        head = tuple(prompt[:HEAD])
        own = min(self._own.pop(head, 0), len(prompt))
        self.own_hits += own
        if self.how != "idle":
            self.queries += len(prompt) - own
        if self.how == "works":
            self.hits += max(0, min(self._seen.get(head, 0), len(prompt)) - own)
        self._own[head] = self._seen[head] = len(prompt)
        while sum(self._own.values()) > self.room:
            self._own.popitem(last=False)
