"""A ``docker run …`` command line taken apart; nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_startup.profile.problems import nearest
from pytest_startup.profile.units import size

#: Options that carry something over: long name → the key under which its values are kept.
_KEPT = {
    "env": "env", "volume": "volume", "mount": "mount", "gpus": "gpus", "ulimit": "ulimit", "device": "device",
    "cap-add": "cap_add", "ipc": "ipc", "network": "network", "net": "network", "publish": "publish",
    "shm-size": "shm_size", "entrypoint": "entrypoint", "name": "name", "runtime": "runtime", "user": "user",
    "workdir": "workdir", "memory": "memory", "env-file": "env_file",
}  # fmt: skip
#: Options that become members of the API's HostConfig, or beside it: long name → (member, form of the value).
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
    "hostname": ("Hostname", "text"), "domainname": ("Domainname", "text"), "stop-signal": ("StopSignal", "text"),
}  # fmt: skip
#: Options that mean nothing to a gate that starts, follows, restarts and removes the container itself.
_NEEDLESS = {"detach", "interactive", "tty", "rm", "sig-proxy", "quiet", "detach-keys", "attach", "pull"}
#: Options that a profile can't hold: named, so that nobody believes they were carried over.
_LOST = {
    "annotation", "blkio-weight", "blkio-weight-device", "cidfile", "cpu-count", "cpu-percent", "cpu-rt-period",
    "cpu-rt-runtime", "device-read-bps", "device-read-iops", "device-write-bps", "device-write-iops",
    "disable-content-trust", "expose", "health-cmd", "health-interval", "health-retries",
    "health-start-interval", "health-start-period", "health-timeout", "io-maxbandwidth", "io-maxiops", "ip", "ip6",
    "kernel-memory", "label", "label-file", "link", "link-local-ip", "log-driver", "log-opt", "mac-address",
    "network-alias", "net-alias", "no-healthcheck", "platform", "publish-all", "restart", "stop-timeout",
    "storage-opt", "use-api-socket", "volume-driver",
}  # fmt: skip
#: Why, beside that a profile has no such option; a name that ends with a hyphen stands for all that begin so.
_WHY_LOST = {
    "restart": "an engine that comes back by itself hides that it ended",
    "health-": "the gate itself asks whether the engine is healthy",
    "no-healthcheck": "the gate itself asks whether the engine is healthy",
    "log-": "the log is read from the daemon, in its own format and whole",
    "label": "the labels of the gate's containers are its own",
    "platform": "an image id is of one platform",
    "stop-timeout": "deadlines.stop is the limit",
    "expose": "the port of the API is published by launch.port",
    "publish-all": "the port of the API is published by launch.port",
}
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


def why_lost(option: str) -> str:
    """Of an entry of ``DockerRun.lost``."""
    if not option.startswith("-"):
        return "a variable of the docker command itself, which no container gets: launch.gpus says which GPUs are used"
    name = option.partition(" ")[0].lstrip("-")
    found = (why for key, why in _WHY_LOST.items() if name == key or (key.endswith("-") and name.startswith(key)))
    return next(found, "a profile has no such option")


#: Stands for white space inside $(…), which is one word for a shell.
_GLUE = "\ue000"


def parse(command: str) -> DockerRun:
    """Take a command line apart. Raises NotDockerRun."""
    text = command.replace("\\\n", " ")
    text = re.sub(r"\$\([^()]*\)|`[^`]*`", lambda m: re.sub(r"\s+", _GLUE, m[0]), text)
    try:
        words = [word.replace(_GLUE, " ") for word in shlex.split(text, comments=True)]
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
        words[0] in ("sudo", "exec", "nohup", "time", "env") or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", words[0])
    ):
        word = words.pop(0)
        if "=" in word and not word.startswith("DOCKER_"):
            run.lost.append(word)
        while words and words[0] in ("-E", "-n", "-H", "-i", "--preserve-env"):
            words.pop(0)
    if not words or words[0].rpartition("/")[2] not in ("docker", "podman", "nerdctl"):
        raise NotDockerRun(
            f"expected docker run …; found {words[0] if words else 'nothing'} (of an engine that is started without a"
            " container: init alone, its command goes into launch.process, the rest into engine.args)"
        )
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
