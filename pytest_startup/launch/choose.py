"""Which launcher a profile needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from pytest_startup.launch.base import LaunchError

if TYPE_CHECKING:
    from pytest_startup.launch.base import Launcher
    from pytest_startup.options import Options
    from pytest_startup.profile.model import Profile

#: How long a GPU or port that another run of ours uses is waited for, in seconds.
LOCK_WAIT = 3600.0


def choose_launcher(profile: Profile, options: Options, notice: Callable[[str], None]) -> Launcher:
    """A launcher for the profile: process, container, nodes, or one that a hook adds. Raises LaunchError."""
    launch = profile.launch
    if launch.custom is not None:
        known = options.extensions.launchers
        if launch.custom not in known:
            raise LaunchError(
                f"{profile.place('launch.custom')}: no launcher {launch.custom!r} was added"
                f" (known: {', '.join(sorted(known)) or 'none'}; see the hook pytest_startup_launchers)"
            )
        return known[launch.custom]()
    if profile.nodes:
        from pytest_startup.launch.nodes.launcher import NodesLauncher

        return NodesLauncher(notice)
    if launch.container is not None:
        from pytest_startup.launch.container.launcher import ContainerLauncher

        return ContainerLauncher(gpu_held=gpu_held, gpu_names=gpu_uuids, lock_wait=LOCK_WAIT, notice=notice)
    from pytest_startup.launch.process.launcher import ProcessLauncher

    return ProcessLauncher(gpu_held=gpu_held, gpu_name=gpu_uuid, lock_wait=LOCK_WAIT, notice=notice)


def gpu_held(pids: Collection[int], gpus: Sequence[str]) -> Sequence[str]:
    """Which of these GPUs still hold memory for these processes, one text each (see ``launch.release.GpuHeld``)."""
    if not gpus:
        return []
    from pytest_startup.observe.gpus import GIB, Nvml

    with Nvml(list(gpus)) as nvml:
        return [
            f"GPU {gpu.index}: {'memory' if p.used is None else f'{p.used / GIB:.1f} GiB'} held by pid {p.pid}"
            for gpu in nvml.gpus()
            for p in gpu.processes or ()
            if p.pid in pids
        ]


def gpu_uuid(name: str) -> str:
    """The UUID of a GPU that a profile names by index, so that all runs lock the same name; else ``name`` itself."""
    from pytest_startup.observe.gpus import Nvml

    with Nvml([name]) as nvml:
        found = nvml.gpus()
    return found[0].uuid or name if found else name


def gpu_uuids(names: Sequence[str]) -> Sequence[str]:
    """The same for all GPUs of a profile; ``all`` stands for every GPU of this host."""
    if tuple(names) != ("all",):
        return [gpu_uuid(name) for name in names]
    from pytest_startup.observe.gpus import Nvml

    with Nvml() as nvml:
        return [gpu.uuid or str(gpu.index) for gpu in nvml.gpus()]
