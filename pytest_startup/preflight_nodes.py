"""Reasons not to start anything on a set of nodes: all nodes and reasons at once, before anything is touched."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.nodes import docker as nodes_docker
from pytest_startup.launch.nodes.inspect import sha256
from pytest_startup.profile.nodes import clean_command, files_of

if TYPE_CHECKING:
    from pytest_startup.launch.nodes.reach import Access
    from pytest_startup.profile.model import Profile
    from pytest_startup.profile.nodes import Node

GIB = 2**30
#: Seconds by which the wall clocks of nodes may differ: more, and their log lines can't be read side by side.
CLOCK = 2.0
#: Bytes free in /dev/shm below which no engine of several ranks starts; it is also what Docker gives a container.
SHM_LEAST = 64 << 20
#: MiB of a GPU that its driver, or a display, may hold without a compute process.
MOST_USED = 1024
#: Seconds for a checkpoint's manifest and all the rest.
LIMIT = 120.0


@dataclass(frozen=True)
class Seen:
    """What one node said of itself (``launch.nodes.inspect``); ``clock``: its wall clock less ours, in seconds,
    known to within ``error``."""

    data: Mapping[str, Any]
    clock: float = 0.0
    error: float = 0.0


def problems(profile: Profile, access: Mapping[str, Access]) -> list[str]:
    """Ask all nodes at the same time and judge. A node that can't be asked is a reason, not an error."""
    found: list[str] = []
    seen: dict[str, Seen] = {}
    with ThreadPoolExecutor(max(1, len(access))) as pool:
        for node, answer in zip(
            profile.nodes, pool.map(lambda n: _ask(profile, access[n.name]), profile.nodes), strict=True
        ):
            if isinstance(answer, Seen):
                seen[node.name] = answer
            else:
                found.append(f"{profile.place(f'nodes.{node.name}.reach')}: {answer}")
    return found + own_files(profile) + judge(profile, seen)


def own_files(profile: Profile) -> list[str]:
    """Overlay files as they are here, from where they are sent to nodes behind ssh."""
    container = profile.launch.container
    all_files = [("launch.container.files", container.files if container is not None else ())]
    all_files += [(f"nodes.{n.name}.container.files", n.container.files) for n in profile.nodes]
    out = []
    for key, file in [(f"{key}.{number}", file) for key, some in all_files for number, file in enumerate(some)]:
        found, place = sha256(file.host), profile.place(key)
        if found is None:
            out.append(f"{place}: overlay file {file.host} can't be read")
        elif file.sha256 is not None and found != file.sha256:
            out.append(f"{place}: overlay file {file.host}: sha256 {found[:12]}…, expected {file.sha256[:12]}…")
    return out


def _ask(profile: Profile, access: Access) -> Seen | str:
    node, process, container = access.node, profile.launch.process, profile.launch.container
    command = nodes_docker.docker(node) if container is not None else nodes_docker.engine_words(profile, node)
    docker = None
    sources: list[str] = []
    files: list[str] = []
    if container is not None:
        name = nodes_docker.container_name(profile, node)
        docker = {"docker": nodes_docker.docker(node), "image": container.image, "name": name}
        sources = [s for s in {**container.volumes, **node.container.volumes} if s.startswith("/")]
        files = [str(f.host) for f in files_of(profile, node)] if node.reach.kind != "ssh" else []
    port = [profile.launch.port] if node.api and profile.launch.port else []
    host = profile.host
    asked = {
        "address": node.address,
        "ports": sorted({*node.ports, *port}),
        "locks": [["port", f"{node.address}:{p}"] for p in sorted({*node.ports, *port})]
        + [["gpu", g] for g in node.gpus],
        "gpus": list(nodes_docker.gpus_of(profile, node)),
        "look_at_gpus": any(v is not None for v in (host.driver, host.gpu, host.gpu_count)),
        "checkpoint": [str(p) for p in node.checkpoint],
        "caches": {c.name: str(c.path) for c in node.caches},
        "files": files,
        "docker": docker,
        "sources": sources,
        "command": command[0] if command else "",
        "cwd": str(node.cwd or (process.cwd if process else "/")),
        "path": {**profile.engine.env, **node.env}.get("PATH"),
    }
    try:
        with access.link() as link:
            clock = link.clock()
            offset = error = 0.0
            if clock is not None:
                error = clock["trip"] / 2
                offset = clock["wall"] - (time.time() - (time.monotonic() - clock["t"]) + error)
            return Seen(link.errand("inspect", LIMIT, asked), offset, error)
    except LaunchError as refused:
        return str(refused)


def judge(profile: Profile, seen: Mapping[str, Seen]) -> list[str]:
    """What the nodes said against the profile, and against each other."""
    found = []
    for node in profile.nodes:
        if node.name in seen:
            found += [
                f"{profile.place(f'nodes.{node.name}{key}')}: node {node.name}: {text}"
                for key, text in _alone(profile, node, seen[node.name].data)
            ]
    return found + [f"{profile.place('nodes')}: {text}" for text in _together(seen)]


def _alone(profile: Profile, node: Node, data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(key below the node, reason)."""
    host = profile.host
    out: list[tuple[str, str]] = []
    if not host.fits("page_size", data["page_size"]):
        out.append(("", f"page size {data['page_size']}, expected {host.page_size} (host.page_size)"))
    if not host.fits("kernel", data["kernel"]):
        out.append(("", f"kernel {data['kernel']}, expected {host.kernel} (host.kernel)"))
    if data["address"]:
        out.append((".address", f"{node.address}: {data['address']}"))
    out += [(".ports", f"port {port} is already taken by {who}") for port, who in data["ports"].items()]
    out += [(".ports", f"{what} is in use by {who}") for what, who in data["locks"].items()]
    if data["ports"] or data["locks"]:
        out += [(".ports", f"still up: {what}; end it with: {clean_command(profile)}") for what in data["kept"]]
    if not data["cwd"]:
        out.append((".cwd", "the working folder is not there"))
    elif data["command"] is None:
        out.append((".command", "the command is not there or may not be executed"))
    for path, manifest in data["checkpoint"].items():
        if manifest.get("missing"):
            out.append((".checkpoint", f"{path} is not there"))
        elif profile.engine.revision and manifest["revision"] and manifest["revision"] != profile.engine.revision:
            out.append((".checkpoint", f"revision {manifest['revision']}, expected {profile.engine.revision}"))
    out += _shm(profile, data["shm_free"])
    out += [
        ("", f"{path} in /dev/shm holds {size} GiB and nobody has changed it for ten minutes")
        for path, size in data["shm_stale"]
    ]
    out += [(".container.volumes", f"{path} is not there; make it first") for path in data["sources"]]
    out += _container(profile, node, data)
    return out + _gpus(profile, node, data["gpu"]) + [("", t) for t in _host_memory(profile, node, data)]


def _shm(profile: Profile, free: int | None) -> list[tuple[str, str]]:
    """A /dev/shm that is full: ranks talk through it. That of a container is its own, unless it shares the host's."""
    container = profile.launch.container
    if free is None or free >= SHM_LEAST or (container is not None and container.ipc != "host"):
        return []
    text = f"{free / 2**20:.1f} MiB are free in /dev/shm, and ranks talk through it; expected 64 MiB or more"
    return [("", text)]


def _container(profile: Profile, node: Node, data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Daemon, image, name; and the overlay files where the node sees those of this host."""
    docker, container = data["docker"], profile.launch.container
    if docker is None or container is None:
        return []
    if docker["error"]:
        return [(".container", f"its Docker daemon can't be asked: {docker['error']}")]
    out: list[tuple[str, str]] = []
    if docker["image"] is None:
        out.append((".container", f"there is no image {container.image}, and nothing is pulled by itself"))
    if docker["taken"]:
        out.append((".container.name", f"the name is taken by a container ({docker['taken']}); it was not touched"))
    for file in files_of(profile, node):
        found = data["files"].get(str(file.host), file.sha256)
        if found is None:
            out.append(("", f"overlay file {file.host} can't be read"))
        elif file.sha256 is not None and found != file.sha256:
            out.append(("", f"overlay file {file.host}: sha256 {found[:12]}…, expected {file.sha256[:12]}…"))
    return out


def _gpus(profile: Profile, node: Node, gpu: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    host = profile.host
    if gpu is None:
        return []
    if gpu["error"]:
        return [(".gpus", f"GPUs can't be seen: {gpu['error']}")]
    out: list[tuple[str, str]] = []
    devices, wanted = gpu["devices"], nodes_docker.gpus_of(profile, node)
    if host.gpu_count is not None and len(devices) != host.gpu_count:
        out.append((".gpus", f"{len(devices)} GPUs, expected {host.gpu_count} (host.gpu_count)"))
    for index, uuid, name, driver, mig, _, in_use in devices:
        if not host.fits("gpu", name or ""):
            out.append((".gpus", f"GPU {index} is {name}, expected {host.gpu} (host.gpu)"))
        if not host.fits("driver", driver or ""):
            out.append((".gpus", f"driver {driver}, expected {host.driver} (host.driver)"))
        if mig == "Enabled" and index in wanted:
            out.append((".gpus", f"GPU {index} is in MIG mode; expected a MIG device's UUID, or MIG off"))
        if _ours(wanted, index, uuid):
            seen = any(row[0] == uuid for row in gpu["processes"])
            if not seen and float(in_use or 0) > MOST_USED:
                hint = "a process in another container, or a driver that holds on to it?"
                out.append((".gpus", f"GPU {index}: {in_use} MiB are in use, and no process is seen ({hint})"))
            out += [
                (".gpus", f"GPU {index}: compute process {pid} of others{f', {used} MiB' if used else ''}: {name}")
                for gpu_uuid, pid, used, name in gpu["processes"]
                if gpu_uuid == uuid
            ]
    known = {d[0] for d in devices} | {d[1] for d in devices}
    out += [
        (".gpus", f"there is no GPU {name}")
        for name in wanted
        if name != "all" and name not in known and not name.startswith("MIG-")
    ]
    return out


def _ours(wanted: Sequence[str], index: str | None, uuid: str | None) -> bool:
    return "all" in wanted or index in wanted or uuid in wanted


def _host_memory(profile: Profile, node: Node, data: Mapping[str, Any]) -> list[str]:
    """``--kv-offloading-size`` is per engine: the engines of this node times that size against what is free."""
    args = [*profile.engine.args, *node.args]
    size = _number(args, "--kv-offloading-size")
    free = data["memory"].get("MemAvailable")
    if size is None or free is None:
        return []
    engines = int(_number(args, "--data-parallel-size-local") or 1)
    if engines * size * GIB <= free:
        return []
    return [
        f"host memory: {engines} engines with --kv-offloading-size {size:g} need {engines * size:g} GiB, "
        f"{free / GIB:.1f} GiB are free (a leftover container, or a stale file in /dev/shm?)"
    ]


def _number(args: Sequence[str], option: str) -> float | None:
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name == option:
            text = value if equals else (args[index + 1] if index + 1 < len(args) else "")
            try:
                return float(text)
            except ValueError:
                return None
    return None


def _together(seen: Mapping[str, Seen]) -> list[str]:
    """What must be equal on all nodes, and the clocks."""
    out = []
    for key, what in (("page_size", "page size"), ("kernel", "kernel")):
        out += _differ(what, {n: s.data[key] for n, s in seen.items()})
    manifests = {n: list(s.data["checkpoint"].values()) for n, s in seen.items()}
    for number in range(max((len(m) for m in manifests.values()), default=0)):
        here = {n: m[number] for n, m in manifests.items() if number < len(m) and not m[number].get("missing")}
        differ = _differ("checkpoint shards", {n: m["shards"] for n, m in here.items()})
        out += differ or _differ(
            "checkpoint manifest (names, sizes, small files)", {n: m["hash"][:12] for n, m in here.items()}
        )
        out += _differ(
            "file system of the checkpoint",
            {n: list(s.data["file_systems"].values())[number] for n, s in seen.items() if n in here},
        )
    for cache in dict.fromkeys(name for s in seen.values() for name in s.data["caches"]):
        kinds = {n: s.data["file_systems"].get(s.data["caches"].get(cache)) for n, s in seen.items()}
        out += _differ(f"file system of cache {cache}", {n: kind for n, kind in kinds.items() if kind is not None})
    out += _differ("image id", {n: s.data["docker"]["image"] for n, s in seen.items() if s.data["docker"]})
    drivers = {n: next((d[3] for d in s.data["gpu"]["devices"]), None) for n, s in seen.items() if s.data["gpu"]}
    out += _differ("GPU driver", drivers)
    names = {
        n: ", ".join(sorted({str(d[2]) for d in s.data["gpu"]["devices"]})) for n, s in seen.items() if s.data["gpu"]
    }
    out += _differ("GPU model", names)
    for name, one in seen.items():
        if abs(one.clock) > CLOCK + one.error:
            side = "ahead of" if one.clock > 0 else "behind"
            out.append(
                f"the clock of {name} is {abs(one.clock):.1f} s {side} ours, measured to within {one.error:.2f} s; "
                f"at most {CLOCK:g} s"
            )
    return out


def _differ(what: str, values: Mapping[str, object]) -> list[str]:
    if len({str(v) for v in values.values()}) <= 1:
        return []
    return [f"{what} differs: " + ", ".join(f"{n} {v}" for n, v in values.items())]
