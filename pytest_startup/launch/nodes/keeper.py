"""The keeper of an engine on a node: as ``keeper.Keeper``, but its log, its clock and its life depend on the link.

The engine is ended when the link breaks, and when nothing has been heard over it for ``lease`` seconds (a network that
was cut tells nobody).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_startup.launch import locks, ports
from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.environment import engine_environment
from pytest_startup.launch.identity import Identity, shown_arguments
from pytest_startup.launch.listeners import who_listens
from pytest_startup.launch.nodes import steps as nodes_steps
from pytest_startup.launch.nodes.inside import Inside
from pytest_startup.launch.nodes.nvml import Library
from pytest_startup.launch.nodes.peers import Peers
from pytest_startup.launch.nodes.pipe import LinkPump, Out
from pytest_startup.launch.nodes.server import ServerEnding
from pytest_startup.launch.process.keeper import Keeper, Spec
from pytest_startup.launch.process.pump import Pump
from pytest_startup.launch.process.watch import Watch
from pytest_startup.launch.watch_facts import oom_kills
from pytest_startup.observe.gpus import Nvml, identity_facts
from pytest_startup.observe.host import SHM
from pytest_startup.observe.sampler import MemorySampler
from pytest_startup.record import Evidence, Fact
from pytest_startup.record_json import fact_to_json

#: The exit code of a docker command that failed itself.
DOCKER_FAILED = 125
#: Names of processes without which an engine can't serve: vLLM's ranks and engine cores, SGLang's schedulers.
VITAL = ("VLLM::Worker", "VLLM::EngineCore", "sglang::scheduler")


@dataclass(frozen=True)
class NodeSpec(Spec):
    """``node``: its name; ``address``: where its peers hear it; ``lease``: seconds without a word until the end;
    ``key``: by what the nodes of a run know each other's datagrams.

    ``own_env``, ``pass_env`` and ``gpus`` are what ``engine_environment`` takes, with this node's environment as the
    caller's. ``wanted``: locks to take here. ``alone``: we are in namespaces of our own (host name, /dev/shm).
    ``steps`` are run before the engine. ``docker``: the command that reaches the daemon of the engine's
    containers, which carry ``label``; empty: there are none. ``files``: paths in them whose hashes are wanted.
    ``by_exec``: ``argv`` is a ``docker exec`` of the engine in a container that idles.
    ``sampled``: GPUs whose memory is sampled (indexes, UUIDs, or ``all``).
    ``words``: one of them is among the arguments of the engine itself, below whatever scripts ran it.
    """

    node: str = ""
    address: str = ""
    key: str = ""
    lease: float = 0.0
    own_env: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    wanted: tuple[tuple[str, str], ...] = ()
    alone: bool = False
    peers: bool = True
    steps: tuple[Mapping[str, Any], ...] = ()
    docker: tuple[str, ...] = ()
    label: str = ""
    files: tuple[str, ...] = ()
    by_exec: bool = False
    sampled: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


class NodeKeeper(Keeper):
    """One start on this node. Everything that it has to say goes to ``out``."""

    spec: NodeSpec

    def __init__(self, spec: NodeSpec, out: Out, unread: bytes) -> None:
        super().__init__(spec)
        self._out = out
        self._commands = unread
        self._heard = time.monotonic()
        self._lost = 0
        self._peers: Peers | None = None
        self._inside: Inside | None = None
        self._launched = False
        self._oom_before = oom_kills()
        nvml = Nvml(None if "all" in spec.sampled else spec.sampled, Library()) if spec.sampled else None
        self._gpus = [] if nvml is None else gpu_facts(nvml)
        self._memory = MemorySampler(nvml, time.monotonic(), pids=self._pids, shm=self._shm)

    @classmethod
    def prepare(cls, data: dict[str, Any], out: Out, unread: bytes) -> NodeKeeper | None:
        """From the message that asks for it; None when it can't be, which has then been said."""
        for name in ("pass_env", "gpus", "docker", "steps", "files", "sampled", "words"):
            data[name] = tuple(data[name])
        data["wanted"] = tuple((kind, name) for kind, name in data["wanted"])
        env = engine_environment(os.environ, data["own_env"], data["run_id"], data["pass_env"], data["gpus"])
        spec = NodeSpec(**{**data, "env": env, "log": "", "lines": ""})
        keeper = cls(spec, out, unread)
        if spec.alone:
            alone(spec.node)
        for port in {spec.port, *(int(n.rpartition(":")[2]) for k, n in spec.wanted if k == "port")} - {0}:
            taken = ports.why_taken(spec.address, port)
            if taken:
                out.say("failed", text=f"port {port} is already taken by {taken}")
                return None
        try:
            keeper.locks = locks.take(spec.wanted, f"run {spec.run_id} from another host", 0.0)
        except (locks.LockTaken, locks.LockUnusable) as error:
            out.say("failed", text=str(error))
            return None
        try:
            nodes_steps.run_steps(spec.steps, env, spec.cwd)
        except LaunchError as error:
            keeper.remove_containers()
            out.say("failed", text=str(error), step=isinstance(error, nodes_steps.StepFailed))
            return None
        return keeper

    def _owner(self) -> Identity:
        """Whom sshd has started us for may live as long as we do, a shell for example: it is the link that counts."""
        return Identity(0, 0) if self._kept and self._orphaned else super()._owner()

    def _owner_died(self) -> None:
        first = not self._orphaned
        super()._owner_died()
        if first and self._kept:
            self._record()

    def _labels(self) -> dict[str, str]:
        if not self.spec.docker:
            return {}
        return {"docker": json.dumps(list(self.spec.docker)), "label": self.spec.label}

    def remove_containers(self) -> list[list[Any]]:
        """All that the steps and the engine's command have started in the daemon."""
        return nodes_steps.remove(self.spec.docker, self.spec.label) if self.spec.docker else []

    locks: list[locks.Lock]

    def _open_log(self, pipe: int, launched_at: float) -> Pump:
        return LinkPump(pipe, launched_at, self._out)

    def _say(self, event: str, **members: Any) -> None:
        if event == "started":
            self._launched = True
            self._memory.start(members["at"])
            with contextlib.suppress(OSError):
                if self.spec.peers:
                    self._peers = Peers(self.spec.address, self.spec.key, self._missed, self._hears)
                    members["peer_port"] = self._peers.port
            if self.spec.docker:
                self._inside = Inside(
                    self.spec.docker,
                    self.spec.label,
                    self.spec.files,
                    members["at"],
                    lambda seen: self._out.say("container", **seen),
                    self.spec.by_exec,
                )
                self._inside.start()
        if event == "exit":
            self._memory.look_at_shm()
            members["oom"] = oom_kills() - self._oom_before
            # So the docker command ends when it loses its daemon; a container that never came up is another matter.
            if members["code"] == DOCKER_FAILED and self._inside is not None and self._inside.watch is not None:
                members["daemon"] = nodes_steps.answers(self.spec.docker) or "it answers again"
        if event == "ended" and self.spec.docker:
            members["containers"] = self.remove_containers()
        self._out.say(event, **members)
        if event == "ended":
            self._out.drain(10.0)

    def _missed(self, name: str, seconds: float) -> None:
        self._out.say("missed", node=name, seconds=round(seconds, 2))

    def _hears(self, name: str) -> None:
        self._out.say("heard", node=name)

    def _tick(self) -> None:
        super()._tick()
        self._out.flush()
        lost = self._processes().lost
        while self._lost < len(lost):
            pid, name, seconds, status = lost[self._lost]
            self._lost += 1
            if name.startswith(VITAL) and self._ending is None:
                self._memory.look_at_shm()
                self._out.say("rank", pid=pid, name=name, seconds=seconds, status=status)
        if self.spec.lease and time.monotonic() - self._heard > self.spec.lease:
            self._owner_died()

    def _processes(self) -> Watch:
        """The engine's own: those of its container, once it is seen, or what we have started."""
        inside = self._inside.watch if self._inside is not None else None
        return inside or self._watch

    def _shm(self) -> Path | None:
        """The engine's /dev/shm: ours, or that of its container."""
        if not self.spec.docker:
            return SHM
        return self._inside.shm() if self._inside is not None else None

    def _pids(self) -> set[int]:
        """All that the engine has had, so that its share of a GPU can be told from that of others."""
        return {one.pid for one in tuple(self._processes().known)} if self._launched else set()

    def _figures(self) -> dict[str, Any]:
        inside = self._inside.watch if self._inside is not None else None
        peak = inside.peak if inside is not None else None
        own: dict[str, Any] = {}
        if inside is not None:
            own = {"peak": asdict(peak) if peak else None, "lost": inside.lost, "group_peak": inside.group_peak}
        return {
            **super()._figures(),
            **own,
            "shown": self._shown(inside),
            "oom": oom_kills() - self._oom_before,
            "memory": [fact_to_json(f) for f in (*self._gpus, *self._memory.facts(after=self._ending is None))],
        }

    def _shown(self, inside: Watch | None) -> tuple[int, list[str]] | None:
        """Pid and arguments of the engine itself while it runs: in its container, or below what we have started."""
        if self.spec.docker and inside is None:  # the docker command has them among its own
            return None
        return shown_arguments((inside or self._watch).living(), self.spec.words) if self._launched else None

    def _pause(self) -> float:
        return min(super()._pause(), 0.02 if self._out.waiting else 1.0)

    def _obey(self, command: dict[str, Any]) -> None:
        self._heard = time.monotonic()
        do = command["do"]
        if do == "ping":
            self._out.say("pong", t=command["t"], mono=time.monotonic())
        elif do == "peers" and self._peers is not None:
            self._out.say("introduced")  # first: from now on it counts whom this node hears
            self._peers.start(self.spec.node, command["peers"])
        elif do == "listens":
            found = who_listens(int(command["port"]), {p.pid for p in self._processes().living()})
            self._out.say("listens", who=found.who, text=found.text)
        else:
            inside = self._inside.watch if self._inside is not None else None
            if do == "facts" and inside is not None and self._ending is None:
                inside.look_well()  # what runs in the container has processes of its own
            if do == "keep":  # nobody will ask any more
                self._memory.stop()
                if self._peers is not None:
                    self._peers.stop()
            super()._obey(command)

    def _end(self, limit: float, give_up: float) -> None:
        if self._peers is not None:
            self._peers.stop()
        server = self._inside.server() if self._inside is not None else None
        if self._inside is not None:
            self._inside.pause()
        self._memory.stop()
        if server is None or self._ending is not None:
            super()._end(limit, give_up)
            return
        self._watch.pause()
        self._ending = ServerEnding(server, self._watch.living, self._main, limit, give_up)


def gpu_facts(nvml: Nvml) -> list[Fact]:
    """What the GPUs are; or ``gpu.memory_unknown`` with the reason why one can't be asked for its memory."""
    problems = nvml.problems()
    return identity_facts(nvml) + [
        Fact("gpu.memory_unknown", why, Evidence("gpu", "NVML", why), detail={"at": "before"}) for why in problems
    ]


def alone(name: str) -> None:
    """In namespaces that ``unshare`` has just made: a host name and a /dev/shm of our own."""
    libc = ctypes.CDLL(None, use_errno=True)
    socket.sethostname(name)
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None) != 0:
        raise OSError(ctypes.get_errno(), "the /dev/shm of the namespace can't be mounted")
