"""The launcher of engines over several nodes: plain processes, one per node, started, watched and ended as one."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pytest_startup.launch.base import LaunchError, StartPlan
from pytest_startup.launch.nodes import contexts as nodes_contexts
from pytest_startup.launch.nodes import docker as nodes_docker
from pytest_startup.launch.nodes.caches import from_json, to_json
from pytest_startup.launch.nodes.member import Member
from pytest_startup.launch.nodes.reach import Access, NodeLost
from pytest_startup.launch.nodes.running import NodesRunning
from pytest_startup.profile.model import CacheFolder, Profile
from pytest_startup.profile.nodes import Node, files_of
from pytest_startup.record import Leftover
from pytest_startup.redact import Redactor

if TYPE_CHECKING:
    from pytest_startup.engines.base import Dialect
    from pytest_startup.observe.caches import Snapshot


class NodesLauncher:
    """Starts profiles with ``nodes``. One engine at a time; connections stay open until ``close``."""

    def __init__(self, notice: Callable[[str], None] | None = None) -> None:
        self._notice = notice
        self._access: dict[str, Access] = {}
        self._running: NodesRunning | None = None
        self._swept = False

    def access(self, profile: Profile) -> Mapping[str, Access]:
        """The ways to all nodes; nothing is connected by asking. LaunchError: a context that leads nowhere."""
        for node in profile.nodes:
            if node.name not in self._access:
                try:
                    self._access[node.name] = Access(nodes_contexts.resolved(node))
                except LaunchError as error:
                    raise LaunchError(f"{profile.place(f'nodes.{node.name}.reach')}: {error}") from None
        return self._access

    def preflight(self, profile: Profile) -> Sequence[str]:
        """All nodes, all reasons; starts and changes nothing. See ``preflight_nodes``."""
        from pytest_startup.preflight_nodes import problems

        try:
            access = self.access(profile)
        except LaunchError as error:
            return [str(error)]
        return problems(profile, access)

    def start(self, plan: StartPlan) -> NodesRunning:
        """Start and return once all nodes that wait for nothing have been started. Raises LaunchError; then nothing of
        it runs."""
        access = self.access(plan.profile)
        for one in access.values():
            why = one.missing()
            if why is not None:
                raise LaunchError(f"{plan.name} is not started: node {one.node.name}: {why}")
        spared = self._release(plan)
        self._sweep()
        news = threading.Event()
        redactor = Redactor(plan.profile.secrets)
        members = []
        for node in plan.profile.nodes:
            kept = spared.get(node.name)
            if kept is not None:
                kept.go_on(plan.folder, news.set)
            members.append(kept or Member(access[node.name].node, access[node.name], plan.folder, redactor, news.set))

        def spec(member: Member) -> Mapping[str, Any]:
            return node_spec(plan, member.node, redactor, send_files(plan.profile, access[member.node.name]))

        self._running = None
        self._running = NodesRunning(plan, members, spec, news, self._notice)
        return self._running

    def snapshots(self, profile: Profile, earlier: Mapping[str, Snapshot], fresh: bool) -> Mapping[str, Snapshot]:
        """All caches of all nodes, by ``NODE/CACHE`` (see ``launch.base.HoldsCaches``). A node that can't be asked has
        none: the start says why."""
        del fresh  # folders of hosts; a restart finds what was there
        access = self.access(profile)

        def look(node: Node) -> dict[str, Snapshot]:
            names = [f"{node.name}/{c.name}" for c in node.caches]
            rows = [
                {
                    "name": c.name,
                    "path": str(c.path),
                    "kind": c.kind,
                    "before": to_json(b) if (b := earlier.get(n)) else None,
                }
                for n, c in zip(names, node.caches, strict=True)
            ]
            if not rows:
                return {}
            try:
                found = access[node.name].errand("caches", limit=600.0, caches=rows, node=node.name)
            except NodeLost:
                return {}
            return dict(zip(names, map(from_json, found), strict=True))

        out: dict[str, Snapshot] = {}
        with ThreadPoolExecutor(len(profile.nodes)) as pool:
            for part in pool.map(look, profile.nodes):
                out |= part
        return out

    def wipe(self, profile: Profile, cache: CacheFolder, fresh: bool) -> str:
        """Empty the caches of this name on all nodes (see ``launch.base.HoldsCaches``)."""
        del fresh
        return "; ".join(self.prepare(profile, (), False, (cache.name,)))

    def prepare(self, profile: Profile, names: Collection[str], drop: bool, wipe: Sequence[str]) -> list[str]:
        """Drop page caches and wipe caches on these nodes (all, if none is named); what was done, one text each."""
        notes = []
        for name, access in self.access(profile).items():
            if names and name not in names:
                continue
            caches = [c for c in access.node.caches if c.name in wipe]
            if caches:
                rows = [{"name": c.name, "path": str(c.path), "kind": c.kind} for c in caches]
                keep = [str(p) for p in access.node.checkpoint]
                notes += [f"{name}: {text}" for text in access.errand("wipe", caches=rows, keep=keep)]
            if drop:
                paths = [str(p) for p in access.node.checkpoint]
                notes.append(f"{name}: {access.errand('drop', paths=paths, limit=600.0)}")
        return notes

    def close(self) -> Sequence[Leftover]:
        """Stop what runs and is not to be kept, and give up the connections; what was not released is in the answer."""
        left: list[Leftover] = []
        if self._running is not None and not self._running.kept:
            left += [one for one in self._running.stop() if not one.released]
            for member in self._running.spared().values():
                deadlines = self._running.deadlines
                left += [one for one in member.stop(deadlines.stop, deadlines.release) if not one.released]
        for access in self._access.values():
            access.close()
        self._access, self._running = {}, None
        return left

    def _release(self, plan: StartPlan) -> Mapping[str, Member]:
        """The start before must have ended, but for what this one goes on with."""
        if self._running is None:
            return {}
        left = [one for one in self._running.stop() if not one.released]
        if left:
            what = "; ".join(f"{one.kind} {one.what}" for one in left)
            raise LaunchError(f"{plan.name} is not started: the start before has not released {what}")
        spared = self._running.spared()
        for name, member in spared.items():
            ended = member.ended()
            if ended is not None:
                for one in spared.values():
                    one.stop(self._running.deadlines.stop, self._running.deadlines.release)
                others = ", ".join(n.name for n in plan.profile.nodes if n.name not in spared)
                raise LaunchError(
                    f"{plan.name} is not started: node {name} was to be left up and did not outlive the stop of "
                    f"{others}: {ended.text}; this engine can't be restarted in part"
                )
        return spared

    def _sweep(self) -> None:
        """Once a run, and before its first start: what dead runs left on the nodes."""
        if self._swept:
            return
        self._swept = True
        with ThreadPoolExecutor(len(self._access)) as pool:
            said = list(pool.map(lambda one: one.errand("sweep", limit=120.0), self._access.values()))
        if self._notice is not None:
            for name, texts in zip(self._access, said, strict=True):
                for text in texts:
                    self._notice(f"{name}: {text}")


def node_spec(plan: StartPlan, node: Node, redactor: Redactor, files: Mapping[str, str]) -> dict[str, Any]:
    """What a node's keeper is asked for: its own arguments, environment, folder, ports and locks.

    ``files``: path in the container → path on the node, of files that had to be sent there.
    """
    process, container = plan.profile.launch.process, plan.profile.launch.container
    argv = plan.node_argv[node.name]
    port = plan.port if node.api else 0
    env = {**plan.profile.engine.env, **node.env, **plan.env}
    run_id = f"{plan.run_id}.{node.name}"  # two nodes may be one machine: each finds its own processes by this
    how: dict[str, Any] = {"argv": list(argv), "steps": []}
    if container is not None:
        how = nodes_docker.commands(plan.profile, node, argv, env, run_id, files)
    return {
        **how,
        "own_env": env,
        "pass_env": list(process.pass_env) if process is not None else ["DOCKER_*"],
        "gpus": list(node.gpus) if container is None else [],
        "cwd": str(node.cwd or (process.cwd if process is not None else "/")),
        "run_id": run_id,
        "start": plan.name,
        "key": plan.run_id,
        "port": port,
        "folder": str(plan.folder),
        "command": " ".join(redactor.argv(how["argv"])),
        "secrets": [],  # they are taken out where the log is written, which is here
        "node": node.name,
        "address": node.address,
        "wanted": wanted_locks(node, port),
        "alone": node.reach.kind == "namespace" and container is None,
        "peers": True,
        "docker": nodes_docker.docker(node) if container is not None else [],
        "label": f"{nodes_docker.LABEL}={run_id}",
        "files": [f.path for f in files_of(plan.profile, node)],
        "shown": list(argv),
        "proved_gpus": list(nodes_docker.gpus_of(plan.profile, node)),
        "sampled": sampled_gpus(plan.profile, node),
        "words": [str(port), f"--port={port}"] if node.api else own_words(plan.profile, argv),
    }


def own_words(profile: Profile, argv: Sequence[str]) -> list[str]:
    """By what the engine of a node without a port is known: the word of its arguments that names the model."""
    return [word for word in argv if profile.engine.model in (word, word.partition("=")[2])]


def sampled_gpus(profile: Profile, node: Node) -> list[str]:
    """Whose memory is sampled: the GPUs of the node; all that it has, if only a pin or a limit speaks of them."""
    pins = (profile.host.gpu, profile.host.driver, profile.host.gpu_count, profile.expect.memory.gpu_peak_gib)
    return list(nodes_docker.gpus_of(profile, node)) or (["all"] if any(p is not None for p in pins) else [])


def node_commands(
    profile: Profile, dialect: Dialect, port: int, change: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    """The arguments of every node: command, model, host and port where the API is, then those of the engine, of the
    node, and of a change."""
    launch = profile.launch
    out = {}
    for node in profile.nodes:
        command = nodes_docker.engine_words(profile, node)
        args = [*profile.engine.args, *node.args, *change]
        served = dialect.serve_args(profile.engine.model, launch.host, port, args)
        out[node.name] = (*command, *(served if node.api else without_api(served, launch.host, port)))
    return out


def send_files(profile: Profile, access: Access) -> dict[str, str]:
    """Overlay files to a node that is another host: path in the container → path there, its hash compared there.

    Raises LaunchError naming node and file.
    """
    container, node = profile.launch.container, access.node
    if container is None or node.reach.kind != "ssh":
        return {}
    out = {}
    for file in files_of(profile, node):
        try:
            data = file.host.read_bytes()
        except OSError as error:
            raise LaunchError(f"overlay file {file.host} can't be read: {error.strerror}") from None
        found = hashlib.sha256(data).hexdigest()
        if file.sha256 is not None and found != file.sha256:
            raise LaunchError(f"overlay file {file.host}: sha256 {found}, expected {file.sha256}")
        row = access.errand("put", name=file.host.name, sha256=found, data=base64.b64encode(data).decode())
        if row["sha256"] != found:
            raise LaunchError(f"node {node.name}: overlay file {row['path']}: sha256 {row['sha256']}, expected {found}")
        out[file.path] = str(row["path"])
    return out


def without_api(args: Sequence[str], host: str, port: int) -> tuple[str, ...]:
    """Arguments of a node that serves no API: the host and port that a dialect puts first are left out."""
    left = list(args)
    for option, value in (("--host", host), ("--port", str(port))):
        for index in range(len(left) - 1):
            if left[index : index + 2] == [option, value]:
                del left[index : index + 2]
                break
    return tuple(left)


def wanted_locks(node: Node, port: int) -> list[list[str]]:
    """What is taken on the node for the time of a start: ports of its address, and its GPUs."""
    ports = [["port", f"{node.address}:{p}"] for p in sorted({port, *node.ports} - {0})]
    return ports + [["gpu", gpu] for gpu in node.gpus]
