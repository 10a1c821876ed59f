"""Where the API of Podman answers otherwise than Docker's, put into Docker's words. Seen of Podman 4.3, API 1.41."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Members of HostConfig that Podman fills in for a container that asked for nothing of the kind.
_USUAL = {
    "IpcMode": "shareable", "PidMode": "private", "UTSMode": "private", "Runtime": "oci", "MemorySwappiness": -1,
    "PidsLimit": 2048,
}  # fmt: skip
#: The signal that it names, by its number, where none was asked for: TERM.
_USUAL_SIGNAL = "15"
#: Variables that it sets in every container.
_OWN_VARIABLES = ("container=podman", "TERM=", "HOME=", "HOSTNAME=")
#: Options that it shows of every mount.
_MOUNT_OPTIONS = frozenset({"rw", "rprivate", "rbind", "nosuid", "nodev"})


def as_docker(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """An inspected container. One that is being stopped still runs: Podman calls its state ``stopping``, does not say
    that it is running, and gives exit code 0 until its process is gone."""
    state = container["State"]
    return {**container, "State": {**state, "Running": True}} if state.get("Status") == "stopping" else container


def asked_for(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """An inspected container without what Podman itself has put in; one of Docker's as it is."""
    host, config = container["HostConfig"], container["Config"]
    if host.get("Runtime") != "oci":
        return container
    host = {key: value for key, value in host.items() if _USUAL.get(key) != value}
    host["Binds"] = [_bind(str(text)) for text in host.get("Binds") or ()]
    host["Ulimits"] = [
        {**limit, "Name": str(limit["Name"]).removeprefix("RLIMIT_").lower()} for limit in host.get("Ulimits") or ()
    ]
    env = [entry for entry in config.get("Env") or () if not str(entry).startswith(_OWN_VARIABLES)]
    config = {key: value for key, value in config.items() if (key, value) != ("StopSignal", _USUAL_SIGNAL)}
    return {**container, "HostConfig": host, "Config": {**config, "Env": env}}


def _bind(text: str) -> str:
    head, colon, options = text.rpartition(":")
    if not colon or options.startswith("/"):
        return text
    left = [option for option in options.split(",") if option not in _MOUNT_OPTIONS]
    return f"{head}:{','.join(left)}" if left else head
