"""The baseline: what the accepted starts of a profile showed, one population per restart kind; pure comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_startup.profile.model import Profile
from pytest_startup.record import JSON, StartRecord

#: Facts that tell for what a baseline was accepted. Where one of them differs, nothing is compared.
DECISIVE = (
    "engine.kind",
    "engine.model",
    "engine.revision",
    "engine.args",
    "engine.version",
    "container.image",
    "gpu.name",
    "host.page_size",
)
#: Those of them that a profile pins: a proposal always writes them, so that none can be missing by chance.
PINNED = ("engine.kind", "engine.model", "engine.revision", "engine.args", "container.image")
#: Kept and shown in a proposal, but no reason to refuse: an upgrade of these is what a baseline is there to judge.
NOTED = ("gpu.driver", "host.kernel")


class BaselineError(Exception):
    """A baseline file that can't be used; the text has one problem per line, each beginning with ``file:line``."""


@dataclass(frozen=True)
class Population:
    """Accepted values of one restart kind: ``values`` by name (``kv.tokens`` …), ``samples`` by name (seconds, tok/s).

    ``caches``: per watched cache of kind compile or autotune, path → sha256 of what lay there before the start.
    """

    values: Mapping[str, JSON] = field(default_factory=dict)
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    caches: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Baseline:
    """A whole baseline file. ``identity`` says for which engine and host it was accepted."""

    profile: str
    identity: Mapping[str, JSON] = field(default_factory=dict)
    populations: Mapping[str, Population] = field(default_factory=dict)


def identity(profile: Profile, records: Iterable[StartRecord]) -> dict[str, JSON]:
    """What is pinned and what was seen of engine and host; what was not seen is left out."""
    pinned: dict[str, JSON] = {
        "engine.kind": profile.engine.kind,
        "engine.model": _portable(profile.engine.model, profile),
        "engine.revision": profile.engine.revision,
        "engine.args": [_portable(arg, profile) for arg in profile.engine.args],
        "container.image": profile.launch.container.image if profile.launch.container else None,
    }
    for record in records:
        for name in ("engine.version", *NOTED, "gpu.name", "host.page_size"):
            seen = _seen(record, name)
            if seen:
                pinned.setdefault(name, seen)
    return {k: v for k, v in pinned.items() if v is not None}


def _portable(text: str, profile: Profile) -> str:
    """A path beside the profile, as it is in every checkout."""
    return text.replace(f"{profile.path.parent}/", "${profile_dir}/")


def _seen(record: StartRecord, name: str) -> JSON:
    """All values of a fact, GPUs one by one; of several spellings of the version the longest."""
    values = [str(f.value) for f in record.named(name)]
    if not values:
        return None
    if name == "engine.version":
        return max((v.removeprefix("v") for v in values), key=len)
    if name == "gpu.name":
        return list[JSON](sorted(values))
    return ", ".join(sorted(set(values)))


def mismatch(baseline: Baseline, profile: Profile, start: StartRecord) -> tuple[str, ...]:
    """Why ``start`` must not be compared with ``baseline``; empty: it may.

    Something that the baseline knows and that this start does not show counts only for a start that became ready.
    """
    now = identity(profile, [start])
    reasons = []
    for name in DECISIVE:
        accepted = baseline.identity.get(name)
        if accepted is None and name in PINNED and name in now:
            reasons.append(f"{name}: accepted without any, this start has {_text(now[name])}")
        if accepted is None or accepted == now.get(name):
            continue
        if name not in now:
            if start.ready:
                reasons.append(f"{name}: accepted for {_text(accepted)}, not seen on this start")
        else:
            reasons.append(f"{name}: accepted for {_text(accepted)}, this start has {_text(now[name])}")
    return tuple(reasons)


def _text(value: JSON) -> str:
    return (" ".join(str(v) for v in value) if isinstance(value, list) else str(value)) or "none"


def cache_hashes(profile: Profile, record: StartRecord) -> dict[str, dict[str, str]]:
    """Path → sha256 of the hashed files of compile and autotune caches before a start."""
    kinds = {c.name: c.kind for c in profile.caches}
    found: dict[str, dict[str, str]] = {}
    for tree in record.caches_before:
        if kinds.get(tree.name) in ("compile", "autotune"):
            name = f"{tree.node}/{tree.name}" if tree.node else tree.name
            found[name] = {f.path: f.sha256 for f in tree.files if f.sha256 is not None}
    return {name: files for name, files in found.items() if files}


def cache_changes(accepted: Population, start: StartRecord) -> tuple[list[str], list[str], list[str]]:
    """Files of the accepted caches that appeared, vanished or changed, as ``cache/path``.

    A cache that this start does not watch, and files without a hash, are not compared.
    """
    appeared: list[str] = []
    vanished: list[str] = []
    changed: list[str] = []
    for tree in start.caches_before:
        name = f"{tree.node}/{tree.name}" if tree.node else tree.name
        if name not in accepted.caches:
            continue
        before, now = accepted.caches[name], tree.by_path()
        appeared += [f"{name}/{p}" for p, f in now.items() if p not in before and f.sha256 is not None]
        vanished += [f"{name}/{p}" for p in before if p not in now]
        changed += [f"{name}/{p}" for p, h in before.items() if p in now and now[p].sha256 not in (None, h)]
    return appeared, vanished, changed
