"""Whether compiled artifacts of an earlier start were used again, from what the log states."""

from __future__ import annotations

import re

from pytest_startup.engines.lines import Line
from pytest_startup.record import Fact

_RANK = re.compile(r"world_size=\d+ rank=(?P<rank>\d+) local_rank=\d+ distributed_init_method=")
_HIT = re.compile(r"Directly load AOT compilation from path \S*/rank_(?P<rank>\d+)_(?P<dp>\d+)/")
_LOADED = ("compile.cache_loaded",)
_MADE = ("compile.cache_written", "compile.range")


class CompileReuse:
    """Collects the statements of one start.

    vLLM only: SGLang prints the same words for a compilation and for a hit, so they prove nothing there.
    """

    def __init__(self) -> None:
        self._loaded = 0
        self._made = 0
        self._ranks: set[str] = set()
        self._hits: set[str] = set()
        self._counted = True

    def line(self, line: Line) -> None:
        """Count the ranks that speak here, and those that load their own AOT artifact.

        Both lines are printed by every rank; a deleted artifact gives no line at all, so only the missing one tells.
        """
        rank = _RANK.search(line.message)
        if rank:
            self._counted &= rank["rank"] not in self._ranks and line.repeated == 1
            self._ranks.add(rank["rank"])
        hit = _HIT.search(line.message)
        if hit:
            self._counted &= hit["dp"] == "0" and line.repeated == 1
            self._hits.add(hit["rank"])

    def fact(self, fact: Fact) -> None:
        """Take note of a fact of any name."""
        if fact.name in _LOADED:
            self._loaded += 1
        elif fact.name in _MADE or (fact.name == "artifact.missing" and "Compiling model again" in str(fact.value)):
            self._made += 1

    def verdict(self, engine: str | None) -> bool | str | None:
        """True: everything was loaded, False: everything was made anew, ``partial``: both, None: not stated."""
        if engine == "sglang":
            return None
        silent = bool(self._hits) and self._counted and bool(self._ranks - self._hits)
        if self._loaded and (self._made or silent):
            return "partial"
        if self._loaded or self._made:
            return bool(self._loaded)
        return None
