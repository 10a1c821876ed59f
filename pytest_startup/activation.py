"""From pytest's configuration to a session of ours: options, extensions, profiles, gates."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_startup.gate import Gate
from pytest_startup.gating import Distributed, GatePlugin
from pytest_startup.launch.container import pinning
from pytest_startup.options import (
    REPORT_KINDS,
    Extensions,
    OptionError,
    Options,
    Source,
    from_environment,
    resolve,
)
from pytest_startup.profile.model import Profile
from pytest_startup.profile.problems import ProfileError
from pytest_startup.progress import Progress
from pytest_startup.session import Session

SESSION = pytest.StashKey[Session]()
#: What each gate imports sooner or later, by module: module → package.
NEEDED = {"yaml": "PyYAML", "requests": "requests", "prometheus_client": "prometheus-client"}


def session_of(config: pytest.Config) -> Session:
    """The one session of a run, made on first need. Raises UsageError for options that can't be meant."""
    if SESSION in config.stash:
        return config.stash[SESSION]
    require(NEEDED)
    manager = config.pluginmanager
    progress = Progress(
        manager.getplugin("terminalreporter"), manager.getplugin("capturemanager"), hasattr(config, "workerinput")
    )
    options = dataclasses.replace(options_of(config), on_progress=progress)

    def load(path: Path) -> Profile:
        from pytest_startup.profile.load import load

        added = options.extensions
        starts = options.replay is None and not config.option.collectonly
        try:
            profile = load(
                path,
                os.environ,
                checks=added.checks,
                engines=added.dialects,
                launchers=added.launchers,
                need_environment=starts,
            )
        except ProfileError as error:
            shown = shortest(path, config)
            told = [p.shown(shown, error.syntax) for p in error.problems]
            pin = pinning.hint(error, os.environ)
            raise pytest.UsageError(*told, *([pin] if pin else [])) from None
        if starts:
            require(needed_by(profile))
        return profile

    def open_gate(profile: Profile, options: Options) -> Gate:
        from pytest_startup.artifacts import ArtifactsError
        from pytest_startup.baseline import BaselineError

        try:
            gate: Gate = config.hook.pytest_startup_gate(config=config, profile=profile, options=options)
        except (ArtifactsError, BaselineError) as error:
            raise pytest.UsageError(str(error)) from None
        return gate

    def register(plugin: object, name: str) -> None:
        if manager.register(plugin, name) is None:  # a run without it would be green without a gate
            raise pytest.UsageError(f"-p no:{name} would leave the gate of a profile out of the run: remove it")

    session = Session(options, load, open_gate, lambda path: shortest(path, config, config.rootpath))
    config.stash[SESSION] = session
    plugin = GatePlugin(config, session, progress)
    register(plugin, "startup-gate")
    if manager.hasplugin("xdist") and not plugin.worker:
        register(Distributed(plugin), "startup-gate-xdist")
    return session


def require(modules: Mapping[str, str]) -> None:
    """Raises UsageError with the packages that are missing, as in an environment beside a folder that was copied."""
    missing = [package for module, package in modules.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise pytest.UsageError(f"pytest-startup needs {', '.join(missing)}: pip install {' '.join(missing)}")


def needed_by(profile: Profile) -> dict[str, str]:
    """What this profile needs besides; nothing of it with nodes, where the docker command and the driver are asked."""
    launch = profile.launch
    needs: dict[str, str] = {}
    if launch.container and not profile.nodes:
        needs["docker"] = "docker"
    if (launch.gpus or (launch.container and launch.container.gpus)) and not profile.nodes:
        needs["pynvml"] = "nvidia-ml-py"
    return needs


def options_of(config: pytest.Config) -> Options:
    """What the run is asked: command line before environment before ini. Raises pytest.UsageError."""
    option = config.option
    cli = {
        "profile": option.startup_profile,
        "artifacts": option.startup_artifacts and [option.startup_artifacts],
        "replay": option.startup_replay and [option.startup_replay],
        "baseline": option.startup_baseline and [option.startup_baseline],
        "report": option.startup_report,
    }
    ini: dict[str, list[str]] = {}
    for name, key in (("profile", "startup_profile"), ("report", "startup_report")):
        ini[name] = list(config.getini(key))
    for name, key in (("artifacts", "startup_artifacts"), ("baseline", "startup_baseline")):
        ini[name] = [text for text in [config.getini(key)] if text]
    here = config.invocation_params.dir
    ini_folder = config.inipath.parent if config.inipath else config.rootpath
    hook = config.hook
    extensions = Extensions(
        checks=merged(hook.pytest_startup_checks(config=config)),
        launchers=merged(hook.pytest_startup_launchers(config=config)),
        dialects=merged(hook.pytest_startup_dialects(config=config)),
        writers=merged(hook.pytest_startup_reports(config=config)),
    )
    kinds = [*REPORT_KINDS, *extensions.writers]
    sources = [Source("cli", here, cli), from_environment(os.environ, here), Source("ini", ini_folder, ini)]
    try:
        options = resolve(sources, config.rootpath, option.startup_preflight, option.startup_keep, kinds)
    except OptionError as error:
        raise pytest.UsageError(*error.problems) from None
    if options.baseline == "propose":
        from pytest_startup.baseline_propose import why_not_here

        if reason := why_not_here(os.environ):
            raise pytest.UsageError(f"--startup-baseline propose: {reason}")
    return dataclasses.replace(options, extensions=extensions)


def merged(answers: list[Mapping[str, Any] | None]) -> dict[str, Any]:
    """The answers of all implementations; pluggy's first answer is the last registered, which wins."""
    out: dict[str, Any] = {}
    for answer in reversed(answers):
        out.update(answer or {})
    return out


def shortest(path: Path, config: pytest.Config, base: Path | None = None) -> str:
    """``path`` as a user would write it from ``base`` (default: where pytest was called)."""
    return Path(os.path.relpath(path, base or config.invocation_params.dir)).as_posix()
