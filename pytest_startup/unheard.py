"""What a user asked for and nobody would hear: misspelt variables, and an ini file that pytest has lost sight of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_startup.launch.identity import MARKER
from pytest_startup.launch.locks import FOLDER_VARIABLE
from pytest_startup.options import NAMES
from pytest_startup.profile.problems import meant

#: Where pytest keeps settings, and what shows that a file has some.
_INI = {"pytest.ini": "", "pyproject.toml": "[tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]"}


def unheard(environ: Iterable[str], args: Sequence[str], here: Path, ini: Path | None) -> list[str]:
    """One text per thing. ``ini``: the file that pytest has read, if any; ``here``: where it was called."""
    return [*_variables(environ), *_ini(args, here, ini)]


def _variables(environ: Iterable[str]) -> list[str]:
    known = [*(variable for variable, _ in NAMES.values()), FOLDER_VARIABLE, MARKER]
    wrong = [name for name in environ if name.startswith("PYTEST_STARTUP_") and name not in known]
    return [f"{name}: there is no such variable{meant(name, known)}" for name in wrong]


def _ini(args: Sequence[str], here: Path, ini: Path | None) -> list[str]:
    """pytest looks for its ini file before it knows our options: a path behind a blank is one of tests to it."""
    if ini is not None and (ini.parent == here or ini.parent in here.parents):
        return []
    ours = [(a, b) for a, b in itertools.pairwise(map(str, args)) if a.startswith("--startup-") and (here / b).exists()]
    lost = next((here / name for name, mark in _INI.items() if _has(here / name, mark)), None)
    if not ours or lost is None or any(str(a).partition("=")[0] in ("-c", "--config-file") for a in args):
        return []
    option, value = ours[0]
    return [f"{option} {value}: pytest takes {value} for a test path and does not read {lost}; write {option}={value}"]


def _has(path: Path, mark: str) -> bool:
    """Is it an ini file with something for us?"""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return mark in text and "startup_" in text
