"""A ``docker run …`` command line, or a container as ``docker inspect`` shows it, taken apart; nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_startup.launch.container import podman
from pytest_startup.profile.problems import nearest
from pytest_startup.profile.units import shown_size, size

#: Options that carry something over: long name → the key under which its values are kept.
_KEPT = {
    "env": "env", "volume": "volume", "mount": "mount", "gpus": "gpus", "ulimit": "ulimit", "device": "device",
    "cap-add": "cap_add", "ipc": "ipc", "network": "network", "net": "network", "publish": "publish",
    "shm-size": "shm_size", "entrypoint": "entrypoint", "name": "name", "runtime": "runtime", "user": "user",
    "workdir": "workdir", "memory": "memory",
}  # fmt: skip
#: Options that become members of the API's HostConfig: long name → (member, form of the value).
HOST_CONFIG = {
    "add-host": ("ExtraHosts", "list"), "cap-drop": ("CapDrop", "list"), "cgroup-parent": ("CgroupParent", "text"),
    "cgroupns": ("CgroupnsMode", "text"), "cpu-period": ("CpuPeriod", "number"), "cpu-quota": ("CpuQuota", "number"),
    "cpu-shares": ("CpuShares", "number"), "cpus": ("NanoCpus", "nano"), "cpuset-cpus": ("CpusetCpus", "text"),
    "cpuset-mems": ("CpusetMems", "text"), "device-cgroup-rule": ("DeviceCgroupRules", "list"), "dns": ("Dns", "list"),
    "dns-option": ("DnsOptions", "list"), "dns-search": ("DnsSearch", "list"), "group-add": ("GroupAdd", "list"),
    "memory-reservation": ("MemoryReservation", "size"), "memory-swap": ("MemorySwap", "size"),
    "memory-swappiness": ("MemorySwappiness", "number"), "oom-kill-disable": ("OomKillDisable", "flag"),
    "oom-score-adj": ("OomScoreAdj", "number"), "pid": ("PidMode", "text"), "pids-limit": ("PidsLimit", "number"),
    "privileged": ("Privileged", "flag"), "read-only": ("ReadonlyRootfs", "flag"),
    "security-opt": ("SecurityOpt", "list"),
    "sysctl": ("Sysctls", "mapping"), "tmpfs": ("Tmpfs", "tmpfs"), "userns": ("UsernsMode", "text"),
    "uts": ("UTSMode", "text"), "volumes-from": ("VolumesFrom", "list"), "isolation": ("Isolation", "text"),
}  # fmt: skip
#: Options that mean nothing to a gate that starts, follows, restarts and removes the container itself.
_NEEDLESS = {"detach", "interactive", "tty", "rm", "sig-proxy", "quiet", "detach-keys", "attach", "pull"}
#: Options that a profile can't hold: named, so that nobody believes they were carried over.
_LOST = {
    "annotation", "blkio-weight", "blkio-weight-device", "cidfile", "cpu-count", "cpu-percent", "cpu-rt-period",
    "cpu-rt-runtime", "device-read-bps", "device-read-iops", "device-write-bps", "device-write-iops",
    "disable-content-trust", "domainname", "env-file", "expose", "health-cmd", "health-interval", "health-retries",
    "health-start-interval", "health-start-period", "health-timeout", "hostname", "io-maxbandwidth", "io-maxiops", "ip",
    "ip6", "kernel-memory", "label", "label-file", "link", "link-local-ip", "log-driver", "log-opt", "mac-address",
    "network-alias", "net-alias", "no-healthcheck", "platform", "publish-all", "restart", "stop-signal",
    "stop-timeout", "storage-opt", "use-api-socket", "volume-driver",
}  # fmt: skip
_FLAGS = {
    "detach", "interactive", "tty", "rm", "init", "privileged", "read-only", "publish-all", "no-healthcheck",
    "oom-kill-disable", "sig-proxy", "quiet", "disable-content-trust", "use-api-socket",
}  # fmt: skip
_SHORT = {
    "e": "env", "v": "volume", "p": "publish", "u": "user", "w": "workdir", "m": "memory", "d": "detach",
    "i": "interactive", "t": "tty", "q": "quiet", "h": "hostname", "l": "label", "P": "publish-all", "c": "cpu-shares",
    "a": "attach",
}  # fmt: skip
_KNOWN = {*_KEPT, *HOST_CONFIG, *_NEEDLESS, *_LOST, "init"}


class NotDockerRun(ValueError):
    """The text is no ``docker run`` command line that we understand; the message says which word is wrong."""


@dataclass
class DockerRun:
    """The command line by parts. ``kept`` has the values in order, by key; ``lost`` the options not carried over."""

    image: str = ""
    args: list[str] = field(default_factory=list)
    kept: dict[str, list[str]] = field(default_factory=dict)
    host_config: dict[str, Any] = field(default_factory=dict)
    init: bool = False
    context: str | None = None
    docker_host: str | None = None
    lost: list[str] = field(default_factory=list)

    def last(self, key: str) -> str | None:
        """Docker's rule for options that are given twice."""
        values = self.kept.get(key)
        return values[-1] if values else None


def parse(command: str) -> DockerRun:
    """Take a command line apart. Raises NotDockerRun."""
    try:
        words = shlex.split(command.replace("\\\n", " "), comments=True)
    except ValueError as e:
        raise NotDockerRun(f"a quote is not closed ({e})") from None
    return parse_words(words)


def parse_words(words: Sequence[str]) -> DockerRun:
    """Like ``parse``, for words that a shell has split."""
    run = DockerRun()
    rest = _after_run(list(words), run)
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            rest.insert(0, word)
            break
        _option(word, rest, run)
    if not rest:
        raise NotDockerRun("no image; expected docker run [OPTIONS] IMAGE [ARGUMENTS]")
    run.image, run.args = rest[0], rest[1:]
    return run


def _after_run(words: list[str], run: DockerRun) -> list[str]:
    """The words behind ``docker run``; context and host given before it are kept."""
    while words and (
        words[0] in ("sudo", "exec", "nohup", "time") or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", words[0])
    ):
        words.pop(0)
    if not words or words[0].rpartition("/")[2] not in ("docker", "podman", "nerdctl"):
        raise NotDockerRun(f"expected docker run …; found {words[0] if words else 'nothing'}")
    words.pop(0)
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name not in ("--context", "-c", "--host", "-H") or not (equals or words):
            raise NotDockerRun(f"option {name} before run is not known; expected --context or --host")
        value = value if equals else words.pop(0)
        if name in ("--context", "-c"):
            run.context = value
        else:
            run.docker_host = value
    if words[:1] == ["container"]:
        words.pop(0)
    if words[:1] not in (["run"], ["create"]):
        raise NotDockerRun(f"expected docker run …; found docker {words[0] if words else ''}".rstrip())
    return words[1:]


def _option(word: str, rest: list[str], run: DockerRun) -> None:
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        if name not in _KNOWN:
            near = nearest(name, _KNOWN)
            hint = f"; did you mean --{near}?" if near else ""
            raise NotDockerRun(f"--{name} is no option of docker run{hint}")
        if name in _FLAGS:
            if value.lower() not in ("false", "0", "f"):
                _keep(name, "", run)
            return
        _keep(name, value if equals else _value(word, rest), run)
        return
    letters = word[1:]
    while letters:
        name = _SHORT.get(letters[0], "")
        if not name:
            raise NotDockerRun(f"-{letters[0]} (in {word}) is no option of docker run")
        letters = letters[1:]
        if name in _FLAGS:
            _keep(name, "", run)
        else:
            _keep(name, letters.removeprefix("=") if letters else _value(word, rest), run)
            return


def _value(word: str, rest: list[str]) -> str:
    if not rest:
        raise NotDockerRun(f"{word} needs a value, and nothing follows")
    return rest.pop(0)


def _keep(name: str, value: str, run: DockerRun) -> None:
    if name in _KEPT:
        run.kept.setdefault(_KEPT[name], []).append(value)
    elif name == "init":
        run.init = True
    elif name in HOST_CONFIG:
        _host_config(name, value, run)
    elif name in _LOST:
        run.lost.append(f"--{name} {value}".rstrip())


def _host_config(name: str, value: str, run: DockerRun) -> None:
    member, form = HOST_CONFIG[name]
    try:
        if form == "flag":
            run.host_config[member] = True
        elif form == "list":
            run.host_config.setdefault(member, []).append(value)
        elif form in ("mapping", "tmpfs"):
            key, _, inner = value.partition("=" if form == "mapping" else ":")
            run.host_config.setdefault(member, {})[key] = inner
        elif form == "number":
            run.host_config[member] = int(value)
        elif form == "nano":
            run.host_config[member] = round(float(value) * 1_000_000_000)
        elif form == "size":
            run.host_config[member] = -1 if value == "-1" else size(value)
        else:
            run.host_config[member] = value
    except ValueError:
        raise NotDockerRun(f"--{name} {value} is not a number") from None


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
    run.kept["gpus"] = [_gpu_request(r) for r in host.get("DeviceRequests") or []]
    run.kept["ulimit"] = [f"{u['Name']}={u['Soft']}:{u['Hard']}" for u in host.get("Ulimits") or []]
    run.kept["device"] = [
        ":".join([d["PathOnHost"], d["PathInContainer"], d.get("CgroupPermissions") or "rwm"])
        for d in host.get("Devices") or []
    ]
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
