"""What a daemon would not do, or silently left out, told with the key of the profile that asked for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_startup.launch.container.options import OWN_MEMBERS
from pytest_startup.profile.model import Profile
from pytest_startup.profile.problems import nearest

GPU_HELP = (
    "install the NVIDIA Container Toolkit (Debian, Ubuntu: apt-get install nvidia-container-toolkit), then "
    "nvidia-ctk runtime configure --runtime=docker, and restart the daemon"
)
_GPU_REFUSED = re.compile(
    r"could not select device driver|nvidia-container-(cli|runtime)|unresolvable CDI devices", re.I
)
#: Words of a daemon (Docker 20.10 to 28) or of its runtime → the key below ``launch.container`` that they are about.
_ABOUT = (
    (re.compile(r"CapAdd"), "cap_add"),
    (re.compile(r"gathering device information|error adding device|not a device node"), "devices"),
    (re.compile(r"setting rlimit|ulimit"), "ulimits"),
    (re.compile(r"unable to find (user|group)|no matching entries in (passwd|group) file"), "user"),
    (re.compile(r"network \S+ not found"), "network"),
    (re.compile(r"[Ii]nvalid IPC mode|IPC mode|ipc namespace"), "ipc"),
    (re.compile(r"[Mm]inimum memory limit"), "memory"),
    (re.compile(r"executable file not found|no such file or directory: unknown|exec format error"), "command"),
)
_MEMBER = re.compile(r"HostConfig\.(\w+) of type|[Ii]nvalid (\w+):")
#: Limits that a daemon without the control group for them leaves out, with no more than a warning.
_LIMITS = ("Memory", "MemorySwap", "NanoCpus", "CpuQuota", "CpuShares", "CpusetCpus", "CpusetMems", "PidsLimit")


def left_out(profile: Profile, asked: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """What of ``asked`` (HostConfig) is not in force in the container that was ``made`` (HostConfig)."""
    out = []
    for member in _LIMITS:
        wanted = asked.get(member)
        if not wanted or (isinstance(wanted, int) and wanted < 0) or made.get(member):
            continue
        key = OWN_MEMBERS.get(member, f"engine_options.{member}")
        out.append(
            f"{profile.place(f'launch.container.{key}')}: the daemon leaves {member} out (asked for {wanted}): it has "
            "no control group for it, as a rootless one on control groups v1 (docker info warns of it); leave it out, "
            "or use a daemon that can"
        )
    return out


def unknown_members(profile: Profile, asked: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """Members of ``engine_options`` of which a Docker daemon knows nothing: it takes them, and says nothing.

    Its JSON is read whatever the case of a name; members that are empty need not be shown.
    """
    shown = {name.lower() for name in made}
    out = []
    container = profile.launch.container
    for member in container.engine_options if container is not None else ():
        if member not in asked or not asked[member] or member.lower() in shown:
            continue
        near = nearest(member, made)
        hint = f"; did you mean {near}?" if near else ""
        out.append(
            f"{profile.place(f'launch.container.engine_options.{member}')}: the daemon knows no member {member} of "
            f"HostConfig, and leaves it out without a word{hint}"
        )
    return out


def explain_refusal(text: str, profile: Profile) -> str:
    """What a daemon said when it would not create or start a container, with what helps."""
    container = profile.launch.container
    if _GPU_REFUSED.search(text):
        gpus = container.gpus if container else None
        devices = [d for d in container.devices if not d.startswith("/")] if container else []
        wanted: Sequence[str] = gpus or devices
        return (
            f"{profile.place(f'launch.container.{_gpu_key(gpus)}')}: the container asks for GPUs "
            f"({', '.join(wanted)}), and the daemon has no working GPU runtime; {GPU_HELP}; the daemon said: {text}"
        )
    key = _about(text, container.engine_options if container else ())
    if key == "command" and container is not None and container.entrypoint:
        key = "entrypoint"
    place = f"{profile.place(f'launch.container.{key}')}: launch.container.{key}: " if key else ""
    return f"{place}the container engine refused: {text}"


def _gpu_key(gpus: Sequence[str] | None) -> str:
    return "gpus" if gpus else "devices"


def _about(text: str, members: Mapping[str, Any] | Sequence[str]) -> str | None:
    """The key that a refusal is about; None: it does not show."""
    found = _MEMBER.search(text)
    member = next((m for m in members if found and m in found.groups()), None)
    if member is not None:
        return f"engine_options.{member}"
    return next((key for words, key in _ABOUT if words.search(text)), None)
