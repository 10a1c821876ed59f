"""How a program gets onto a node: here, in a network namespace of this machine, or over ssh; short errands there."""

from __future__ import annotations

import os
import sys
from typing import Any

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.nodes.link import NodeLink
from pytest_startup.launch.nodes.ssh import SshMaster
from pytest_startup.profile.nodes import Node

#: Seconds without any word over a link until its node is lost. Over ssh a partition shows itself only by silence; a
#: pipe to a process of this machine breaks when that dies, so there only a host loaded beyond measure is silent.
SILENCE = {"ssh": 4.0, "namespace": 30.0, "local": 30.0}
ERRAND_LIMIT = 60.0


class NodeLost(LaunchError):
    """The node can't be reached (any more). The message names it and says why."""


class Access:
    """The way to one node, kept open over all starts of a run."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._master = SshMaster(node.reach.target, node.reach.config) if node.reach.kind == "ssh" else None

    @property
    def silence(self) -> float:
        return SILENCE[self.node.reach.kind]

    def missing(self) -> str | None:
        """Why there is no such way; None if there may be one. Sends nothing."""
        reach = self.node.reach
        if reach.kind == "namespace" and not os.path.exists(f"/run/netns/{reach.target}"):
            return f"there is no network namespace {reach.target} (/run/netns/{reach.target})"
        return None

    def command(self, argv: list[str], alone: bool) -> list[str]:
        """The local argument list that runs ``argv`` there. ``alone``: with own host name, mounts and IPC objects."""
        reach = self.node.reach
        if self._master is not None:
            self._master.open()
            return self._master.command(argv)
        if reach.kind == "namespace":
            own = ["unshare", "--uts", "--mount", "--ipc", "--"] if alone else []
            return ["nsenter", f"--net=/run/netns/{reach.target}", "--", *own, *argv]
        return argv

    def python(self) -> str:
        """The interpreter there: on this machine the one that we run on, unless the profile names another one."""
        given = self.node.python
        return sys.executable if self._master is None and given == "python3" else given

    def link(self, alone: bool = False) -> NodeLink:
        """A fresh process of ours on the node, ready for errands or to keep an engine. Raises NodeLost."""
        from pytest_startup.launch.nodes import boot as nodes_boot

        why = self.missing()
        if why is not None:
            raise NodeLost(f"node {self.node.name}: {why}")
        try:
            argv = self.command(nodes_boot.command(self.python()), alone)
            link = NodeLink.open(argv, self.node.name, self.silence)
        except LaunchError as error:
            raise NodeLost(f"node {self.node.name} ({self.node.reach}) can't be reached: {error}") from None
        return link

    def errand(self, do: str, limit: float = ERRAND_LIMIT, **asked: Any) -> Any:
        """Let the node do something and answer. NodeLost: it can't be reached; LaunchError: it refuses."""
        with self.link() as link:
            return link.errand(do, limit, asked)

    def close(self) -> None:
        if self._master is not None:
            self._master.close()
