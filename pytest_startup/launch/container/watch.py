"""Watches one boot of a container: its end, and the daemon's absence, which is something else."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_startup.launch.base import Exit
from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, DaemonSlow, NotThere
from pytest_startup.launch.container.lifeline import Lifeline
from pytest_startup.launch.identity import Identity, alive, identify

#: Seconds between two looks at the container (one look costs the daemon 1 ms); an event of it comes before.
_INTERVAL = 0.2
#: Seconds for which a daemon may be away before the start is given up: it may be restarted, with the engine going on.
PATIENCE = 15.0
#: How a container ends that its daemon stops: by itself on TERM, by TERM, by KILL; a daemon that lost track says 255.
_EXIT_CODES = (0, 143, 137, 255)
_ENDED_BY_DAEMON = (0, -15, -9)
#: Seconds for which such an end may turn out to be the daemon's own.
_SHUTDOWN = 0.4


@dataclass(frozen=True)
class Boot:
    """One boot: ``started_at`` as the daemon says it; ``main`` the first process where this host's /proc shows it."""

    container: str
    name: str
    started_at: str
    pid: int
    main: Identity | None


def boot_of(seen: Mapping[str, Any]) -> Boot:
    """The boot that an inspected container is in."""
    state = seen["State"]
    pid = int(state.get("Pid") or 0)
    return Boot(seen["Id"], str(seen["Name"]).lstrip("/"), str(state["StartedAt"]), pid, main_process(seen["Id"], pid))


def main_process(container: str, pid: int) -> Identity | None:
    """The process with this pid if it is one of that container (where /proc is that of the daemon's host)."""
    if pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            if container not in file.read():
                return None
    except OSError:
        return None
    return identify(pid)


class Watcher:
    """A thread that looks at the container until it ends. ``returned`` is called when a daemon that was away is back.

    ``exec_over``: for an engine that was started by exec in a container that idles: its exit code once it has ended.
    """

    def __init__(
        self,
        daemon: Daemon,
        boot: Boot,
        node: str,
        launched_at: float,
        returned: Callable[[], None],
        exec_over: Callable[[], int | None] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.oom_seen = False
        self.absences: list[tuple[float, float]] = []
        self._daemon, self._boot, self._node = daemon, boot, node
        self._launched_at = launched_at
        self._returned, self._exec_over, self._patience = returned, exec_over, patience
        self._exit: Exit | None = None
        self._ended = threading.Event()
        self._stopped = threading.Event()
        self._news = threading.Event()
        self._lifeline = Lifeline(daemon, boot.container, self._news.set)
        self._away_since: float | None = None
        #: When the first call was made that got no answer; that it got none shows only when its time is over.
        self._silent_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="startup-container-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def exited(self) -> Exit | None:
        return self._exit

    def wait(self, timeout: float) -> Exit | None:
        self._ended.wait(timeout)
        return self._exit

    def stop(self) -> None:
        """Look a last time, and no more: how it ended is known behind a stop, too. Idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._news.set()
        self._lifeline.close()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(10.0)
        self._patience = 0.0
        if self._exit is None:
            self._exit = self._look()
            self._ended.set()

    def _run(self) -> None:
        self._lifeline.open()
        try:
            while not self._stopped.is_set():
                found = self._look()
                if found is not None:
                    self._exit = found
                    self._ended.set()
                    return
                self._news.wait(_INTERVAL)
                self._news.clear()
        finally:
            self._lifeline.close()

    def _look(self) -> Exit | None:
        broken = self._lifeline.broken
        asked = time.monotonic()
        try:
            seen = self._daemon.inspect(self._boot.container)
            code = self._exec_over() if self._exec_over is not None else None
        except NotThere:
            return self._describe("container-gone", None, "was removed by somebody else while the engine ran")
        except (DaemonLost, DaemonRefused) as error:
            self._silent_since = self._silent_since or asked
            return self._away(str(error), broken)
        if broken is None and not seen["State"].get("Running"):
            broken = self._lifeline.broken  # it was killed, came back and ended what it found, all within one look
        since = self._away_since if broken is None else min(broken, self._away_since or broken)
        was_away = since is not None
        if since is not None:
            begin = min(since, self._silent_since or since)
            self.absences.append((begin - self._launched_at, time.monotonic() - self._launched_at))
            self._away_since = self._silent_since = None
            self._lifeline.open()
        end = self.judge(seen["State"], was_away)
        if end is not None and self._goes_down(end):
            text = f"the container engine itself was shut down, and container {self._boot.name} with it: {end.text}"
            end = Exit(self._node, end.code, "daemon-lost", text)
        if end is None and code is not None:
            end = self._describe("exited", code, f"still runs, but the engine that was started in it ended with {code}")
        if end is None and was_away:
            self._returned()
        return end

    def _goes_down(self, end: Exit) -> bool:
        """An orderly shutdown of the daemon ends its containers first: does it go away right behind this end?"""
        if end.reason not in ("exited", "killed") or end.code not in _ENDED_BY_DAEMON or self._stopped.is_set():
            return False
        until = time.monotonic() + _SHUTDOWN
        while time.monotonic() < until and not self._stopped.wait(0.05):
            try:
                self._daemon.inspect(self._boot.container, _SHUTDOWN)
            except DaemonSlow:
                continue  # a busy host's daemon takes longer than that
            except DaemonLost:
                return True
            except (NotThere, DaemonRefused):
                return False
        return False

    def judge(self, state: Mapping[str, Any], was_away: bool) -> Exit | None:
        """What a container's state says of this boot; None: it still runs."""
        self.oom_seen = self.oom_seen or bool(state.get("OOMKilled"))
        if state.get("StartedAt") != self._boot.started_at:
            text = f"was restarted by somebody else at {state.get('StartedAt')}"
            return self._lost(text, None) if was_away else self._describe("exited", None, text)
        if state.get("Running") and not state.get("Restarting"):
            return None
        code = int(state.get("ExitCode") or 0)
        oom = bool(state.get("OOMKilled"))
        if self.absences and not oom and code in _EXIT_CODES and self._ended_near_absence(was_away):
            return self._lost(f"did not survive it (no live-restore): exit code {code}", code)
        said = str(state.get("Error") or "")
        because = f" ({said})" if said else ""
        if oom:
            return self._describe("oom-killed", code, f"hit its memory limit: OOMKilled, exit code {code}{because}")
        if 128 < code <= 192:
            return self._describe("killed", code, f"was killed by {_signal(code - 128)} (exit code {code}){because}")
        return self._describe("exited", code, f"ended with exit code {code}{because}")

    def _ended_near_absence(self, was_away: bool) -> bool:
        """Was the daemon away just before? It ends what it finds when it starts, a moment after it answers."""
        return was_away or time.monotonic() - self._launched_at - self.absences[-1][1] < 5.0

    def _away(self, why: str, broken: float | None) -> Exit | None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now if broken is None else broken
        main = self._boot.main
        ended = main is not None and not alive(main)
        if now - self._away_since < self._patience and not ended:
            return None
        engine = "" if main is None else f"; the engine's process (pid {main.pid}) {'ended' if ended else 'runs on'}"
        text = f"{why}, for {now - self._away_since:.1f} s by now{engine}"
        return Exit(self._node, None, "daemon-lost", text)

    def _lost(self, what: str, code: int | None) -> Exit:
        begin, end = self.absences[-1]
        text = (
            f"the container engine itself went away {begin:.1f} s after launch and was back at {end:.1f} s; "
            f"container {self._boot.name} {what}"
        )
        return Exit(self._node, code, "daemon-lost", text)

    def _describe(self, reason: str, code: int | None, what: str) -> Exit:
        after = time.monotonic() - self._launched_at
        shown = None if code is None else 128 - code if 128 < code <= 192 else code
        return Exit(
            self._node,
            shown,
            reason,
            f"container {self._boot.name} ({self._boot.container[:12]}) {what}, {after:.1f} s after launch",
        )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
