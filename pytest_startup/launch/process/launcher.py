"""The launcher of local processes: one engine per start, its processes ended and proved gone before the next one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_startup.launch import holdings, locks, ports, registry
from pytest_startup.launch.base import LaunchError, StartPlan
from pytest_startup.launch.environment import engine_environment
from pytest_startup.launch.memory import shm_names
from pytest_startup.launch.process.link import KeeperLink
from pytest_startup.launch.process.running import ProcessRunning
from pytest_startup.launch.release import GpuHeld
from pytest_startup.profile.model import Profile
from pytest_startup.record import Leftover
from pytest_startup.redact import Redactor

NODE = "head"


class ProcessLauncher:
    """Starts ``launch.process`` profiles. One engine at a time; GPUs and port stay locked until ``close``.

    ``gpu_held`` tells what of our processes still holds GPU memory (see ``release.GpuHeld``); ``gpu_name`` turns an
    index into the GPU's UUID, so that two profiles that name it differently meet at one lock. GPUs and ports that
    another run of ours uses are waited for ``lock_wait`` seconds; ``notice`` hears of it.
    """

    def __init__(
        self,
        *,
        gpu_held: GpuHeld | None = None,
        gpu_name: Callable[[str], str] = str,
        lock_wait: float = 0.0,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        self._gpu_held = gpu_held
        self._gpu_name = gpu_name
        self._holdings = holdings.Holdings(lock_wait, notice)
        self._running: ProcessRunning | None = None

    def preflight(self, profile: Profile) -> Sequence[str]:
        """Command, working folder, port, GPU and port locks, state folder. Starts and keeps nothing."""
        reasons = []
        process = profile.launch.process
        if process is None:
            return [f"{profile.place('launch')}: no launch.process"]
        place = profile.place("launch.process.command")
        if not process.cwd.is_dir():
            reasons.append(f"{profile.place('launch.process.cwd')}: working folder {process.cwd} is not there")
        elif find_command(process.command[0], process.cwd, profile.engine.env.get("PATH")) is None:
            reasons.append(f"{place}: command {process.command[0]!r} is not there or may not be executed")
        try:
            registry.state_folder(create=False)
            used = holdings.in_use(self._wanted(profile, profile.launch.port))
        except (registry.UnsafeFolder, locks.LockUnusable) as error:
            return [*reasons, str(error)]
        reasons += self._holdings.why_not(used)
        # The port of another run of ours is waited for; anybody else's never becomes free for us.
        if profile.launch.port is not None and ("port", str(profile.launch.port)) not in used:
            taken = ports.why_taken(profile.launch.host, profile.launch.port)
            if taken:
                reasons.append(
                    f"{profile.place('launch.port')}: port {profile.launch.port} is already taken by {taken}"
                )
        return reasons

    def start(self, plan: StartPlan) -> ProcessRunning:
        """Start the engine and return at once. Raises LaunchError; then nothing of it runs."""
        process = plan.profile.launch.process
        if process is None:
            raise LaunchError(f"{plan.profile.place('launch')}: this launcher needs launch.process")
        if self._running is not None:
            holdings.refuse_unless_released(self._running)
        try:
            self._holdings.take(self._wanted(plan.profile, plan.port), plan)
            state = registry.state_folder()
        except (locks.LockTaken, locks.LockUnusable, registry.UnsafeFolder) as error:
            raise LaunchError(f"{plan.name} is not started: {error}") from None
        taken = ports.why_taken(plan.profile.launch.host, plan.port)
        if taken:
            raise LaunchError(f"{plan.name} is not started: port {plan.port} is already taken by {taken}")
        profile_env = {**plan.profile.engine.env, **plan.env}
        gpus = plan.profile.launch.gpus
        env = engine_environment(os.environ, profile_env, plan.run_id, process.pass_env, gpus)
        command = find_command(plan.argv[0], process.cwd, env.get("PATH"))
        if command is None:
            raise LaunchError(
                f"{plan.profile.place('launch.process.command')}: command {plan.argv[0]!r} is not there or may not be "
                f"executed (working folder {process.cwd}, PATH={env.get('PATH', '')})"
            )
        node = Path(os.path.abspath(plan.folder)) / NODE
        try:
            node.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(f"the artifacts folder {node} can't be made: {error.strerror}") from None
        redactor = Redactor(plan.profile.secrets)
        link = KeeperLink.start(
            {
                "argv": [command, *plan.argv[1:]],
                "env": env,
                "cwd": str(process.cwd),
                "log": str(node / "engine.log"),
                "lines": str(node / "lines.tsv"),
                "run_id": plan.run_id,
                "start": plan.name,
                "state": str(state),
                "port": plan.port,
                "folder": str(node.parent),
                "command": " ".join(redactor.argv(plan.argv)),
                "shm": sorted(shm_names()),
                "secrets": sorted(redactor.secrets),
            },
            self._holdings.handles,
        )
        self._running = ProcessRunning(link, plan, NODE, node, redactor, self._gpu_held)
        return self._running

    def close(self) -> Sequence[Leftover]:
        """Stop what runs and give the locks back; what could not be released is in the answer."""
        left: Sequence[Leftover] = ()
        if self._running is not None and not self._running.kept:
            left = [one for one in self._running.stop() if not one.released]
        if self._running is None or not self._running.kept:
            self._holdings.release()
        self._holdings.forget()
        self._running = None
        return left

    def _wanted(self, profile: Profile, port: int | None) -> holdings.Wanted:
        return holdings.wanted([self._gpu_name(gpu) for gpu in profile.launch.gpus], port)


def find_command(command: str, cwd: Path, path: str | None) -> str | None:
    """The executable of an argv, found as ``execvp`` would in ``cwd``; None if there is none."""
    if os.sep in command:
        full = os.path.join(cwd, command)
        return full if os.path.isfile(full) and os.access(full, os.X_OK) else None
    return shutil.which(command, path=path)
