"""The baseline: what the accepted starts of a profile showed, one population per restart kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_startup.record import JSON


@dataclass(frozen=True)
class Population:
    """Accepted values of one restart kind: ``values`` by name (``kv.tokens`` …), ``samples`` by name (seconds, tok/s)."""

    values: Mapping[str, JSON] = field(default_factory=dict)
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Baseline:
    """A whole baseline file. ``identity`` says for which engine and host it was accepted."""

    profile: str
    identity: Mapping[str, JSON] = field(default_factory=dict)
    populations: Mapping[str, Population] = field(default_factory=dict)
