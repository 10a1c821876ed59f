"""A container as ``docker inspect`` shows it, as the ``docker run`` that would make it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_startup.dockerrun import HOST_CONFIG, DockerRun
from pytest_startup.launch.container import podman
from pytest_startup.profile.units import shown_size

#: What an image means that does not say it.
_UNSAID = {"WorkingDir": "/"}


def inspected(container: Mapping[str, Any], image: Mapping[str, Any]) -> DockerRun:
    """The same parts of a container, from what inspecting it and its image answers. Image settings are left out."""
    container = podman.asked_for(container)
    config, host = container["Config"], container["HostConfig"]
    base = image.get("Config") or {}
    run = DockerRun(image=str(container["Image"]), args=list(config.get("Cmd") or []))
    if config.get("Cmd") == base.get("Cmd"):
        run.args = []
    if list(config.get("Entrypoint") or []) != list(base.get("Entrypoint") or []):
        entrypoint = list(config.get("Entrypoint") or [])
        run.kept["entrypoint"] = entrypoint[:1] or [""]
        run.args = [*entrypoint[1:], *run.args]
    run.kept["env"] = [e for e in config.get("Env") or [] if e not in (base.get("Env") or [])]
    run.kept["name"] = [str(container.get("Name", "")).lstrip("/")]
    for key, member in (("user", "User"), ("workdir", "WorkingDir")):
        if config.get(member) and config[member] != (base.get(member) or _UNSAID.get(member)):
            run.kept[key] = [str(config[member])]
    run.kept["volume"] = list(host.get("Binds") or [])
    run.kept["mount"] = [_mount(m) for m in host.get("Mounts") or []]
    requests = host.get("DeviceRequests") or []
    run.kept["gpus"] = [_gpu_request(r) for r in requests if r.get("Driver") != "cdi"]
    run.kept["ulimit"] = [f"{u['Name']}={u['Soft']}:{u['Hard']}" for u in host.get("Ulimits") or []]
    run.kept["device"] = [
        ":".join([d["PathOnHost"], d["PathInContainer"], d.get("CgroupPermissions") or "rwm"])
        for d in host.get("Devices") or []
    ] + [name for r in requests if r.get("Driver") == "cdi" for name in r.get("DeviceIDs") or ()]
    run.kept["cap_add"] = list(host.get("CapAdd") or [])
    for key, member, usual in (
        ("ipc", "IpcMode", "private"),
        ("network", "NetworkMode", "default"),
        ("runtime", "Runtime", "runc"),
    ):
        if host.get(member) and host[member] != usual:
            run.kept[key] = [str(host[member])]
    if host.get("ShmSize") not in (None, 0, 64 << 20):
        run.kept["shm_size"] = [shown_size(host["ShmSize"])]
    if host.get("Memory"):
        run.kept["memory"] = [shown_size(host["Memory"])]
    run.kept["publish"] = [
        ":".join(p for p in (b.get("HostIp"), b.get("HostPort") or "", inside.partition("/")[0]) if p)
        for inside, bindings in (host.get("PortBindings") or {}).items()
        for b in bindings or []
    ]
    run.init = bool(host.get("Init"))
    usual_members: dict[str, Any] = {
        "CgroupnsMode": ("host", "private"),
        "OomScoreAdj": (0,),
        "MemorySwap": (2 * (host.get("Memory") or 0),),
    }
    for member, _ in HOST_CONFIG.values():
        value = host.get(member)
        if value and value not in usual_members.get(member, ()):
            run.host_config[member] = value
    run.kept = {key: values for key, values in run.kept.items() if (values and values != [""]) or key == "entrypoint"}
    if config.get("Hostname") not in (None, "", str(container.get("Id"))[:12]) and host.get("NetworkMode") != "host":
        run.host_config["Hostname"] = config["Hostname"]
    for member in ("Domainname", "StopSignal"):
        if config.get(member) and config[member] != base.get(member):
            run.host_config[member] = config[member]
    if config.get("Healthcheck") and config["Healthcheck"] != base.get("Healthcheck"):
        run.lost.append("--health-cmd")
    logs = host.get("LogConfig") or {}
    if logs.get("Config"):
        run.lost += [f"--log-opt {key}={value}" for key, value in logs["Config"].items()]
    if (policy := (host.get("RestartPolicy") or {}).get("Name")) not in (None, "", "no"):
        run.lost.append(f"--restart {policy}")
    return run


def _mount(mount: Mapping[str, Any]) -> str:
    parts = [f"type={mount['Type']}", f"source={mount.get('Source', '')}", f"target={mount['Target']}"]
    return ",".join([*parts, "readonly"] if mount.get("ReadOnly") else parts)


def _gpu_request(request: Mapping[str, Any]) -> str:
    ids = request.get("DeviceIDs")
    if ids:
        return "device=" + ",".join(ids)
    return "all" if request.get("Count", -1) == -1 else str(request["Count"])
