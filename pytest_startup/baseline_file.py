"""The baseline's file: read and checked with file and line, and a proposal written beside it, never over it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_startup.baseline import DECISIVE, NOTED, Baseline, BaselineError, Population
from pytest_startup.checks.backend import NAMES
from pytest_startup.profile.model import Profile
from pytest_startup.profile.problems import KeyPath, Problem, dotted, meant
from pytest_startup.profile.validate import SCHEMAS, validate
from pytest_startup.record import JSON, PHASES

BASELINE_SCHEMA = 1


def path_of(profile: Profile) -> Path:
    """``<profile>.baseline.json`` beside the profile."""
    return profile.path.with_name(f"{profile.name}.baseline.json")


def proposal_path(profile: Profile) -> Path:
    """``<profile>.baseline.new.json``: what ``--startup-baseline propose`` writes."""
    return profile.path.with_name(f"{profile.name}.baseline.new.json")


def schema() -> Mapping[str, Any]:
    """The JSON schema of a baseline file, as shipped."""
    found: Mapping[str, Any] = json.loads((SCHEMAS / "baseline.schema.json").read_text(encoding="utf-8"))
    return found


#: The names of a population's values, each with the JSON type of what a proposal writes.
VALUES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "kv.tokens": ((int, float), "a number"),
    "weights.gib_max": ((int, float), "a number"),
    "graphs.captured": (dict, "a mapping of numbers"),
    "autotune.records": (dict, "a mapping of numbers"),
    "quality.answers": (dict, "a mapping of texts"),
    "ranks": (list, "a list of texts"),
    **{f"backend.{key}": (list, "a list of texts") for key in NAMES},
}
_SAMPLES = re.compile(r"ready_seconds|tokens_per_second\.c[1-9]\d*|phase\.(?:" + "|".join(map(re.escape, PHASES)) + ")")


class _Twice(ValueError):
    """A key that an object has twice."""


def read(path: Path, profile: str | None = None) -> Baseline:
    """Read and check a file; ``profile`` is the name for which it must stand. Raises BaselineError."""
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise BaselineError(f"{path}: cannot be read: {e.strerror or e}") from None
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except _Twice as e:
        line = _line_of(raw, f'"{e}"')
        raise BaselineError(f"{path}:{line}: the key {e} stands twice in one object; remove one") from None
    except json.JSONDecodeError as e:
        raise BaselineError(f"{path}:{e.lineno}: not JSON: {e.msg} (column {e.colno})") from None
    except (UnicodeDecodeError, RecursionError) as e:
        raise BaselineError(f"{path}:1: not JSON: {e}") from None
    wrong = validate(data, schema())
    if not wrong:
        wrong = list(_misspelt(data))
    if not wrong and profile is not None and data["profile"] != profile:
        wrong = [(("profile",), f"expected {profile}, the name of the profile beside it; found {data['profile']}")]
    if wrong:
        raise BaselineError("\n".join(p.shown(path) for p in _placed(raw, wrong)))
    return from_json(data)


def _misspelt(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Names that nothing reads, and values of a type that no check compares: they would be passed over in silence."""
    for population, parts in data["populations"].items():
        at: KeyPath = ("populations", population)
        for name, value in parts.get("values", {}).items():
            kind, text = VALUES.get(name, (None, ""))
            if kind is None:
                yield (*at, "values", name), f"unknown value{meant(name, [*VALUES])}"
            elif not isinstance(value, kind) or isinstance(value, bool):
                yield (*at, "values", name), f"expected {text}, found {json.dumps(value, ensure_ascii=False)}"
        for name in parts.get("samples", {}):
            if not _SAMPLES.fullmatch(name):
                known = ["ready_seconds", "tokens_per_second.c1", *(f"phase.{phase}" for phase in PHASES)]
                yield (*at, "samples", name), f"unknown sample{meant(name, known)}"
    for name in data["identity"]:
        if name not in (*DECISIVE, *NOTED):
            yield ("identity", name), f"unknown fact{meant(name, (*DECISIVE, *NOTED))}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(key)
        found[key] = value
    return found


def _line_of(raw: bytes, text: str) -> int:
    """The line of the second occurrence of a key."""
    first = raw.find(text.encode())
    return raw.count(b"\n", 0, raw.find(text.encode(), first + 1)) + 1


def _placed(raw: bytes, wrong: list[tuple[KeyPath, str]]) -> list[Problem]:
    """Problems with their lines: JSON is YAML, and the profile's reader knows where everything stands."""
    from pytest_startup.profile.yamltree import Tree, YamlSyntaxError, parse

    try:
        tree = parse(raw)
    except YamlSyntaxError:
        tree = Tree({}, {})
    return sorted(Problem(*tree.mark(path), dotted(path), text) for path, text in wrong)


def from_json(data: Mapping[str, Any]) -> Baseline:
    """The baseline of checked JSON data."""
    populations = {
        name: Population(
            values=dict(p.get("values", {})),
            samples={k: tuple(float(v) for v in values) for k, values in p.get("samples", {}).items()},
            caches={k: dict(files) for k, files in p.get("caches", {}).items()},
        )
        for name, p in data.get("populations", {}).items()
    }
    return Baseline(data["profile"], dict(data.get("identity", {})), populations)


def to_json(baseline: Baseline) -> dict[str, JSON]:
    """Inverse of ``from_json``; empty parts of a population are left out."""
    populations: dict[str, JSON] = {}
    for name, p in sorted(baseline.populations.items()):
        parts: dict[str, JSON] = {
            "values": dict(sorted(p.values.items())),
            "samples": {k: list[JSON](v) for k, v in sorted(p.samples.items())},
            "caches": {k: dict[str, JSON](sorted(files.items())) for k, files in sorted(p.caches.items())},
        }
        populations[name] = {k: v for k, v in parts.items() if v}
    return {
        "schema": BASELINE_SCHEMA,
        "profile": baseline.profile,
        "identity": dict(baseline.identity),
        "populations": populations,
    }


def write_proposal(profile: Profile, baseline: Baseline) -> Path:
    """Write ``<profile>.baseline.new.json`` (an older proposal is replaced, a baseline never). Raises BaselineError."""
    path = proposal_path(profile)
    part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        part.write_text(json.dumps(to_json(baseline), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as e:
        part.unlink(missing_ok=True)
        raise BaselineError(f"{path}: cannot be written: {e.strerror or e}") from None
    return path
