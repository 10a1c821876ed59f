"""The options of a ``docker run`` as keys of ``launch.container`` and of ``launch``: mounts, devices, limits, ports."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_startup.dockerrun import DockerRun

_FILE_NAME = re.compile(r".*\.(py|json|jinja|yaml|yml|toml|txt|so|sh|conf|pth)")
#: Options of one value → key below ``launch.container``.
_PLAIN = (
    ("network", "network"), ("ipc", "ipc"), ("shm_size", "shm_size"), ("runtime", "runtime"), ("user", "user"),
    ("workdir", "working_dir"), ("memory", "memory"), ("name", "name"),
)  # fmt: skip


class Options:
    """Of one command line. ``note`` tells the user something; ``text`` and ``path`` resolve what a shell would have."""

    def __init__(
        self,
        run: DockerRun,
        folder: Path,
        note: Callable[[str], None],
        text: Callable[[str, str], str],
        path: Callable[[str], str],
    ) -> None:
        self.run, self.folder = run, folder
        self.note, self.text, self.path = note, text, path

    def into(self, container: dict[str, Any], address: dict[str, Any]) -> None:
        """Fill ``launch.container``, and ``port`` and ``host`` beside it."""
        run = self.run
        for entry in run.kept.get("volume", ()):
            self.volume(entry, container)
        for entry in run.kept.get("mount", ()):
            self.mount(entry, container)
        if (gpus := run.last("gpus")) is not None:
            container["gpus"] = self.gpus(gpus)
        limits = dict(entry.partition("=")[::2] for entry in run.kept.get("ulimit", ()))
        if limits:
            container["ulimits"] = {
                k: (v.partition(":")[0] if len(set(v.split(":"))) == 1 else v) for k, v in limits.items()
            }
        for key, target in (("device", "devices"), ("cap_add", "cap_add")):
            if key in run.kept:
                container[target] = [_short_device(v) for v in dict.fromkeys(run.kept[key])]
        for key, target in _PLAIN:
            if (value := run.last(key)) is not None:
                container[target] = self.text(_whose(value), f"launch.container.{target}")
        if "name" in container:
            self.note(
                f"a container named {container['name']} that is not ours stops the gate; "
                "remove it before, or leave launch.container.name out"
            )
        if run.init:
            container["init"] = True
        if run.docker_host:
            container["docker_host"] = run.docker_host
        elif run.context:
            container["context"] = run.context
        if run.host_config:
            mounted = container.get("engine_options", {}).get("Tmpfs", {})
            container["engine_options"] = dict(run.host_config)
            if mounted:
                container["engine_options"]["Tmpfs"] = {**mounted, **run.host_config.get("Tmpfs", {})}
        self.ports(address)

    def ports(self, address: dict[str, Any]) -> None:
        """``-p``: the port of the API into ``address``; a published port replaces the host."""
        published = self.run.kept.get("publish", [])
        for entry in published:
            host_part, _, inside = entry.partition("/")[0].rpartition(":")
            outside = host_part.rpartition(":")[2]
            if len(published) > 1 and inside != str(address.get("port", 8000)):
                self.note(f"-p {entry} is not carried over: only the port of the API is published")
                continue
            address["port"] = int(outside) if outside.isdigit() else "auto"
            if outside and not outside.isdigit():
                self.note(f"-p {entry} names more than one port; give launch.port")
            elif outside != inside:
                self.note(f"-p {entry}: the API is told to listen on the port of launch.port, which is published")
            address.pop("host", None)
        if "port" not in address:
            address["port"] = "auto"

    def volume(self, entry: str, container: dict[str, Any]) -> None:
        """``-v SOURCE:TARGET[:ro]``."""
        parts = entry.split(":")
        if len(parts) < 2:
            self.note(f"-v {entry} is not carried over: an anonymous volume is gone with its container")
            return
        options = set(parts[2].split(",")) if len(parts) > 2 else set()
        for odd in sorted(options - {"ro", "rw"}):
            self.note(f"-v {entry}: the option {odd} is not carried over")
        self.bind(parts[0], parts[1], "ro" in options, container)

    def mount(self, entry: str, container: dict[str, Any]) -> None:
        """``--mount type=…,source=…,target=…``."""
        pairs = {k: v for k, _, v in (p.partition("=") for p in entry.split(","))}
        source = pairs.get("source", pairs.get("src", ""))
        target = pairs.get("target", pairs.get("dst", pairs.get("destination", "")))
        if pairs.get("type") == "tmpfs" and target:
            form = {"tmpfs-size": "size", "tmpfs-mode": "mode"}
            said = ",".join(f"{form[k]}={v}" for k, v in pairs.items() if k in form)
            container.setdefault("engine_options", {}).setdefault("Tmpfs", {})[target] = said
            return
        if pairs.get("type", "volume") not in ("bind", "volume") or not source or not target:
            self.note(f"--mount {entry} is not carried over")
            return
        self.bind(source, target, any(pairs.get(k) in ("", "true", "1") for k in ("readonly", "ro")), container)

    def bind(self, source: str, target: str, read_only: bool, container: dict[str, Any]) -> None:
        """A folder or volume becomes a volume, a file is pinned by its hash."""
        host = self.path(source)
        path = Path(self.folder, host)
        if path.is_file() or (not path.exists() and "/" in source and _FILE_NAME.fullmatch(path.name)):
            row: dict[str, Any] = {"host": host if host.startswith("/") else str(path), "path": target}
            if path.is_file():
                row["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                self.note(f"{host} is not here, so it could not be pinned; add its sha256")
            if not read_only:
                row["read_only"] = False
            container.setdefault("files", []).append(row)
            return
        if not host.startswith("/") and "/" in host:
            host = str(path)
        if host in container.get("volumes", {}):
            self.note(f"{host} is mounted a second time, at {target}; that is not carried over")
            return
        container.setdefault("volumes", {})[host] = target + (":ro" if read_only else "")

    def gpus(self, value: str) -> Any:
        """``all``, ``2``, ``device=0,1`` and ``"device=0,1","capabilities=…"``: fields separated by commas, as docker
        reads them."""
        fields: dict[str, list[str]] = {}
        key = "count"
        for part in next(csv.reader([value.strip("'")]), []):
            name, equals, rest = part.strip().partition("=")
            if equals:
                key = name
            elif key != "device":  # docker wants quotes around device=0,1; without them it is meant all the same
                key = "count"
            fields.setdefault(key, []).extend((rest if equals else name).split(","))
        for odd in sorted(fields.keys() - {"count", "device"}):
            self.note(f"--gpus {value}: {odd}={','.join(fields[odd])} is not carried over")
        devices, count = fields.get("device", []), fields.get("count", ["all"])[0]
        if devices:
            return [int(g) if g.isdigit() else g for g in devices]
        if count.isdigit() and int(count):
            self.note(f"--gpus {count} leaves the choice to the daemon; the first {count} are named instead")
            return list(range(int(count)))
        if count not in ("all", "-1"):
            self.note(f"--gpus {value} is not understood; all are given")
        return "all"


def _whose(text: str) -> str:
    """The ids that a shell of this user would fill in."""
    text = re.sub(r"\$\(id -u\)|`id -u`|\$UID\b|\$\{UID\}", str(os.getuid()), text)
    return re.sub(r"\$\(id -g\)|`id -g`", str(os.getgid()), text)


def _short_device(value: str) -> str:
    host, _, rest = value.partition(":")
    return host if rest in (host, f"{host}:rwm") else value
