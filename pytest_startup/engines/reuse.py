"""Whether compiled artifacts of an earlier start were used again, from what the log states."""

from __future__ import annotations

from pytest_startup.record import Fact

_LOADED = ("compile.cache_loaded",)
_MADE = ("compile.cache_written", "compile.range")


class CompileReuse:
    """Collects the statements of one start.

    vLLM only: SGLang prints the same words for a compilation and for a hit, so they prove nothing there.
    """

    def __init__(self) -> None:
        self._loaded = 0
        self._made = 0

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
        if self._loaded and self._made:
            return "partial"
        if self._loaded or self._made:
            return bool(self._loaded)
        return None
