"""Placeholders: ``${VAR}`` from the environment where allowed, ``${profile_dir}`` everywhere; the resolved JSON."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pytest_startup.profile.nodes_build import PLACEHOLDER
from pytest_startup.profile.problems import KeyPath, nearest
from pytest_startup.redact import Redactor

if TYPE_CHECKING:
    from pytest_startup.profile.model import Profile
    from pytest_startup.record import JSON

PROFILE_DIR = "profile_dir"
#: Where ``${VAR}`` may stand; ``*`` is any one key or index. Everything else pins something, the same everywhere.
ALLOWED = (
    ("engine", "env", "*"),
    ("engine", "args", "*"),
    ("restarts", "*", "change", "env", "*"),
    ("restarts", "*", "change", "args", "*"),
    ("nodes", "*", "env", "*"),
    ("nodes", "*", "args", "*"),
    ("nodes", "*", "steps", "*", "exec", "*"),
)
_PLACEHOLDER = re.compile(r"\$?\$\{([^{}]*)\}")
_MISPLACED = (
    "${NAME} is not allowed here, where the profile would mean something else on each machine; allowed in values of "
    "engine.env, engine.args, nodes.NAME.env, nodes.NAME.args, nodes.NAME.steps.N.exec and restarts.N.change; "
    "${profile_dir} is allowed everywhere; for the text itself write $${"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def allowed(path: KeyPath) -> bool:
    """May the value at ``path`` name a variable of the environment?"""
    return any(
        len(path) == len(place) and all(p in ("*", part) for p, part in zip(place, path, strict=True))
        for place in ALLOWED
    )


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """``text`` with every placeholder replaced by its value in ``environ``; ``$${`` is a literal ``${``. KeyError."""

    def value(found: re.Match[str]) -> str:
        return found[0][1:] if found[0].startswith("$$") else environ[found[1]]

    return _PLACEHOLDER.sub(value, text)


def names_in(text: str) -> list[str]:
    """What stands between ``${`` and ``}``, escaped ones left out."""
    return [m[1] for m in _PLACEHOLDER.finditer(text) if not m[0].startswith("$$")]


def _texts(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, bool]]:
    """Every text below ``data``: (path, text, it is a key)."""
    if isinstance(data, str):
        yield path, data, False
    elif isinstance(data, dict):
        for key, value in data.items():
            yield (*path, key), key, True
            yield from _texts(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _texts(value, (*path, index))


def check(data: Any, environ: Mapping[str, str]) -> Iterator[tuple[KeyPath, str]]:
    """Placeholders that can't be resolved, or stand where they may not: path and message."""
    for path, text, is_key in _texts(data):
        for name in names_in(text):
            if name == PROFILE_DIR:
                continue
            if PLACEHOLDER.fullmatch(name) and not is_key and allowed(path):
                if name not in environ:
                    known = [n for n in environ if n.startswith("node.")]
                    near = nearest(name, known)
                    hint = f"did you mean ${{{near}}}?" if near else "" if known else "this profile has no nodes"
                    yield path, f"no value for ${{{name}}}" + (f"; {hint}" if hint else "")
                continue
            if not _NAME.fullmatch(name):
                yield (
                    path,
                    f"expected ${{NAME}}, without default or operator; found ${{{name}}}; "
                    "for the text itself write $${",
                )
            elif is_key or not allowed(path):
                yield path, _MISPLACED.replace("${NAME}", f"${{{name}}}")
            elif not environ.get(name):
                near = None if name in environ else nearest(name, (PROFILE_DIR, *environ))
                hint = f"; did you mean ${{{near}}}?" if near else ""
                yield path, f"{name} is {'empty' if name in environ else 'not set'} in the environment{hint}"


def unset(data: Any, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that the profile names and ``environ`` lacks, each with its own placeholder as its value."""
    names = {
        name for path, text, _ in _texts(data) if allowed(path) for name in names_in(text) if _NAME.fullmatch(name)
    }
    return {name: f"${{{name}}}" for name in names if name not in environ and name != PROFILE_DIR}


def secrets(data: Any, environ: Mapping[str, str]) -> frozenset[str]:
    """Every value that a ``${VAR}`` of the profile takes from the environment."""
    return frozenset(
        environ[name]
        for path, text, _ in _texts(data)
        if allowed(path)
        for name in names_in(text)
        if name != PROFILE_DIR and not PLACEHOLDER.fullmatch(name)
    )


def plain(value: Any) -> JSON:
    """JSON of dataclasses, paths, dates and mappings; nothing is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return [str(v) for v in sorted(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value) if isinstance(value, PurePath) else str(value.isoformat())


def resolved_json(profile: Profile) -> dict[str, JSON]:
    """The profile as it was used, every default filled in, secrets redacted, as JSON. Origins are left out."""
    out = {
        f.name: plain(getattr(profile, f.name))
        for f in dataclasses.fields(profile)
        if f.name not in ("secrets", "origin")
    }
    redacted = Redactor(profile.secrets).json(out)
    assert isinstance(redacted, dict)  # noqa: S101  narrows the type: an object stays an object
    return redacted
