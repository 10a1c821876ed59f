"""What a start needs before it is made: its GPUs, what its restart step asks for, a port, the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup.launch import locks
from pytest_startup.launch.base import HoldsCaches, LaunchError, PreparesNodes, SparesNodes
from pytest_startup.launch.container.options import INNER_PORT, host_path, published
from pytest_startup.launch.pagecache import drop_page_cache
from pytest_startup.launch.ports import free_port
from pytest_startup.launch.wiping import wipe
from pytest_startup.profile.model import Restart

if TYPE_CHECKING:
    from pytest_startup.engines.base import Dialect
    from pytest_startup.launch.base import Launcher, Running
    from pytest_startup.observe.gpus import Nvml
    from pytest_startup.profile.model import Profile

ALL = ("all",)


def with_gpus(profile: Profile, nvml: Callable[[], Nvml] | None = None) -> Profile:
    """``profile`` with ``gpus: all`` turned into the indices of this host. Raises LaunchError where there are none."""
    if profile.launch.gpus != ALL:
        return profile
    if nvml is None:
        from pytest_startup.observe.gpus import Nvml as Opened

        nvml = Opened
    with nvml() as seen:
        found = tuple(str(gpu.index) for gpu in seen.gpus())
        why = "; ".join(seen.problems())
    if why or not found:
        text = f"{profile.place('launch.gpus')}: all GPUs of this host are asked for, and none can be seen"
        raise LaunchError(f"{text}: {why}" if why else text)
    return replace(profile, launch=replace(profile.launch, gpus=found))


def prepare(
    profile: Profile, step: Restart | None, tell: Callable[[str], None], launcher: Launcher | None = None
) -> list[str]:
    """What a restart step asks for before the launch; what was done, or could not be. Raises LaunchError.

    On nodes it is done there, by the launcher that reaches them.
    """
    notes: list[str] = []
    if step is None:
        return notes
    if profile.nodes and isinstance(launcher, PreparesNodes):
        notes = launcher.prepare(profile, step.nodes, step.drop_page_cache, step.wipe)
        for note in notes:
            tell(f"{step.name}: {note}")
        return notes
    for cache in (c for c in profile.caches if c.name in step.wipe):
        if isinstance(launcher, HoldsCaches):
            notes.append(launcher.wipe(profile, cache, step.kind != "same-container"))
        else:
            notes.append(wipe(cache, (profile.path, *profile.launch.checkpoint)))
    if step.drop_page_cache:
        notes.append(drop_page_cache(checkpoint_of(profile)).text)
    for note in notes:
        tell(f"{step.name}: {note}")
    return notes


def checkpoint_of(profile: Profile) -> tuple[Path, ...]:
    """The checkpoint on this host: as the profile names it, or what is mounted where the container's model is."""
    container, model = profile.launch.container, profile.engine.model
    if profile.launch.checkpoint or container is None or not model.startswith("/"):
        return profile.launch.checkpoint
    found = host_path(container, model)
    return (Path(found[0]) / found[1],) if found is not None and found[0].startswith("/") else ()


@contextmanager
def port_of(profile: Profile, run_id: str, before: int | None = None) -> Iterator[int]:
    """The profile's port, or a free one that no other run takes until the launcher holds it. Raises LaunchError.

    ``before``: the port of a container that is started again, which keeps its arguments. A container with a network
    of its own has its ports to itself.
    """
    if before is not None:
        yield before
        return
    if profile.launch.port is None and _own_network(profile):
        yield INNER_PORT
        return
    if profile.launch.port is not None:
        yield profile.launch.port
        return
    try:
        port, lock = free_port(profile.launch.host, run_id)
    except (locks.LockTaken, locks.LockUnusable) as error:
        raise LaunchError(str(error)) from None
    try:
        yield port
    finally:
        lock.release()


def command_line(profile: Profile, step: Restart | None, dialect: Dialect, port: int) -> tuple[str, ...]:
    """The whole argv of a start: the launch command, then the engine's own arguments, then those of the change."""
    if profile.nodes:
        served = next(n.name for n in profile.nodes if n.api)
        return node_commands(profile, step, dialect, port)[served]
    command: tuple[str, ...] = profile.launch.process.command if profile.launch.process else ()
    container = profile.launch.container
    if container is not None:
        command = container.command if container.exec_command is None else container.exec_command
    args = [*profile.engine.args, *(step.change.args if step else ())]
    # Behind a published port the engine must listen on the container's own address, not on its loopback.
    host = "0.0.0.0" if _own_network(profile) else profile.launch.host  # noqa: S104 - inside the container only
    return (*command, *dialect.serve_args(profile.engine.model, host, port, args))


def node_commands(profile: Profile, step: Restart | None, dialect: Dialect, port: int) -> dict[str, tuple[str, ...]]:
    """The argv of each node; empty without nodes."""
    if not profile.nodes:
        return {}
    from pytest_startup.launch.nodes.launcher import node_commands as commands

    return commands(profile, dialect, port, step.change.args if step else ())


def spare(profile: Profile, running: Running, step: Restart | None) -> None:
    """Before a stop: the nodes that the next restart leaves alone are not stopped."""
    if step is not None and step.nodes and isinstance(running, SparesNodes):
        running.spare({n.name for n in profile.nodes} - set(step.nodes))


def _own_network(profile: Profile) -> bool:
    return profile.launch.container is not None and published(profile.launch.container)


def first_kind(profile: Profile) -> str:
    """The kind of a start that restarts nothing."""
    return "fresh-container" if profile.launch.container is not None else "process"


def extra_step(profile: Profile, kind: str | None) -> Restart:
    """A restart beyond the profile's: as its first one, nothing wiped. Raises LaunchError for an illegal kind."""
    step = profile.restarts[0] if profile.restarts else Restart("restart", first_kind(profile))
    wanted = kind or step.kind
    legal: Sequence[str] = ("process", "same-container", "fresh-container")  # a hook's launcher may know each
    if profile.launch.process is not None:
        legal = ("process",)
    elif profile.launch.container is not None:
        legal = ("same-container", "fresh-container")
    if wanted not in legal:
        raise LaunchError(f"restart({wanted!r}): this profile's engine can be restarted as {' or '.join(legal)}")
    return replace(step, kind=wanted, drop_page_cache=False, wipe=())
