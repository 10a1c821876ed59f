"""From the validated ``nodes`` of a profile to ``profile.nodes``; the placeholders that name other nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_startup.profile.nodes import Node, NodeContainer, Reach, StartWhen, Step
from pytest_startup.profile.units import duration

if TYPE_CHECKING:
    from pytest_startup.profile.build import Builder

#: ``${node.head.address}``: what one node knows of another one.
PLACEHOLDER = re.compile(r"node\.([A-Za-z0-9][A-Za-z0-9_-]*)\.(address|rank)")


def addresses(data: Any) -> dict[str, str]:
    """Values of all ``${node.NAME.…}``: the address, and the lowest rank where ranks are given."""
    nodes = data.get("nodes") if isinstance(data, dict) else None
    out: dict[str, str] = {}
    for name, node in (nodes if isinstance(nodes, dict) else {}).items():
        if not isinstance(node, dict):
            continue
        if isinstance(node.get("address"), str):
            out[f"node.{name}.address"] = node["address"]
        ranks = node.get("ranks")
        if isinstance(ranks, list) and ranks and all(isinstance(r, int) for r in ranks):
            out[f"node.{name}.rank"] = str(min(ranks))
    return out


def nodes(builder: Builder, data: Mapping[str, Any], checkpoint: tuple[Path, ...]) -> tuple[Node, ...]:
    """In the order of the file. Without ``api`` on any of them the first one serves."""
    served = any(node.get("api") for node in data.values())
    return tuple(
        _node(builder, name, node, bool(node.get("api")) or (not served and number == 0), checkpoint)
        for number, (name, node) in enumerate(data.items())
    )


def _node(b: Builder, name: str, data: Mapping[str, Any], api: bool, checkpoint: tuple[Path, ...]) -> Node:
    from pytest_startup.profile.model import CacheFolder

    given = data.get("checkpoint")
    caches = (data.get("caches") or {}).items()
    command = b.texts(data.get("command"))
    if command and "/" in command[0]:
        command = (str(b.path(command[0])), *command[1:])
    return Node(
        name=name,
        address=b.text(data["address"]),
        reach=_reach(b, data.get("reach", "local")),
        api=api,
        args=b.texts(data.get("args")),
        env=b.env(data.get("env")),
        command=command,
        cwd=b.path(data["cwd"]) if "cwd" in data else None,
        gpus=b.gpus(data.get("gpus")) or (),
        ports=tuple(data.get("ports", ())),
        ranks=tuple(data.get("ranks", ())),
        checkpoint=checkpoint if given is None else tuple(b.path(c) for c in given),
        caches=tuple(CacheFolder(k, b.path(c["path"]), c.get("kind", "other")) for k, c in caches),
        python=b.text(data.get("python", Node.python)),
        start_when=_start_when(b, data.get("start_when")),
        container=_container(b, data.get("container") or {}),
        steps=tuple(_step(b, step) for step in data.get("steps", ())),
    )


def _container(b: Builder, data: Mapping[str, Any]) -> NodeContainer:
    volumes = {b.volume(k): b.text(v) for k, v in data.get("volumes", {}).items()}
    return NodeContainer(b.maybe(data.get("name")), volumes, b.maybe(data.get("docker_host")), b.files(data))


def _step(b: Builder, data: Mapping[str, Any]) -> Step:
    within = data.get("within")
    return Step(b.texts(data["exec"]), b.maybe(data.get("until")), Step.within if within is None else duration(within))


def _reach(b: Builder, data: Any) -> Reach:
    if isinstance(data, str):
        return Reach(data)
    kind = next(k for k in ("ssh", "namespace", "context") if k in data)
    return Reach(kind, b.text(data[kind]), b.path(data["config"]) if "config" in data else None)


def _start_when(b: Builder, data: Mapping[str, Any] | None) -> StartWhen | None:
    if data is None:
        return None
    within = data.get("within")
    return StartWhen(
        node=b.text(data["node"]),
        log=b.maybe(data.get("log")),
        port=data.get("port"),
        within=StartWhen.within if within is None else duration(within),
    )
