"""The nodes of an engine that runs on several hosts: how each is reached, what differs there, when it is started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_startup.profile.model import CacheFolder, ContainerFile, Profile


@dataclass(frozen=True)
class Reach:
    """The way to a node. ``kind``: local, ssh, namespace, context.

    ``target`` is what ``ssh`` takes (a host of the operator's own configuration), or the name of a network namespace of
    this machine (``/run/netns/NAME``), or of a Docker context of the operator. ``config`` replaces the operator's ssh
    configuration.
    """

    kind: str = "local"
    target: str = ""
    config: Path | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.target}".strip()


@dataclass(frozen=True)
class StartWhen:
    """What a node waits for before it is started: a line of another node's log, or a port that listens there.

    ``log`` is a regular expression. After ``within`` seconds, counted from the start of ``node``, the start has failed.
    """

    node: str
    log: str | None = None
    port: int | None = None
    within: float = 300.0


@dataclass(frozen=True)
class Step:
    """Something to be run in the node's idle container before its engine, without a shell. ``until``: repeat it until
    its output matches this regular expression, for ``within`` seconds at most; None: it must end with 0."""

    exec: tuple[str, ...]
    until: str | None = None
    within: float = 120.0


@dataclass(frozen=True)
class NodeContainer:
    """What differs from ``launch.container`` on a node: ``volumes`` and ``files`` are added (a file of the same path
    replaces the common one); ``docker_host`` as seen there."""

    name: str | None = None
    volumes: Mapping[str, str] = field(default_factory=dict)
    docker_host: str | None = None
    files: tuple[ContainerFile, ...] = ()


@dataclass(frozen=True)
class Node:
    """One node. ``address``: where the other nodes, and we, reach it; ``args`` and ``env`` follow those of the engine.

    ``api``: it serves the API (exactly one does), so it gets the host and port options. ``ports``: further ports that
    must be free here (rendezvous). ``ranks``: the global ranks that it holds. ``command`` and ``cwd`` replace those of
    ``launch.process``. ``checkpoint`` and ``caches`` are paths on the node. ``python``: the interpreter (3.10 or later)
    that runs our part there. ``steps``: run in the node's container, in order, before its engine.
    """

    name: str
    address: str
    reach: Reach = Reach()
    api: bool = False
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    cwd: Path | None = None
    gpus: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    checkpoint: tuple[Path, ...] = ()
    caches: tuple[CacheFolder, ...] = ()
    python: str = "python3"
    start_when: StartWhen | None = None
    container: NodeContainer = NodeContainer()
    steps: tuple[Step, ...] = ()


def clean_command(profile: Profile) -> str:
    """The command that ends what ``--startup-keep`` has left up: nodes behind ssh are found through their profile."""
    far = any(node.reach.kind in ("ssh", "context") for node in profile.nodes)
    return "pytest-startup clean --yes" + (f" --profile {shlex.quote(str(profile.path))}" if far else "")


def files_of(profile: Profile, node: Node) -> tuple[ContainerFile, ...]:
    """The overlay files of a node's container."""
    common = profile.launch.container.files if profile.launch.container is not None else ()
    own = {file.path for file in node.container.files}
    return (*(file for file in common if file.path not in own), *node.container.files)
