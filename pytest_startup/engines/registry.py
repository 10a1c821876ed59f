"""The dialects by name, and the rule tables of all of them."""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from typing import cast

from pytest_startup.engines.base import Dialect
from pytest_startup.engines.rules import RuleTable

#: engine.kind → module, class of the dialect, module and name of its rules.
_DIALECTS = {
    "vllm": ("pytest_startup.engines.vllm", "VllmDialect", "pytest_startup.engines.vllm_rules", "VLLM_RULES"),
    "sglang": ("pytest_startup.engines.sglang", "SglangDialect", "pytest_startup.engines.sglang_rules", "SGLANG_RULES"),
}
NAMES = tuple(_DIALECTS)


class UnknownEngine(Exception):
    """No dialect of that name; the message lists the known ones."""


def _entry(name: str) -> tuple[str, str, str, str]:
    if name not in _DIALECTS:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownEngine(f"unknown engine {name!r}{hint} (known: {', '.join(NAMES)})")
    return _DIALECTS[name]


def dialect(name: str) -> Dialect:
    """The dialect of an engine. Raises UnknownEngine."""
    module, kind, _, _ = _entry(name)
    return cast("Dialect", getattr(importlib.import_module(module), kind)())


@cache
def table(name: str) -> RuleTable:
    """The rules of an engine, compiled once. Raises UnknownEngine."""
    _, _, module, rules = _entry(name)
    return RuleTable(getattr(importlib.import_module(module), rules))


def tables(*names: str) -> list[tuple[str, RuleTable]]:
    """``(name, table)`` of these engines, of all when none is named."""
    return [(name, table(name)) for name in names or NAMES]
