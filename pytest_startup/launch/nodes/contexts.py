"""A Docker context as the way to a node: what it leads to, read from the operator's own Docker configuration.

Our part has to run on the node (only there can ports, memory and page size be seen), so the context is taken for where
it leads: over the operator's ssh to the host, or to a socket of this machine. ``docker`` itself is run on the node.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

from pytest_startup.launch.base import LaunchError
from pytest_startup.profile.nodes import Node, Reach


def resolved(node: Node) -> Node:
    """``node`` with the way that its context stands for; a node reached in another way as it is. Raises LaunchError."""
    if node.reach.kind != "context":
        return node
    name = node.reach.target
    host = _host(name)
    scheme, _, rest = host.partition("://")
    socket = node.container.docker_host
    if scheme == "unix":
        return replace(node, reach=Reach("local"), container=replace(node.container, docker_host=socket or host))
    if scheme != "ssh":
        raise LaunchError(
            f"Docker context {name} leads to {host}: only the daemon answers there, and ports, memory and page size of "
            "the node could not be seen; expected a context over ssh:// or unix://, or reach: {ssh: TARGET}"
        )
    where, slash, path = rest.partition("/")
    if slash and path:
        socket = socket or f"unix:///{path}"
    return replace(node, reach=Reach("ssh", f"ssh://{where}"), container=replace(node.container, docker_host=socket))


def _host(name: str) -> str:
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "contexts" / "meta"
    file = folder / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    try:
        return str(json.loads(file.read_text("utf-8"))["Endpoints"]["docker"]["Host"])
    except FileNotFoundError:
        known = sorted(filter(None, map(_name, folder.glob("*/meta.json"))))
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known in {folder}: {', '.join(known) or 'none'}"
        raise LaunchError(f"there is no Docker context {name}; {hint}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"Docker context {name}: {file} can't be read: {error}") from None


def _name(file: Path) -> str | None:
    try:
        return str(json.loads(file.read_text("utf-8"))["Name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
