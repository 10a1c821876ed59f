"""Rules of ``nodes`` that a schema can't say: names, one API, who waits for whom, ranks, paths on other hosts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from pytest_startup.profile.problems import KeyPath, not_a_pattern, suggested
from pytest_startup.profile.rule import Wrong

#: Seconds that a headless vLLM node takes to end after TERM when its head is gone (0.31: 5 s grace, TERM, KILL: 11 s).
LEAST_STOP = 12.0


def check_nodes(data: Mapping[str, Any], stop_seconds: float | None) -> Wrong:
    """Everything that is wrong with ``nodes`` and with what refers to them."""
    nodes = data.get("nodes")
    if not isinstance(nodes, dict):
        yield from _without(data)
        return
    known = {n: v for n, v in nodes.items() if isinstance(v, dict)}
    yield from _whole(data, known, stop_seconds)
    yield from _addresses(known)
    yield from _waits(known)
    yield from _ranks(known)
    yield from _restarts(data, known)


def _without(data: Mapping[str, Any]) -> Wrong:
    for index, row in enumerate(_list(data.get("restarts"))):
        if isinstance(row, dict) and "nodes" in row:
            yield ("restarts", index, "nodes"), "the profile has no nodes; expected nodes: {head: …, worker: …}"


def _whole(data: Mapping[str, Any], nodes: Mapping[str, Any], stop_seconds: float | None) -> Wrong:
    launch = data.get("launch")
    launch = launch if isinstance(launch, dict) else {}
    if len(nodes) < 2:
        yield ("nodes",), "only one node; expected two or more, or no nodes at all"
    if "custom" in launch:
        yield (
            ("launch", "custom"),
            "nodes need launch.process or launch.container; a custom launcher has its own options",
        )
    yield from _containers(launch, nodes)
    if launch.get("port", "auto") == "auto":
        yield (
            ("launch", "port") if "port" in launch else ("launch",),
            "with nodes the port of the API must be given (it is chosen on another host); expected launch.port: 8000",
        )
    if "gpus" in launch:
        yield ("launch", "gpus"), "with nodes each has GPUs of its own; expected them in nodes.NAME.gpus"
    served = [n for n, node in nodes.items() if node.get("api") is True]
    for name in served[1:]:
        yield ("nodes", name, "api"), f"a second API beside {served[0]}; expected exactly one node with api: true"
    if stop_seconds is not None and stop_seconds < LEAST_STOP:
        yield (
            ("deadlines", "stop"),
            f"{stop_seconds:g} s is too short: a headless node takes 11 s to end after TERM; expected at least 12s",
        )


def _containers(launch: Mapping[str, Any], nodes: Mapping[str, Any]) -> Wrong:
    container = launch.get("container")
    for name, node in nodes.items():
        for key in ("container", "steps"):
            if key in node and not isinstance(container, dict):
                yield ("nodes", name, key), "only with launch.container, which the nodes have in common"
        if "steps" in node and isinstance(container, dict) and "exec_command" not in container:
            yield ("nodes", name, "steps"), "steps are run in an idle container; expected launch.container.exec_command"
        for number, step in enumerate(_list(node.get("steps"))):
            until = step.get("until") if isinstance(step, dict) else None
            if isinstance(until, str) and (wrong := not_a_pattern(until)):
                yield ("nodes", name, "steps", number, "until"), wrong
    if not isinstance(container, dict):
        return
    if container.get("network") != "host":
        path: KeyPath = ("launch", "container", "network") if "network" in container else ("launch", "container")
        yield path, "with nodes the containers use the network of their host; expected network: host"
    for key in ("docker_host", "context", "log", "engine_options"):
        if key in container:
            hint = "; expected nodes.NAME.container.docker_host" if key == "docker_host" else ""
            yield (
                ("launch", "container", key),
                f"with nodes the docker command of each node is used, without {key}{hint}",
            )


def _addresses(nodes: Mapping[str, Any]) -> Wrong:
    seen: dict[tuple[str, str], str] = {}
    for name, node in nodes.items():
        address = node.get("address")
        reach = node.get("reach", "local")
        if isinstance(address, str):
            try:
                if ipaddress.ip_address(address).is_unspecified:
                    yield ("nodes", name, "address"), f"{address} is every address; expected the one that others use"
            except ValueError:
                if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", address):
                    yield ("nodes", name, "address"), f"{address!r} is neither an address nor a host name"
            key = (address, "")
            if key in seen:
                yield ("nodes", name, "address"), f"{address} is also the address of {seen[key]}; expected its own"
            seen.setdefault(key, name)
        if isinstance(reach, dict):
            ways = [k for k in ("ssh", "namespace", "context") if k in reach]
            if len(ways) != 1:
                yield ("nodes", name, "reach"), "expected local, {ssh: TARGET}, {context: NAME} or {namespace: NAME}"
            elif "config" in reach and ways != ["ssh"]:
                yield ("nodes", name, "reach", "config"), "an ssh configuration; expected it beside ssh only"
            target = reach.get("ssh")
            if isinstance(target, str) and target.startswith("-"):
                yield ("nodes", name, "reach", "ssh"), f"{target} would be an option of ssh; expected [USER@]HOST"
            space = reach.get("namespace")
            if isinstance(space, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", space):
                yield ("nodes", name, "reach", "namespace"), f"{space!r} is no name of a namespace (see: ip netns list)"
            if ways in (["ssh"], ["context"]):
                yield from _absolute(name, node)


def _absolute(name: str, node: Mapping[str, Any]) -> Wrong:
    places: list[tuple[KeyPath, object]] = [(("nodes", name, "cwd"), node.get("cwd"))]
    places += [(("nodes", name, "checkpoint", i), p) for i, p in enumerate(_list(node.get("checkpoint")))]
    caches = node.get("caches")
    for cache, one in (caches if isinstance(caches, dict) else {}).items():
        places.append((("nodes", name, "caches", cache, "path"), one.get("path") if isinstance(one, dict) else None))
    for path, text in places:
        if isinstance(text, str) and not text.startswith(("/", "${profile_dir}")):
            yield path, f"{text} is relative, and the node has no folder of this profile; expected an absolute path"


def _waits(nodes: Mapping[str, Any]) -> Wrong:
    waits: dict[str, str] = {}
    for name, node in nodes.items():
        when = node.get("start_when")
        if not isinstance(when, dict):
            continue
        path: KeyPath = ("nodes", name, "start_when")
        other = when.get("node")
        if isinstance(other, str):
            if other not in nodes:
                yield (*path, "node"), f"no node {other}; {suggested(other, nodes)}"
            elif other == name:
                yield (*path, "node"), f"{name} would wait for itself; expected another node"
            else:
                waits[name] = other
        if ("log" in when) == ("port" in when):
            yield path, "expected exactly one of log and port"
        if isinstance(when.get("log"), str) and (wrong := not_a_pattern(when["log"])):
            yield (*path, "log"), wrong
    for name in waits:
        seen = [name]
        while seen[-1] in waits and len(seen) <= len(waits):
            seen.append(waits[seen[-1]])
            if seen[-1] == name:
                yield ("nodes", name, "start_when", "node"), f"nodes wait for each other: {' for '.join(seen)}"
                break


def _ranks(nodes: Mapping[str, Any]) -> Wrong:
    held: dict[int, str] = {}
    for name, node in nodes.items():
        for index, rank in enumerate(_list(node.get("ranks"))):
            if isinstance(rank, int) and rank in held:
                yield ("nodes", name, "ranks", index), f"rank {rank} is also on {held[rank]}; expected it on one node"
            elif isinstance(rank, int):
                held[rank] = name


def _restarts(data: Mapping[str, Any], nodes: Mapping[str, Any]) -> Wrong:
    for index, row in enumerate(_list(data.get("restarts"))):
        named = _list(row.get("nodes")) if isinstance(row, dict) else []
        for number, name in enumerate(named):
            if isinstance(name, str) and name not in nodes:
                yield ("restarts", index, "nodes", number), f"no node {name}; {suggested(name, nodes)}"


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
