"""A profile's container as the body of the API's create call: plain data, nothing is asked or done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_startup.profile.model import ContainerLaunch, Profile
from pytest_startup.profile.units import size

#: Port on which an engine listens inside a container whose port is published, unless the profile names one.
INNER_PORT = 8000
#: Members of HostConfig that a profile sets by keys of their own: member → key below ``launch.container``.
OWN_MEMBERS = {
    "NetworkMode": "network", "IpcMode": "ipc", "ShmSize": "shm_size", "Ulimits": "ulimits", "Devices": "devices",
    "CapAdd": "cap_add", "Runtime": "runtime", "Memory": "memory", "Init": "init", "Mounts": "volumes and files",
    "Binds": "volumes and files", "DeviceRequests": "gpus",
}  # fmt: skip
#: Members that would take the container out of the gate's hands.
REFUSED_MEMBERS = {
    "PortBindings": "the port is published by launch.port",
    "PublishAllPorts": "the port is published by launch.port",
    "AutoRemove": "the exit code and the last lines would be lost with the container; it is removed by us",
    "RestartPolicy": "an engine that comes back by itself hides that it ended; leave restarts to the profile",
    "LogConfig": "the log is read from the daemon, which needs its own format",
}
#: Members of ``engine_options`` that stand beside HostConfig in the body.
BODY_MEMBERS = ("Hostname", "Domainname", "StopSignal", "Healthcheck")
#: Log drivers from which a daemon can read the log back.
READABLE_LOGS = ("json-file", "local", "journald", "k8s-file")


def published(container: ContainerLaunch) -> bool:
    """Does the engine listen in a network of its own, so that its port has to be published?"""
    return container.network != "host"


def option_problems(profile: Profile) -> list[str]:
    """What of the options can't be done as it stands, each with its place in the profile."""
    container = profile.launch.container
    if container is None:
        return []
    out = []
    for member in container.engine_options:
        place = profile.place(f"launch.container.engine_options.{member}")
        if member in OWN_MEMBERS:
            out.append(f"{place}: {member} has a key of its own: launch.container.{OWN_MEMBERS[member]}")
        elif member in REFUSED_MEMBERS and not (member == "LogConfig" and _readable(container.engine_options[member])):
            out.append(f"{place}: {member} is not passed on: {REFUSED_MEMBERS[member]}")
    if container.network == "none" or (container.network or "").startswith("container:"):
        out.append(
            f"{profile.place('launch.container.network')}: network {container.network} leaves no way to reach the "
            "engine; expected host, bridge, or the name of a network"
        )
    return out


def _readable(config: object) -> bool:
    return isinstance(config, Mapping) and config.get("Type", "json-file") in READABLE_LOGS


def body(
    profile: Profile, argv: Sequence[str], env: Mapping[str, str], port: int, labels: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON of ``POST /containers/create``. ``argv``: its command; ``port``: where the engine listens."""
    container = profile.launch.container
    assert container is not None  # noqa: S101 - narrows the type: the launcher was chosen for it
    out: dict[str, Any] = {
        "Image": container.image,
        "Cmd": list(argv) or None,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": dict(labels),
        "HostConfig": host_config(profile, port),
    }
    if container.entrypoint is not None:
        out["Entrypoint"] = list(container.entrypoint)
    if container.user is not None:
        out["User"] = container.user
    if container.working_dir is not None:
        out["WorkingDir"] = container.working_dir
    if published(container):
        out["ExposedPorts"] = {f"{port}/tcp": {}}
    return {**out, **{key: value for key, value in container.engine_options.items() if key in BODY_MEMBERS}}


def host_config(profile: Profile, port: int) -> dict[str, Any]:
    """``HostConfig``: exactly what the profile says, its ``engine_options`` verbatim."""
    container = profile.launch.container
    assert container is not None  # noqa: S101 - as above
    out: dict[str, Any] = {key: value for key, value in container.engine_options.items() if key not in BODY_MEMBERS}
    out["Mounts"] = mounts(container)
    if container.network is not None:
        out["NetworkMode"] = container.network
    if published(container):
        host_port = "" if profile.launch.port is None else str(profile.launch.port)
        out["PortBindings"] = {f"{port}/tcp": [{"HostIp": profile.launch.host, "HostPort": host_port}]}
    if container.ipc is not None:
        out["IpcMode"] = container.ipc
    if container.shm_size is not None:
        out["ShmSize"] = size(container.shm_size)
    if container.ulimits:
        out["Ulimits"] = [ulimit(name, text) for name, text in container.ulimits.items()]
    devices = [device(text) for text in container.devices if text.startswith("/")]
    if devices:
        out["Devices"] = devices
    if container.cap_add:
        out["CapAdd"] = list(container.cap_add)
    if container.runtime is not None:
        out["Runtime"] = container.runtime
    if container.memory is not None:
        out["Memory"] = size(container.memory)
    if container.init:
        out["Init"] = True
    requests = [] if container.gpus is None else [gpu_request(container.gpus)]
    qualified = [text for text in container.devices if not text.startswith("/")]
    if qualified:
        requests.append({"Driver": "cdi", "DeviceIDs": qualified})
    if requests:
        out["DeviceRequests"] = requests
    return out


def mounts(container: ContainerLaunch) -> list[dict[str, Any]]:
    """Volumes and files. As mounts, because of a *bind* with a missing source the daemon would make a folder."""
    out = [mount(source, target) for source, target in container.volumes.items()]
    for file in container.files:
        out.append({"Type": "bind", "Source": str(file.host), "Target": file.path, "ReadOnly": file.read_only})
    return out


def mount(source: str, target: str) -> dict[str, Any]:
    """A row of ``HostConfig.Mounts``: a bind of a host path, or a named volume."""
    path, _, mode = target.partition(":")
    kind = "bind" if source.startswith("/") else "volume"
    return {"Type": kind, "Source": source, "Target": path, "ReadOnly": mode == "ro"}


def ulimit(name: str, text: str) -> dict[str, Any]:
    """A row of ``HostConfig.Ulimits`` of ``1024:4096`` (soft, hard), or one number for both."""
    soft, colon, hard = text.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard if colon else soft)}


def device(text: str) -> dict[str, str]:
    """``/dev/infiniband``, ``host:container`` or ``host:container:rwm``, as the docker command reads it."""
    parts = text.split(":")
    host, inside, rights = parts[0], parts[0], "rwm"
    if len(parts) == 2 and set(parts[1]) <= set("rwm") and parts[1]:
        rights = parts[1]
    elif len(parts) >= 2:
        inside = parts[1] or host
        rights = parts[2] if len(parts) > 2 else rights
    return {"PathOnHost": host, "PathInContainer": inside, "CgroupPermissions": rights}


def gpu_request(gpus: Sequence[str]) -> dict[str, Any]:
    """A row of ``HostConfig.DeviceRequests``, as ``docker run --gpus`` sends it."""
    wanted: dict[str, Any] = {"Driver": "", "Capabilities": [["gpu"]]}
    return {**wanted, "Count": -1} if tuple(gpus) == ("all",) else {**wanted, "DeviceIDs": list(gpus)}


def host_path(container: ContainerLaunch, inside: str) -> tuple[str, str] | None:
    """Where a path of the container comes from: (source, rest below it) of the longest mount above it, else None.

    ``source`` is a host path or the name of a volume; ``rest`` is empty for the mount itself.
    """
    wanted = Path(inside)
    best: tuple[str, str] | None = None
    longest = -1
    pairs = [(s, t.partition(":")[0]) for s, t in container.volumes.items()]
    for source, target in [*pairs, *((str(f.host), f.path) for f in container.files)]:
        mounted = Path(target)
        if (wanted == mounted or mounted in wanted.parents) and len(mounted.parts) > longest:
            longest = len(mounted.parts)
            rest = wanted.relative_to(mounted).as_posix()
            best = (source, "" if rest == "." else rest)
    return best
