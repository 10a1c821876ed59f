"""Which image a tag names at this moment: the id that a profile can pin, asked of the daemon that it would use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_startup.launch.container import address as docker_address
from pytest_startup.profile.launch_rules import CAN_MOVE
from pytest_startup.profile.model import ContainerLaunch
from pytest_startup.profile.problems import ProfileError

_IMAGE = "launch.container.image"


@dataclass(frozen=True)
class Named:
    """``id`` is None where the daemon has no such image; ``digests`` are ``NAME@sha256:…``. ``docker`` is the command
    that asks the same daemon."""

    id: str | None
    digests: tuple[str, ...]
    docker: str


def look_up(tag: str, docker_host: str | None, context: str | None, environ: Mapping[str, str]) -> Named | None:
    """None: there is no daemon that could be asked. It is asked for a few seconds at most."""
    from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere

    try:
        address = docker_address.find(ContainerLaunch(tag, docker_host=docker_host, context=context), environ)
    except docker_address.AddressError:
        return None
    daemon = Daemon(address)
    try:
        seen = daemon.image(tag)
        return Named(str(seen["Id"]), tuple(str(d) for d in seen.get("RepoDigests") or ()), address.command())
    except NotThere:
        return Named(None, (), address.command())
    except (DaemonLost, DaemonRefused):
        return None
    finally:
        daemon.close()


def hint(error: ProfileError, environ: Mapping[str, str]) -> str | None:
    """For a profile whose image is a tag: what to pin, or how to get the image; None: nothing to add."""
    launch = error.data.get("launch")
    container: Any = launch.get("container") if isinstance(launch, dict) else None
    if not isinstance(container, dict) or not any(p.key == _IMAGE and CAN_MOVE in p.text for p in error.problems):
        return None
    given = [container.get(key) for key in ("image", "docker_host", "context")]
    tag, host, context = (value if isinstance(value, str) else None for value in given)
    found = look_up(tag or "", host, context, environ)
    if found is None:
        return None
    if found.id is None:
        return f"{_IMAGE}: {tag} is not there, and nothing is pulled by itself; pull it: {found.docker} pull {tag}"
    return f"{_IMAGE}: {tag} is now {' or '.join((found.id, *found.digests))}; pin that, if it is the right one"
