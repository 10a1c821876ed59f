"""What speaks against starting a container: asked before anything is touched, told with what to do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pytest_startup.launch import locks, ports
from pytest_startup.launch.container import labels as container_labels
from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere
from pytest_startup.launch.container.facts import file_problems
from pytest_startup.launch.container.options import option_problems, published
from pytest_startup.launch.container.refusals import GPU_HELP
from pytest_startup.profile.model import Profile


class Checks:
    """Of one profile at one daemon. ``own``: ids of containers of this run, which are no obstacle to it."""

    def __init__(self, daemon: Daemon, profile: Profile, state: Path, own: Collection[str] = ()) -> None:
        self._daemon, self._profile, self._state, self._own = daemon, profile, state, own
        container = profile.launch.container
        assert container is not None  # noqa: S101 - narrows the type: the launcher was chosen for it
        self._container = container

    def all(self) -> list[str]:
        """Everything that can be told without a port."""
        out = [*option_problems(self._profile), *file_problems(self._profile), *self._sources()]
        try:
            out += [*self._image(), *self._runtime(), *self._rootless(), *self._name()]
            port = self._profile.launch.port
            if port is not None and locks.is_free("port", str(port)):
                # The port of another run of ours is waited for; anybody else's never becomes free for us.
                out += self._port(port)
        except (DaemonLost, DaemonRefused, NotThere) as error:
            out.append(str(error))
        return out

    def before_start(self, port: int) -> list[str]:
        """Once more, directly before the start: what may have changed. Raises DaemonLost, DaemonRefused."""
        out = [*option_problems(self._profile), *file_problems(self._profile), *self._sources()]
        out += [*self._image(), *self._runtime(), *self._rootless(), *self._name()]
        if not published(self._container):
            out += self._port(port)
        elif self._profile.launch.port is not None:
            out += self._port(self._profile.launch.port)
        return out

    def _image(self) -> list[str]:
        image, place = self._container.image, self._profile.place("launch.container.image")
        try:
            self._daemon.image(image)
        except NotThere:
            docker = self._daemon.address.command()
            name, at, _ = image.partition("@")
            if at:
                return [
                    f"{place}: image {name} is not there, and nothing is pulled by itself; "
                    f"pull it: {docker} pull {image}"
                ]
            return [
                f"{place}: there is no image {image}, and an id can't be pulled; load it ({docker} load -i FILE), or "
                f"pull the tag that it had ({docker} pull NAME:TAG) and compare: "
                f"{docker} image inspect -f '{{{{.Id}}}}' NAME:TAG"
            ]
        return []

    def _runtime(self) -> list[str]:
        container = self._container
        if container.runtime is None and container.gpus is None:
            return []
        if container.runtime is not None:
            known = sorted(self._daemon.info().get("Runtimes") or {})
            if known and container.runtime not in known:
                help_ = f"; {GPU_HELP}" if container.runtime == "nvidia" else ""
                return [
                    f"{self._profile.place('launch.container.runtime')}: the daemon knows no runtime "
                    f"{container.runtime} (known: {', '.join(known)}){help_}"
                ]
        if container.gpus is not None and self._daemon.is_podman():
            return [
                f"{self._profile.place('launch.container.gpus')}: Podman ignores GPU requests of this API; "
                "generate a CDI file (nvidia-ctk cdi generate) and name its devices in launch.container.devices "
                "(nvidia.com/gpu=all) instead"
            ]
        return []

    def _rootless(self) -> list[str]:
        """A rootless Docker lives in a network of its own: ``host`` is that one. (A rootless Podman does not.)"""
        if published(self._container) or self._daemon.is_podman():
            return []
        if "name=rootless" not in (self._daemon.info().get("SecurityOptions") or ()):
            return []
        return [
            f"{self._profile.place('launch.container.network')}: the daemon is a rootless one, whose network host is "
            "not this host's: the engine could not be reached; use network: bridge, which publishes launch.port"
        ]

    def _sources(self) -> list[str]:
        out = []
        for source in self._container.volumes:
            if source.startswith("/") and not Path(source).exists():
                place = self._profile.place(f"launch.container.volumes.{source}")
                out.append(f"{place}: {source} is not there; make it first (a mount that fills itself hides a mistake)")
        return out

    def _name(self) -> list[str]:
        """A container of the wanted name that is not ours is never touched."""
        name = self._container.name
        if name is None:
            return []
        try:
            seen = self._daemon.inspect(name)
        except NotThere:
            return []
        if seen["Id"] in self._own or container_labels.run_is_dead((seen.get("Config") or {}).get("Labels")):
            return []
        labels = (seen.get("Config") or {}).get("Labels") or {}
        whose = (
            f"another run of ours ({labels[container_labels.RUN]}) uses it"
            if container_labels.is_ours(labels)
            else "it is not ours and was not touched"
        )
        return [
            f"{self._profile.place('launch.container.name')}: the name {name} is taken by "
            f"{container_labels.told(seen)}; {whose}: remove or rename it, or choose another name"
        ]

    def _port(self, port: int) -> list[str]:
        place, host = self._profile.place("launch.port"), self._profile.launch.host
        taken = ports.why_taken(host, port)
        if taken is None:
            return []
        seen = self._holder(port)
        if seen is None:
            return [f"{place}: port {port} is already taken by {taken}"]
        if seen["Id"] in self._own:
            return []
        if container_labels.run_is_dead(seen.get("Labels")):
            return []
        whose = "another run of ours" if container_labels.is_ours(seen.get("Labels")) else "not ours, and not touched"
        with contextlib.suppress(NotThere):
            seen = self._daemon.inspect(seen["Id"])  # says since when
        return [f"{place}: port {port} is already taken by {container_labels.told(seen)}; it is {whose}"]

    def _holder(self, port: int) -> Mapping[str, Any] | None:
        """The container that publishes a port, or whose process listens on it."""
        pids = {one.pid for one in ports.listeners(port) if one.pid is not None}
        groups = "".join(_control_group(pid) for pid in pids)
        for seen in self._daemon.containers():
            if seen["Id"] in groups or any(p.get("PublicPort") == port for p in seen.get("Ports") or ()):
                return seen
        return None


def _control_group(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return ""
