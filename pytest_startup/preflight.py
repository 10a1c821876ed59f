"""Reasons not to start anything on this host, all at once, before anything is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_startup.observe import gpus, host
from pytest_startup.profile.problems import meant

if TYPE_CHECKING:
    from pytest_startup.launch.base import Launcher
    from pytest_startup.profile.model import Profile


def problems(profile: Profile, launcher: Launcher) -> list[str]:
    """What the launcher, the host's properties and the GPUs say against a start. Empty: go ahead."""
    found = list(launcher.preflight(profile))
    if profile.nodes:  # each is looked at where it is
        return found
    facts = host.host_facts()
    wants_gpus = bool(profile.launch.gpus) or any((profile.host.driver, profile.host.gpu, profile.host.gpu_count))
    if wants_gpus:
        with gpus.Nvml(profile.launch.gpus or None) as nvml:
            facts += gpus.identity_facts(nvml)
            if profile.launch.gpus:
                found += [f"{profile.place('launch.gpus')}: {text}" for text in nvml.problems()]
                found += gpus.other_processes(nvml.gpus())
    found += [f"{profile.place(text.partition(':')[0])}: {text}" for text in host.host_problems(profile.host, facts)]
    found += _model(profile)
    missing = [p for p in profile.launch.checkpoint if not p.exists()]
    found += [f"{profile.place('launch.checkpoint')}: {p} is not there" for p in missing]
    return found


def _model(profile: Profile) -> list[str]:
    """A model by a path beside the profile, which no hub has. An absolute one may be inside of what a script starts."""
    model = profile.engine.model
    path = profile.path.parent / model
    if profile.launch.process is None or not model.startswith(("./", "../")) or path.exists():
        return []
    near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    return [f"{profile.place('engine.model')}: engine.model: {model} is not there{meant(path.name, near)}"]
