"""The launcher of containers: create and start, never pull; one engine at a time; nothing of others is ever touched."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pytest_startup.launch import holdings, locks, registry
from pytest_startup.launch.base import LaunchError, StartPlan
from pytest_startup.launch.container import address as docker_address
from pytest_startup.launch.container import clean as container_clean
from pytest_startup.launch.container import facts as container_facts
from pytest_startup.launch.container import labels as container_labels
from pytest_startup.launch.container import trouble
from pytest_startup.launch.container.caches import ContainerCaches, snapshots
from pytest_startup.launch.container.checks import Checks
from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere
from pytest_startup.launch.container.exec import Exec
from pytest_startup.launch.container.file_log import Earlier, held_inside
from pytest_startup.launch.container.log import Position, count
from pytest_startup.launch.container.options import body, published
from pytest_startup.launch.container.refusals import explain_refusal, left_out, unknown_members
from pytest_startup.launch.container.running import ContainerRunning, Launched
from pytest_startup.launch.container.watch import boot_of
from pytest_startup.launch.identity import Identity, identify
from pytest_startup.launch.release import GpuHeld
from pytest_startup.observe.caches import Snapshot
from pytest_startup.profile.model import CacheFolder, ContainerLaunch, Profile
from pytest_startup.record import Leftover
from pytest_startup.redact import Redactor

_T = TypeVar("_T")
NODE = "head"
#: Seconds to wait for the port of a container that has just been started to be published.
_PUBLISH = 5.0


@dataclass
class _Kept:
    """The container of the start before, stopped, and how far its log has been read."""

    container: str
    name: str
    position: Position
    entry: registry.Entry
    image: Mapping[str, Any]


class ContainerLauncher:
    """Starts ``launch.container`` profiles. GPUs and port stay locked until ``close``.

    The daemon is the container's parent: when pytest dies, the container runs on, and the next run removes it by its
    labels and by the registry. ``gpu_held`` and ``gpu_names`` are as for the process launcher; ``gpu_names`` turns the
    GPUs of a profile (``all``, too) into the names that all runs lock.
    """

    def __init__(
        self,
        *,
        gpu_held: GpuHeld | None = None,
        gpu_names: Callable[[Sequence[str]], Sequence[str]] = tuple,
        lock_wait: float = 0.0,
        notice: Callable[[str], None] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._gpu_held, self._gpu_names = gpu_held, gpu_names
        self._notice = notice
        self._holdings = holdings.Holdings(lock_wait, notice)
        self._environ = os.environ if environ is None else environ
        self._running: ContainerRunning | None = None
        self._kept: _Kept | None = None
        self._daemon: Daemon | None = None

    def preflight(self, profile: Profile) -> Sequence[str]:
        """Daemon, image, options, files, name, port and locks; creates nothing."""
        try:
            container = _container(profile)
            daemon = self._connect(container)
            state = registry.state_folder(create=False)
            used = holdings.in_use(self._wanted(profile, profile.launch.port))
        except (LaunchError, registry.UnsafeFolder, locks.LockUnusable) as error:
            return [str(error)]
        return [*Checks(daemon, profile, state, self._own()).all(), *self._holdings.why_not(used)]

    def start(self, plan: StartPlan) -> ContainerRunning:
        """Start and return at once. Raises LaunchError; then nothing of it runs, nor is left created."""
        container = _container(plan.profile)
        self._refuse_unless_released()
        port = plan.profile.launch.port if published(container) else plan.port
        try:
            self._holdings.take(self._wanted(plan.profile, port), plan)
            state = registry.state_folder()
        except (locks.LockTaken, locks.LockUnusable, registry.UnsafeFolder) as error:
            raise LaunchError(f"{plan.name} is not started: {error}") from None
        daemon = self._connect(container)
        node = Path(os.path.abspath(plan.folder)) / NODE
        try:
            node.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(f"the artifacts folder {node} can't be made: {error.strerror}") from None
        try:
            return self._start(daemon, plan, state, node)
        except DaemonLost as error:
            raise LaunchError(f"{plan.name} is not started: {error}") from None
        except (DaemonRefused, NotThere) as error:
            raise LaunchError(f"{plan.name} is not started: {explain_refusal(str(error), plan.profile)}") from None

    def snapshots(self, profile: Profile, earlier: Mapping[str, Snapshot], fresh: bool) -> Mapping[str, Snapshot]:
        """See ``launch.base.HoldsCaches``."""
        made = None if fresh or self._kept is None else self._kept.container
        return self._at_caches(profile, lambda where: snapshots(profile.caches, where, made, earlier))

    def wipe(self, profile: Profile, cache: CacheFolder, fresh: bool) -> str:
        """See ``launch.base.HoldsCaches``. For a fresh start the old container goes first: it holds its volumes."""
        if fresh:
            for left in self._remove_kept():
                raise LaunchError(f"nothing is wiped: {left.kind} {left.what} could not be removed")
        made = None if self._kept is None else self._kept.container
        keep = (profile.path, *profile.launch.checkpoint)
        return self._at_caches(profile, lambda where: where.wipe(cache, made, keep))

    def _at_caches(self, profile: Profile, work: Callable[[ContainerCaches], _T]) -> _T:
        container = _container(profile)
        try:
            labels = container_labels.labels(f"look-{os.getpid()}", profile.name, "look")
            return work(ContainerCaches(self._connect(container), container, labels))
        except (DaemonLost, DaemonRefused) as error:
            raise LaunchError(f"the caches can't be seen: {error}") from None
        except ValueError as error:  # an archive that ends early
            raise LaunchError(str(error)) from None

    def close(self) -> Sequence[Leftover]:
        """Stop what runs, remove what we created, give the locks back. What could not be removed is in the answer."""
        left: list[Leftover] = []
        running = self._running
        if running is None or not running.kept:
            if running is not None:
                left += [one for one in running.stop() if not one.released]
            left += self._remove_kept()
        self._holdings.release()
        if self._daemon is not None:
            self._daemon.close()
        self._running, self._kept, self._daemon = None, None, None
        return left

    def _start(self, daemon: Daemon, plan: StartPlan, state: Path, node: Path) -> ContainerRunning:
        self._sweep(daemon)
        if plan.fresh:
            for one in self._remove_kept():
                raise LaunchError(f"{plan.name} is not started: {one.kind} {one.what} could not be removed")
        elif self._kept is None:
            raise LaunchError(f"{plan.name} is not started: there is no container of an earlier start to start again")
        problems = Checks(daemon, plan.profile, state, self._own()).before_start(plan.port)
        if problems:
            raise LaunchError(f"{plan.name} is not started: {'; '.join(problems)}")
        kept = self._kept = self._kept or self._create(daemon, plan, state)
        if not plan.fresh:
            kept.position = count(daemon, kept.container, kept.position)
        return self._boot(daemon, plan, node, kept)

    def _create(self, daemon: Daemon, plan: StartPlan, state: Path) -> _Kept:
        container = _container(plan.profile)
        image = daemon.image(container.image)
        redactor = Redactor(plan.profile.secrets)
        name = container.name or f"pytest-startup-{plan.profile.name}-{plan.run_id}-{plan.name}"
        entry = registry.Entry(
            run_id=plan.run_id,
            start=plan.name,
            kind="container",
            owner=identify(os.getpid()) or Identity(os.getpid(), 0),
            port=plan.port,
            folder=str(plan.folder),
            command=" ".join(redactor.argv(plan.argv)),
            started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            labels={**container_clean.place(daemon.address), "name": name, "image": container.image},
            boot=registry.boot_id(),
            namespace=registry.pid_namespace(),
        )
        registry.write(state, entry)  # before it exists: whenever we are killed, the next run knows where to look
        argv = container.command if container.exec_command is not None else plan.argv
        labels = container_labels.labels(plan.run_id, plan.profile.name, plan.name)
        asked = body(plan.profile, argv, environment(plan, image), plan.port, labels)
        try:
            made = daemon.create(asked, name)
        except DaemonRefused:
            registry.remove(state, entry)
            raise
        host = daemon.inspect(made)["HostConfig"]
        problems = left_out(plan.profile, asked["HostConfig"], host)
        if not daemon.is_podman():
            problems += unknown_members(plan.profile, asked["HostConfig"], host)
        if problems:
            daemon.remove(made)
            registry.remove(state, entry)
            raise LaunchError(f"{plan.name} is not started: {'; '.join(problems)}")
        return _Kept(made, name, Position(), entry, image)

    def _boot(self, daemon: Daemon, plan: StartPlan, node: Path, kept: _Kept) -> ContainerRunning:
        """Start the container, and the engine in it; all that was created is removed when it can't be started."""
        container, redactor = _container(plan.profile), Redactor(plan.profile.secrets)
        before = held_inside(daemon, kept.container, container.log_file) if container.log_file else Earlier()
        at, wall = time.monotonic(), time.time()
        engine: Exec | None = None
        try:
            daemon.start(kept.container)
            if container.exec_command is not None:
                env = environment(plan, kept.image)
                engine = Exec(daemon, kept.container, plan.argv, env, container.user, container.working_dir)
            seen = daemon.inspect(kept.container)
        except BaseException:
            self._remove_kept()
            raise
        boot = boot_of(seen)
        reach, port = plan.profile.launch.host, plan.port
        if published(container):
            reach, port = self._published(daemon, kept.container, plan)
        facts = container_facts.identity_facts(seen, kept.image, NODE, redactor)
        facts += container_facts.file_facts(daemon, kept.container, plan.profile, NODE)
        env = dict(e.partition("=")[::2] for e in seen["Config"].get("Env") or ())
        facts += container_facts.revision_facts(daemon, kept.container, plan.profile, env, NODE)
        if engine is not None:
            facts = [f for f in facts if f.name != "process.argv"]
            argv = redactor.argv(plan.argv)
            command = next(f for f in facts if f.name == "container.command")
            facts.append(replace(command, name="process.argv", value=list(argv)))
        launched = Launched(
            boot, at, wall, reach, port, published(container), kept.position, before, kept.entry, tuple(facts)
        )
        self._running = ContainerRunning(daemon, plan, launched, NODE, node, redactor, self._gpu_held, engine)
        return self._running

    def _published(self, daemon: Daemon, container: str, plan: StartPlan) -> tuple[str, int]:
        """Host address and port under which the container's port can be reached; an ephemeral one is new each time."""
        end = time.monotonic() + _PUBLISH
        while True:
            seen = daemon.inspect(container)
            bindings = (seen["NetworkSettings"].get("Ports") or {}).get(f"{plan.port}/tcp") or []
            wanted = [b for b in bindings if ":" not in b["HostIp"]] or bindings
            if wanted:
                return str(wanted[0]["HostIp"]), int(wanted[0]["HostPort"])
            if not seen["State"].get("Running") or time.monotonic() > end:
                # It has ended already, or never publishes: the watch tells which; there is nothing to be reached.
                return plan.profile.launch.host, plan.profile.launch.port or plan.port
            time.sleep(0.05)

    def _connect(self, container: ContainerLaunch) -> Daemon:
        """The daemon of the profile, asked once. Raises LaunchError."""
        if self._daemon is None:
            daemon = Daemon(docker_address.find(container, self._environ))
            try:
                daemon.greet()
            except (DaemonRefused, NotThere) as error:
                daemon.close()
                raise LaunchError(f"{daemon.where()} {trouble.refused(str(error))}") from None
            except DaemonLost as error:
                daemon.close()
                why = trouble.why_lost(daemon.address)
                raise LaunchError(f"{daemon.where()} {why}" if why else str(error)) from None
            self._daemon = daemon
        return self._daemon

    def _sweep(self, daemon: Daemon) -> None:
        """Containers of runs that died since this one began: their port or name may be the one that we wait for."""
        own = self._own()
        for seen in daemon.containers([container_labels.RUN]):
            if seen["Id"] in own or not container_labels.run_is_dead(seen.get("Labels")):
                continue
            if registry_keeps(seen.get("Labels") or {}):
                continue
            daemon.remove(seen["Id"])
            if self._notice is not None:
                self._notice(f"a dead run had left behind: {container_labels.told(seen)}: removed")

    def _own(self) -> frozenset[str]:
        return frozenset() if self._kept is None else frozenset({self._kept.container})

    def _remove_kept(self) -> list[Leftover]:
        kept, daemon = self._kept, self._daemon
        if kept is None or daemon is None:
            return []
        name = f"{kept.name} ({kept.container[:12]})"
        try:
            daemon.remove(kept.container)
        except NotThere:
            pass
        except (DaemonLost, DaemonRefused) as error:
            return [Leftover("container", f"{name}: {error}", False, node=NODE)]
        self._kept = None
        registry.remove(registry.state_folder(), kept.entry)
        return []

    def _wanted(self, profile: Profile, port: int | None) -> holdings.Wanted:
        return holdings.wanted(self._gpu_names(profile.launch.gpus), port)

    def _refuse_unless_released(self) -> None:
        if self._running is None:
            return
        holdings.refuse_unless_released(self._running)
        if self._kept is not None:
            self._kept.position = self._running.position
        self._running = None


def _container(profile: Profile) -> ContainerLaunch:
    if profile.launch.container is None:
        raise LaunchError(f"{profile.place('launch')}: this launcher needs launch.container")
    return profile.launch.container


def environment(plan: StartPlan, image: Mapping[str, Any]) -> dict[str, str]:
    """What is set beside the image's own: the profile's, and unbuffered output unless the image says something."""
    given = {entry.partition("=")[0] for entry in (image.get("Config") or {}).get("Env") or ()}
    out = {} if "PYTHONUNBUFFERED" in given else {"PYTHONUNBUFFERED": "1"}
    return {**out, **plan.profile.engine.env, **plan.env}


def registry_keeps(labels: Mapping[str, str]) -> bool:
    """Was it left up on purpose (``--startup-keep``)? The registry says so; labels can't be changed."""
    try:
        folder = registry.state_folder(create=False)
        return any(e.kept and e.run_id == labels.get(container_labels.RUN) for e in registry.entries(folder))
    except registry.UnsafeFolder:
        return True
