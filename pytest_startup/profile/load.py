"""Read a profile: strict YAML, schema, rules, placeholders; all errors of the file at once, each with its line."""

from __future__ import annotations

import datetime
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from pytest_startup.profile import resolve
from pytest_startup.profile.build import Builder
from pytest_startup.profile.model import Profile
from pytest_startup.profile.nodes_build import addresses
from pytest_startup.profile.problems import KeyPath, Problem, ProfileError, dotted, nearest
from pytest_startup.profile.rule import Known
from pytest_startup.profile.rules import check_rules, warnings_of
from pytest_startup.profile.validate import profile_schema, validate
from pytest_startup.profile.yamltree import Tree, YamlSyntaxError, parse
from pytest_startup.redact import Redactor

__all__ = ["ProfileError", "load", "load_bytes"]


def load(
    path: Path,
    environ: Mapping[str, str],
    *,
    today: datetime.date | None = None,
    checks: Collection[str] = (),
    engines: Collection[str] = (),
    launchers: Collection[str] = (),
    need_environment: bool = True,
) -> Profile:
    """Read the profile at ``path``; ``${VAR}`` comes from ``environ``. Raises ProfileError with all that is wrong.

    ``checks``, ``engines`` and ``launchers`` are names that hooks have added to our own; ``today`` is the day on which
    waivers must still hold (default: now, in UTC). ``need_environment`` False is for what starts no engine (a replay, a
    collection): a variable that is not set then stays ``${VAR}`` instead of being an error.
    """
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise ProfileError(path, [Problem(0, 0, "", _unreadable(path, e))]) from None
    return load_bytes(
        raw,
        path,
        environ,
        today=today,
        checks=checks,
        engines=engines,
        launchers=launchers,
        need_environment=need_environment,
    )


def load_bytes(
    raw: bytes,
    path: Path,
    environ: Mapping[str, str],
    *,
    today: datetime.date | None = None,
    checks: Collection[str] = (),
    engines: Collection[str] = (),
    launchers: Collection[str] = (),
    need_environment: bool = True,
) -> Profile:
    """Like ``load``, for a text that has been read already; ``path`` is where it would stand."""
    try:
        tree = parse(raw)
    except YamlSyntaxError as e:
        raise ProfileError(path, [e.problem], syntax=True) from None
    problems = list(tree.problems)
    if not isinstance(tree.data, dict):
        if not problems:
            text = "expected a mapping (schema: 1, name: …, engine: …, launch: …); `pytest-startup init` writes one"
            problems.append(Problem(*tree.mark(()), "", text))
        raise ProfileError(path, problems)
    folder = Path(os.path.abspath(path)).parent
    day = today or datetime.datetime.now(datetime.timezone.utc).date()
    known = Known(checks, engines, launchers, day, folder)
    stand_ins = {} if need_environment else resolve.unset(tree.data, environ)
    environ = {**environ, **stand_ins, **addresses(tree.data)}
    wrong = validate(tree.data, profile_schema())
    wrong += check_rules(tree.data, known)
    wrong += resolve.check(tree.data, environ)
    problems += _placed(tree, wrong)
    if problems:
        raise ProfileError(path, problems, data=tree.data)
    builder = Builder(folder, environ)
    fields = builder.profile(path, tree.data)
    return Profile(
        **fields,
        nodes=builder.nodes(tree.data, fields["launch"]),
        origin=_origin(tree),
        secrets=resolve.secrets(tree.data, environ) - set(stand_ins.values()),
        warnings=warnings_of(tree.data),
    )


def _placed(tree: Tree, wrong: list[tuple[KeyPath, str]]) -> list[Problem]:
    """Problems with line and column; texts that look like secrets are taken out, one message per value and text."""
    redactor = Redactor()
    return [Problem(*tree.mark(path), dotted(path), redactor.text(text)) for path, text in wrong]


def _origin(tree: Tree) -> dict[str, int]:
    """Dotted key → line; also ``restart-1`` … → line of its entry."""
    origin = {dotted(path): line for path, (line, _) in tree.marks.items() if path}
    number = 0
    rows = tree.data.get("restarts") if isinstance(tree.data, dict) else None
    for index, row in enumerate(rows or ()):
        for _ in range(row.get("times", 1)):
            number += 1
            origin[f"restart-{number}"] = origin[f"restarts.{index}"]
    return origin


def _unreadable(path: Path, error: OSError) -> str:
    """Why the file can't be opened, and which one was probably meant."""
    if isinstance(error, IsADirectoryError):
        return "is a folder; expected a file"
    if not isinstance(error, FileNotFoundError):
        return f"can't be read: {error.strerror or error}"
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except OSError:
        return f"no such file, and no folder {path.parent}"
    near = nearest(path.name, names)
    return f"no such file; did you mean {near}?" if near else "no such file"
