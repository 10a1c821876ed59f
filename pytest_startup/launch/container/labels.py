"""Labels on all that we create in a container engine: whose run it is, and whether that run still lives."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_startup.launch import registry
from pytest_startup.launch.identity import Identity, alive, identify

PREFIX = "org.pytest-startup."
RUN = PREFIX + "run"
PROFILE = PREFIX + "profile"
START = PREFIX + "start"
OWNER = PREFIX + "owner"
USER = PREFIX + "uid"
HOST = PREFIX + "host"
BOOT = PREFIX + "boot"
NAMESPACE = PREFIX + "pid-namespace"


def labels(run_id: str, profile: str, start: str) -> dict[str, str]:
    """What the next run has to know to tell a dead run's container from a living one's."""
    me = identify(os.getpid()) or Identity(os.getpid(), 0)
    return {
        RUN: run_id,
        PROFILE: profile,
        START: start,
        OWNER: f"{me.pid}:{me.start}",
        USER: str(os.getuid()),
        HOST: host_mark(),
        BOOT: registry.boot_id(),
        NAMESPACE: registry.pid_namespace(),
    }


def host_mark() -> str:
    """This host, hashed."""
    try:
        text = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = ""
    return hashlib.sha256((text or platform.node()).encode()).hexdigest()[:12]


def is_ours(given: Mapping[str, str] | None) -> bool:
    """Do the labels of a container, volume or network say that a run of ours made it?"""
    return RUN in (given or {})


def run_is_dead(given: Mapping[str, str] | None) -> bool:
    """For certain: of this user, host and pid namespace, and its pytest has ended (or the host was booted again)."""
    found = given or {}
    if found.get(USER) != str(os.getuid()) or found.get(HOST) != host_mark():
        return False
    if found.get(NAMESPACE) != registry.pid_namespace():
        return False
    if found.get(BOOT) != registry.boot_id():
        return True
    pid, _, start = found.get(OWNER, "").partition(":")
    if not (pid.isdecimal() and start.isdecimal()):
        return False
    return not alive(Identity(int(pid), int(start)))


def told(seen: Mapping[str, Any]) -> str:
    """``container 3f2a… (name, image …, created 2026-… , running)`` of a listed or an inspected one."""
    if "Names" in seen:
        name = (seen["Names"] or ["?"])[0].lstrip("/")
        image, status, since = seen.get("Image", "?"), seen.get("Status") or seen.get("State", "?"), ""
    else:
        name, state = str(seen.get("Name", "?")).lstrip("/"), seen.get("State") or {}
        image, status = (seen.get("Config") or {}).get("Image", "?"), state.get("Status", "?")
        begun = state.get("StartedAt", "")
        since = (
            f" since {begun[:19]}Z" if status == "running" and begun else f", created {seen.get('Created', '?')[:19]}Z"
        )
    return f"container {str(seen.get('Id', ''))[:12]} ({name}, image {image}, {status}{since})"
