"""A running local engine: its end noticed at once, its facts, and a stop that proves what is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_startup.launch import registry, stopping
from pytest_startup.launch.base import Exit, NodeLog, StartPlan
from pytest_startup.launch.identity import Identity, alive, command_line, engine_arguments, ours
from pytest_startup.launch.memory import SHM, Peak
from pytest_startup.launch.once import StopOnce
from pytest_startup.launch.ports import local_url
from pytest_startup.launch.process.link import KeeperLink
from pytest_startup.launch.release import GpuHeld, gpus_released, port_released
from pytest_startup.launch.watch_facts import oom_kills, watch_facts
from pytest_startup.record import Evidence, Fact, Leftover
from pytest_startup.redact import Redactor


class ProcessRunning:
    """One start of a local engine. See ``launch.base.Running``."""

    def __init__(
        self,
        link: KeeperLink,
        plan: StartPlan,
        node: str,
        folder: Path,
        redactor: Redactor,
        gpu_held: GpuHeld | None = None,
    ) -> None:
        started = link.event("started") or {}
        self._link = link
        self._plan = plan
        self._node = node
        self._redact = redactor.text
        self._redact_argv = redactor.argv
        self._argv = redactor.argv(plan.argv)
        self._gpu_held = gpu_held
        self._main = Identity(int(started["pid"]), int(started["start"]))
        self._launched_at = float(started["at"])
        self._logs = (NodeLog(node, folder / "engine.log", folder / "lines.tsv"),)
        self._oom_before = oom_kills()
        self._exit: Exit | None = None
        self._stop = StopOnce(plan.profile.deadlines.stop, self._end)
        self._stop_began = 0.0
        self.kept = False

    @property
    def base_url(self) -> str:
        return local_url(self._plan.profile.launch.host, self._plan.port)

    @property
    def logs(self) -> Sequence[NodeLog]:
        return self._logs

    @property
    def launched_at(self) -> float:
        return self._launched_at

    @property
    def pid(self) -> int:
        """Of the engine's first process."""
        return self._main.pid

    def exited(self) -> Exit | None:
        """Has the engine's first process ended? After an end only ``stop`` makes the log complete."""
        if self._exit is None:
            event = self._link.event("exit")
            if event is not None:
                described = self._describe(int(event["code"]), float(event["at"]) - self._launched_at)
                self._exit = replace(described, alone=bool(event["alone"]))
            elif self._link.gone and self._link.event("ended") is None:
                text = f"the process that keeps the engine (pid {self._link.pid}) was killed, and the engine with it"
                self._exit = Exit(self._node, None, "killed", text)
        return self._exit

    def wait_exit(self, timeout: float) -> Exit | None:
        self._link.wait(("exit",), timeout)
        return self.exited()

    def facts(self) -> Sequence[Fact]:
        """``process.argv`` (as the kernel shows it while the engine runs, else as it was launched), ``.pid``,
        ``.start_time``, ``host.memory_peak``, processes that ended; takes ≤ 4 s, where a rank is on its way out."""
        figures = self._link.event("ended") or self._link.ask("facts", 4.0) or self._link.event("facts") or {}
        seen = engine_arguments(self._main, self._plan.port)
        argv, where = (self._argv, "argv") if seen is None else (self._redact_argv(seen[1]), f"/proc/{seen[0]}/cmdline")
        out = [
            self._fact("process.argv", argv, where, " ".join(argv)),
            self._fact("process.pid", self._main.pid, f"/proc/{self._main.pid}", self._argv[0]),
            self._fact(
                "process.start_time",
                round(self._main.start / os.sysconf("SC_CLK_TCK"), 2),
                f"/proc/{self._main.pid}/stat",
                f"started {self._main.start} clock ticks after boot",
                unit="s",
            ),
        ]
        peak = Peak(**figures["peak"]) if figures.get("peak") else None
        killed = (oom_kills() - self._oom_before, "this host")
        out += watch_facts(self._node, peak, figures.get("lost", ()), killed, self._redact)
        if figures.get("log_error"):
            out.append(self._fact("log.incomplete", str(figures["log_error"]), "engine.log", str(figures["log_error"])))
        return out

    def keep(self) -> bool:
        """Leave the engine up after us (``--startup-keep``): it is not stopped at our end. False if it has ended."""
        self.kept = self.exited() is None and self._link.ask("keep", 5.0) is not None
        if self.kept:
            self._link.forget()
        return self.kept

    def hurry(self) -> None:
        """See ``launch.base.Hurries``."""
        self._stop.hurry()

    def stop(self, limit: float | None = None) -> Sequence[Leftover]:
        """As ``launch.base.Running.stop``; ``limit`` replaces ``deadlines.stop`` (0: KILL at once)."""
        return self._stop(limit)

    def _end(self, limit: float) -> tuple[tuple[Leftover, ...], bool]:
        """See ``launch.once``."""
        interrupted = self._tell_keeper(limit)
        return self._prove(limit), interrupted

    def _tell_keeper(self, limit: float) -> bool:
        """Wait for the end. Ctrl-C meanwhile means KILL now; it is not lost: True, and the proof comes first."""
        release = self._plan.profile.deadlines.release
        self._stop_began = time.monotonic()
        self._link.send({"do": "stop", "limit": limit, "give_up": release})
        try:
            self._link.wait(("ended", "fault"), limit + release + 10.0)
        except KeyboardInterrupt:
            self._link.send({"do": "stop", "limit": 0.0, "give_up": release})
            self._link.wait(("ended", "fault"), release + 10.0)
            return True
        return False

    def _prove(self, limit: float) -> tuple[Leftover, ...]:
        begin, release = self._stop_began, self._plan.profile.deadlines.release
        self.exited()  # while the events are fresh: the reason of an end that came before the stop
        ended = self._link.event("ended")
        if ended is None:
            ended = self._end_without_keeper(limit, release)
        self._link.close()
        seconds = round(time.monotonic() - begin, 3)
        left = {int(pid): Identity(int(pid), int(start)) for pid, start, _ in ended["left"]}
        out: list[Leftover] = []
        for pid, _, name in ended["ended"]:
            gone = pid not in left or not alive(left[pid])
            out.append(Leftover("pid", f"{pid} {self._redact(name)}", gone, seconds, self._node))
        named = {pid for pid, _, _ in ended["ended"]}
        for pid, identity in left.items():
            if pid not in named:
                out.append(
                    Leftover(
                        "pid", f"{pid} {self._redact(command_line(pid))}", not alive(identity), seconds, self._node
                    )
                )
        if not out:
            out.append(Leftover("pid", f"{self._main.pid} {self._argv[0]}", True, seconds, self._node))
        for name in ended["shm"]:
            removed = " (left behind by the engine; removed)" if name in ended["shm_removed"] else ""
            gone = not os.path.lexists(f"{SHM}/{name}")
            out.append(Leftover("shm", f"{SHM}/{name}{removed}", gone, seconds, self._node))
        until, launch = begin + limit + release, self._plan.profile.launch
        out.append(port_released(launch.host, self._plan.port, self._node, begin, until, set(left)))
        pids = {int(pid) for pid, _, _ in ended["ended"]}
        out.extend(gpus_released(self._gpu_held, pids, launch.gpus, self._node, begin, until))
        return tuple(out)

    def _end_without_keeper(self, limit: float, release: float) -> dict[str, Any]:
        """The keeper was killed: end what the registry and the marker still know of this start."""
        folder = registry.state_folder()
        known: tuple[Identity, ...] = (self._main,)
        shm: tuple[str, ...] = ()
        path = registry.entry_path(folder, self._plan.run_id, self._plan.name)
        try:
            entry = registry.read(path)
            known, shm = (*known, *entry.known), entry.shm
        except (OSError, ValueError, KeyError, TypeError):
            pass  # killed before it could write one; the marker is left
        ending = stopping.Ending(lambda: ours(self._plan.run_id, known), self._main, limit, release)
        left = ending.run()
        removed, held = stopping.remove_shm(shm)
        if not left and not held:
            path.unlink(missing_ok=True)
        return {
            "left": [[p.pid, p.identity.start, p.name] for p in left],
            "ended": ending.seen,
            "shm": sorted(shm),
            "shm_removed": removed,
            "shm_held": held,
        }

    def _describe(self, code: int, after: float) -> Exit:
        what = f"the engine's process (pid {self._main.pid})"
        if code >= 0:
            return Exit(self._node, code, "exited", f"{what} ended with exit code {code} after {after:.1f} s")
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if code == -signal.SIGKILL and oom_kills() > self._oom_before:
            text = f"{what} was killed after {after:.1f} s, and the kernel's out-of-memory killer was at work"
            return Exit(self._node, code, "oom-killed", text)
        return Exit(self._node, code, "killed", f"{what} was killed by {name} after {after:.1f} s")

    def _fact(
        self,
        name: str,
        value: Any,
        where: str,
        text: str,
        *,
        unit: str | None = None,
    ) -> Fact:
        evidence = Evidence("process", where, text[:400], node=self._node)
        return Fact(name, value, evidence, unit=unit, node=self._node)
