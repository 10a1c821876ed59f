"""The options of a run: command line over environment over ini file, resolved into one frozen value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup.profile.problems import meant

if TYPE_CHECKING:
    from pytest_startup.checks.base import Check
    from pytest_startup.engines.base import Dialect
    from pytest_startup.launch.base import Launcher
    from pytest_startup.report.writers import Writer

BASELINE_MODES = ("check", "propose", "ignore")
REPORT_KINDS = ("json", "html", "csv")

#: name → (environment variable, ini key or None where a lasting setting makes no sense)
NAMES = {
    "profile": ("PYTEST_STARTUP_PROFILE", "startup_profile"),
    "artifacts": ("PYTEST_STARTUP_ARTIFACTS", "startup_artifacts"),
    "replay": ("PYTEST_STARTUP_REPLAY", None),
    "baseline": ("PYTEST_STARTUP_BASELINE", "startup_baseline"),
    "report": ("PYTEST_STARTUP_REPORT", "startup_report"),
}


class OptionError(Exception):
    """An option that can't be meant as it stands. ``problems`` has one text per mistake, each naming its origin."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Extensions:
    """What plugins and conftest files add through our hooks (``hookspecs``), by name.

    A check or report writer of a known name replaces it; ``launch.custom`` names a launcher, ``engine.kind`` a dialect.
    """

    checks: Mapping[str, Check] = field(default_factory=dict)
    launchers: Mapping[str, Callable[[], Launcher]] = field(default_factory=dict)
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    writers: Mapping[str, Writer] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """What a run was asked for. All paths are absolute.

    ``profiles`` in the order given, without repetition; ``profiles_from`` is ``cli``, ``env`` or ``ini``. ``artifacts``
    None: ``.startup/<profile>/<UTC time>/`` below ``root``. ``on_progress`` is called about every 20 s while a start
    takes long, with one line of text.
    """

    root: Path
    profiles: tuple[Path, ...] = ()
    profiles_from: str = "cli"
    artifacts: Path | None = None
    replay: Path | None = None
    baseline: str = "check"
    preflight: bool = False
    keep: bool = False
    reports: tuple[tuple[str, Path], ...] = ()
    on_progress: Callable[[str], None] | None = None
    extensions: Extensions = Extensions()


@dataclass(frozen=True)
class Source:
    """The raw texts of one origin. ``base`` is the folder that its relative paths start from."""

    label: str
    base: Path
    values: Mapping[str, Sequence[str]]


def from_environment(environ: Mapping[str, str], base: Path) -> Source:
    """Several profiles are separated as in ``PATH``; reports by white space."""
    values: dict[str, Sequence[str]] = {}
    for name, (variable, _) in NAMES.items():
        text = environ.get(variable, "").strip()
        if text:
            parts = text.split(os.pathsep) if name == "profile" else text.split() if name == "report" else [text]
            values[name] = [part for part in parts if part]
    return Source("env", base, values)


def resolve(
    sources: Sequence[Source],
    root: Path,
    preflight: bool = False,
    keep: bool = False,
    report_kinds: Sequence[str] = REPORT_KINDS,
) -> Options:
    """The first source that says anything about a name decides it. Raises OptionError with all mistakes."""
    problems: list[str] = []

    def first(name: str) -> tuple[Source, Sequence[str]] | None:
        return next(((s, s.values[name]) for s in sources if s.values.get(name)), None)

    def folder(name: str) -> Path | None:
        found = first(name)
        return absolute(found[0].base, found[1][-1]) if found else None

    profiles: dict[Path, None] = {}
    profile_source = first("profile")
    if profile_source:
        profiles = dict.fromkeys(absolute(profile_source[0].base, text) for text in profile_source[1])
        if not all(profile_source[1]):
            problems.append(f"{origin(profile_source[0], 'profile')}: the value is empty; expected a profile (YAML)")

    baseline = first("baseline")
    mode = baseline[1][-1] if baseline else "check"
    if baseline and mode not in BASELINE_MODES:
        problems.append(
            f"{origin(baseline[0], 'baseline')}: {mode!r} is not a baseline mode"
            f" (expected {' | '.join(BASELINE_MODES)}){meant(mode, BASELINE_MODES)}"
        )
    reports: list[tuple[str, Path]] = []
    for source, text in ((s, text) for s, texts in [first("report") or (None, ())] if s for text in texts):
        kind, equals, path = text.partition("=")
        if not equals or not path or kind not in report_kinds:
            hint = f"; write {kind}=PATH" if kind in report_kinds else meant(kind, report_kinds)
            known = ", ".join(report_kinds)
            problems.append(f"{origin(source, 'report')}: {text!r} is not KIND=PATH with KIND one of {known}{hint}")
        else:
            reports.append((kind, absolute(source.base, path)))
    replay_source = first("replay")
    replay = folder("replay")
    if replay_source and replay is not None and not replay.is_dir():
        problems.append(f"{origin(replay_source[0], 'replay')}: no such folder: {replay}")
    if problems:
        raise OptionError(problems)
    return Options(
        root=root,
        profiles=tuple(profiles),
        profiles_from=profile_source[0].label if profile_source else "cli",
        artifacts=folder("artifacts"),
        replay=replay,
        baseline=mode,
        preflight=preflight,
        keep=keep,
        reports=tuple(reports),
    )


def absolute(base: Path, text: str) -> Path:
    """``text`` below ``base`` unless absolute; ``~`` is the home folder; symbolic links are kept."""
    return Path(os.path.abspath(base / os.path.expanduser(text)))  # Path.expanduser raises for a user nobody knows


def origin(source: Source, name: str) -> str:
    """How the user spelled the option: ``--startup-baseline``, the variable, or the ini key."""
    variable, ini = NAMES[name]
    return {"env": variable, "ini": f"ini option {ini}"}.get(source.label, f"--startup-{name}")
