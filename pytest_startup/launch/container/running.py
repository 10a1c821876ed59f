"""A running container: its end noticed at once, its facts, and a stop that proves what is gone."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pytest_startup.launch import registry
from pytest_startup.launch.base import Exit, NodeLog, StartPlan
from pytest_startup.launch.container import proof
from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere
from pytest_startup.launch.container.exec import Exec
from pytest_startup.launch.container.file_log import Earlier, FilePump
from pytest_startup.launch.container.log import LogPump, Position
from pytest_startup.launch.container.processes import ContainerProcesses
from pytest_startup.launch.container.watch import Boot, Watcher
from pytest_startup.launch.exits import is_ending
from pytest_startup.launch.identity import identify, shown_arguments
from pytest_startup.launch.listeners import who_listens
from pytest_startup.launch.memory import shm_names
from pytest_startup.launch.once import StopOnce
from pytest_startup.launch.ports import local_url
from pytest_startup.launch.release import GpuHeld, gpus_released, port_released
from pytest_startup.launch.watch_facts import watch_facts
from pytest_startup.observe.sources import Listening
from pytest_startup.record import Evidence, Fact, Leftover
from pytest_startup.redact import Redactor

#: Seconds for a log to be opened before anything else is asked of the engine.
_OPENED = 10.0
#: Seconds for the rest of a log to arrive after the container has ended.
_REST = 10.0
#: Seconds within which the end of a container shows whose first process is seen to have gone.
_FINDS_OUT = 2.0


@dataclass(frozen=True)
class Launched:
    """What is known of a container when it was started. ``reach`` and ``port``: its address on this host."""

    boot: Boot
    at: float
    wall: float
    reach: str
    port: int
    published: bool
    position: Position
    log_before: Earlier
    entry: registry.Entry
    facts: Sequence[Fact] = field(default_factory=tuple)


class LogSource(Protocol):
    """What moves a log into the node's files."""

    @property
    def error(self) -> str | None:
        """What is missing in the log; None: nothing."""

    def start(self) -> None: ...

    def reopen(self) -> None:
        """The daemon was away: a connection from before may be dead without a word."""

    def finish(self, timeout: float) -> bool:
        """The boot is over: take what is left. False: not all came within ``timeout`` seconds. Idempotent."""


class ContainerRunning:
    """One start of a container. See ``launch.base.Running``."""

    def __init__(
        self,
        daemon: Daemon,
        plan: StartPlan,
        launched: Launched,
        node: str,
        folder: Path,
        redactor: Redactor,
        gpu_held: GpuHeld | None = None,
        engine: Exec | None = None,
    ) -> None:
        self._daemon, self._plan, self._launched, self._node = daemon, plan, launched, node
        self._redact, self._redact_argv = redactor.text, redactor.argv
        self._gpu_held, self._engine = gpu_held, engine
        self._logs = (NodeLog(node, folder / "engine.log", folder / "lines.tsv"),)
        self._stop = StopOnce(plan.profile.deadlines.stop, self._end)
        self.kept = False
        self._alone: Exit | None = None
        boot = launched.boot
        self._processes: ContainerProcesses | None = None
        if boot.main is not None:
            self._processes = ContainerProcesses(boot.container, boot.main, launched.at, shm_names(), self._record)
            self._processes.start()
        self._watcher = Watcher(
            daemon, boot, node, launched.at, self._daemon_returned, None if engine is None else engine.exit_code
        )
        self._pump = self._log_pump(folder, redactor)
        self._pump.start()
        self._watcher.start()
        if isinstance(self._pump, LogPump):
            self._pump.opened(_OPENED)

    def _record(self) -> None:
        """Write what the container has taken of the host's shared memory where the next run finds it."""
        shm = tuple(sorted(self._processes.shm)) if self._processes is not None else ()
        with contextlib.suppress(OSError, registry.UnsafeFolder):
            registry.write(registry.state_folder(), replace(self._launched.entry, shm=shm, kept=self.kept))

    def _log_pump(self, folder: Path, redactor: Redactor) -> LogSource:
        """Where the engine's log is: a file inside, the output of what exec started, or the container's own."""
        made, container = self._launched, self._plan.profile.launch.container
        path = container.log_file if container is not None else None
        if self._engine is not None:
            self._engine.follow(None if path else folder, redactor, made.at)
        if path:
            pid = made.boot.main.pid if made.boot.main is not None else 0
            return FilePump(self._daemon, self.container, path, pid, folder, redactor, made.at, made.log_before)
        if self._engine is not None:
            return self._engine
        clocks = (made.wall, made.at)
        return LogPump(self._daemon, self.container, folder, redactor, made.position, clocks, self._boot_over)

    @property
    def base_url(self) -> str:
        return local_url(self._launched.reach, self._launched.port)

    @property
    def logs(self) -> Sequence[NodeLog]:
        return self._logs

    @property
    def launched_at(self) -> float:
        return self._launched.at

    @property
    def container(self) -> str:
        """The container's id."""
        return self._launched.boot.container

    @property
    def pids(self) -> Callable[[], Collection[int]] | None:
        """The engine's processes, where they themselves listen on the host's port (not behind a published one)."""
        processes = self._processes
        if processes is None or self._launched.published:
            return None
        return lambda: [p.pid for p in processes.living()]

    def owner(self) -> Listening:
        """Is the server on our port the engine in this container?"""
        pids = self.pids
        if pids is not None:
            return who_listens(self._launched.port, pids())
        boot, port = self._launched.boot, self._launched.port
        if not self._launched.published:
            return Listening("unknown", f"not allowed to see the processes of container {boot.name}")
        try:
            seen = self._daemon.inspect(boot.container)
        except (DaemonLost, DaemonRefused, NotThere) as error:
            return Listening("unknown", str(error))
        bound = [b for bindings in (seen["NetworkSettings"].get("Ports") or {}).values() for b in bindings or ()]
        if seen["State"].get("Running") and any(b.get("HostPort") == str(port) for b in bound):
            return Listening("ours", f"port {port} is published by container {boot.name} ({boot.container[:12]})")
        return Listening("foreign", f"port {port} is not published by container {boot.name}, which was started")

    @property
    def position(self) -> Position:
        """Where the log of the next boot begins."""
        return self._pump.position if isinstance(self._pump, LogPump) else self._launched.position

    def exited(self) -> Exit | None:
        ended = self._watcher.exited()
        return replace(ended, alone=True) if ended is not None and ended is self._alone else ended

    def wait_exit(self, timeout: float) -> Exit | None:
        return self._watcher.wait(timeout)

    def facts(self) -> Sequence[Fact]:
        """What was known at launch, and seen since: memory, processes that ended, the daemon's absences."""
        out = list(self._launched.facts)
        boot, where = self._launched.boot, f"container {self.container[:12]}"
        if boot.pid:
            out.append(self._fact("process.pid", boot.pid, where, f"Pid {boot.pid} as the daemon says"))
        processes = self._processes
        if processes is not None:
            if processes.peak is None and not self._stop.made:
                processes.look()
            out = self._as_shown(out, processes)
            killed = (processes.oom_kills, f"the container ({self.container[:12]})")
            out += watch_facts(self._node, processes.peak, processes.lost, killed, self._redact, processes.group_peak)
        ended = self.exited()
        survived = "" if ended is not None and ended.reason == "daemon-lost" else "; the container ran on"
        for begin, end in self._watcher.absences:
            text = f"the container engine did not answer from {begin:.1f} s to {end:.1f} s{survived}"
            out.append(self._fact("container.engine_away", round(end - begin, 3), where, text, unit="s"))
        if self._watcher.oom_seen:
            text = "OOMKilled: a process of the container was killed at its memory limit"
            out.append(self._fact("container.oom_killed", True, where, text))
        problem = self._pump.error
        over = self._stop.made or self.exited() is not None
        if problem and over:
            out.append(self._fact("log.incomplete", problem, "engine.log", problem))
        return out

    def _as_shown(self, facts: list[Fact], processes: ContainerProcesses) -> list[Fact]:
        """``process.argv`` as the kernel shows it below the image's scripts, while the engine runs and can be seen."""
        port = self._plan.port
        seen = shown_arguments(processes.living(), (str(port), f"--port={port}"))
        if seen is None:
            return facts
        pid, argv = seen[0], self._redact_argv(seen[1])
        fact = self._fact("process.argv", argv, f"/proc/{pid}/cmdline", " ".join(argv))
        return [*(f for f in facts if f.name != "process.argv"), fact]

    def keep(self) -> bool:
        """Leave the engine up after us (``--startup-keep``). False if it has ended."""
        self.kept = self.exited() is None
        if self.kept:
            self._record()
            self._watcher.stop()
            self._finish_log(0.5)
        return self.kept

    def hurry(self) -> None:
        """See ``launch.base.Hurries``."""
        self._stop.hurry()

    def stop(self, limit: float | None = None) -> Sequence[Leftover]:
        """As ``launch.base.Running.stop``. The stopped container stays until the next fresh start or the run's end."""
        return self._stop(limit)

    def _end(self, limit: float) -> tuple[tuple[Leftover, ...], bool]:
        """See ``launch.once``."""
        begin = time.monotonic()
        if self._processes is not None:
            self._processes.pause()
            main = self._launched.boot.main
            # The daemon is about to find it out.
            if main is not None and (identify(main.pid) != main or is_ending(main)):
                self._alone = self._watcher.wait(_FINDS_OUT)
        interrupted = self._stop_engine(limit)
        return self._prove(begin, limit), interrupted

    def _stop_engine(self, limit: float) -> bool:
        """Stop the container. Ctrl-C meanwhile means KILL now; it is not lost: True, and the proof comes first."""
        until = time.monotonic() + limit + self._plan.profile.deadlines.release
        interrupted = False
        if self._engine is not None:
            limit = self._engine.end(limit)
        ending = threading.Thread(target=self._stop_container, args=(limit, until), daemon=True)
        ending.start()
        while ending.is_alive() and time.monotonic() < until + 10.0:
            try:
                ending.join(0.2)
            except KeyboardInterrupt:
                interrupted = True
                with contextlib.suppress(DaemonLost, NotThere):
                    self._daemon.kill(self.container)
        self._watcher.stop()
        return interrupted

    def _stop_container(self, limit: float, until: float) -> None:
        """Again and again while the daemon is away: it may come back."""
        while time.monotonic() < until:
            try:
                self._daemon.stop(self.container, limit)
                return
            except (NotThere, DaemonRefused):
                return
            except DaemonLost:
                time.sleep(0.5)

    def _boot_over(self) -> bool:
        state = self._daemon.inspect(self.container)["State"]
        return not state.get("Running") or state.get("StartedAt") != self._launched.boot.started_at

    def _daemon_returned(self) -> None:
        self._pump.reopen()

    def _finish_log(self, timeout: float) -> None:
        self._pump.finish(timeout)
        if self._engine is not None:
            self._engine.finish(timeout)

    def _prove(self, begin: float, limit: float) -> tuple[Leftover, ...]:
        until = begin + limit + self._plan.profile.deadlines.release
        processes, boot = self._processes, self._launched.boot
        out = [proof.container_stopped(self._daemon, boot, self._node, begin, until)]
        self._finish_log(_REST if out[0].released else 1.0)
        if processes is not None:
            out += proof.processes_gone(processes, self._node, self._redact, begin, until)
        launch = self._plan.profile.launch
        # Behind a published port listens the daemon's own process for a moment longer: whose it is can't be told.
        seen = None if self._launched.published else processes
        ours = None if seen is None else {p.pid for p in seen.living()}
        out.append(port_released(launch.host, self._launched.port, self._node, begin, until, ours))
        if processes is not None:
            out += proof.shm_released(processes, self._node, begin)
        pids = {i.pid for i in processes.known} if processes is not None else {boot.pid}
        out += gpus_released(self._gpu_held, pids, launch.gpus, self._node, begin, until)
        return tuple(out)

    def _fact(
        self, name: str, value: Any, where: str, text: str, source: str = "container", unit: str | None = None
    ) -> Fact:
        return Fact(name, value, Evidence(source, where, text[:400], node=self._node), unit=unit, node=self._node)
