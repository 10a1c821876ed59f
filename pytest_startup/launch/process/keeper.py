"""The engine's parent: starts it, moves its log, watches its processes, and ends all of them when told or orphaned.

It is a process of its own (``reaper.py``) so that a busy, stopped or killed pytest neither blocks the engine nor leaves
it behind. It adopts every orphan below it (subreaper), so that it knows all of the engine's processes, those that
left the session too. Talks JSON lines: commands on stdin (``stop``, ``keep``, ``facts``), events on stdout.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_startup.launch import registry, stopping
from pytest_startup.launch.exits import is_ending
from pytest_startup.launch.identity import Identity, Process, identify
from pytest_startup.launch.memory import shm_events
from pytest_startup.launch.process.pump import Pump
from pytest_startup.launch.process.watch import Watch
from pytest_startup.redact import Redactor

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: Seconds without output after which an unfinished line is written, whatever else goes on meanwhile.
QUIET = 0.25
#: Seconds from TERM to KILL when pytest has died: nobody waits for a clean end any more.
ORPHAN_LIMIT = 5.0
#: Seconds after KILL until processes that the kernel does not end (stuck in a driver) are left to the next run.
ORPHAN_GIVE_UP = 60.0


@dataclass(frozen=True)
class Spec:
    """What pytest asks for. ``state`` is the registry's folder; ``shm`` the names below /dev/shm before the start."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    lines: str
    run_id: str
    start: str
    owner: list[int]
    state: str
    port: int
    folder: str
    command: str
    started_at: str
    shm: list[str]
    secrets: list[str]


class Keeper:
    """One start. ``run`` returns when nothing of it is left, or when what is left can't be ended."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._selector = selectors.DefaultSelector()
        self._commands = b""
        self._orphaned = False
        self._told_to_end = False
        self._kept = False
        self._ending: stopping.Ending | None = None
        self._exited = False
        #: Was the first process on its way out before anybody was told to stop?
        self._left = False
        self._entry_lock = threading.Lock()

    def run(self) -> None:
        """Start the engine and keep it to its end; returns when all is over and said."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wake, alarm = os.pipe()
        os.set_blocking(alarm, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: what is ignored stays ignored in the engine.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_told_to_end", True))
        engine = self._launch(libc)
        if engine is None:
            return
        self._selector.register(0, selectors.EVENT_READ, "commands")
        self._selector.register(wake, selectors.EVENT_READ, "wake")
        self._selector.register(self._pump.pipe, selectors.EVENT_READ, "pump")
        shm = shm_events()
        if shm >= 0:
            self._selector.register(shm, selectors.EVENT_READ, "shm")
        self._watch.start()
        try:
            while not self._finished():
                for key, _ in self._selector.select(self._pause()):
                    if key.data == "commands":
                        self._read_commands()
                    elif key.data == "wake":
                        os.read(wake, 4096)
                    elif key.data == "shm":
                        os.read(shm, 65536)
                        self._watch.shm_created()
                    elif not self._pump.pump() and self._pump.closed:
                        self._selector.unregister(key.fd)
                if time.monotonic() - self._pump.moved_at >= QUIET:
                    self._pump.flush()
                self._reap()
                self._tick()
                if self._told_to_end:
                    self._end(ORPHAN_LIMIT, ORPHAN_GIVE_UP)
        finally:
            if self._ending is None:  # an error of ours must not leave the engine behind
                stopping.Ending(self._watch.living, self._main, 0.0, 30.0).run()

    def _launch(self, libc: ctypes.CDLL) -> subprocess.Popen[bytes] | None:
        spec = self.spec
        read, write = os.pipe()
        me = os.getpid()

        def die_with_parent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != me:
                os._exit(127)

        launched_at = time.monotonic()
        try:
            self._pump = self._open_log(read, launched_at)
        except OSError as error:
            self._say("failed", text=f"the log {spec.log} can't be written: {error.strerror}")
            return None
        try:
            engine = subprocess.Popen(
                spec.argv,
                cwd=spec.cwd,
                env=spec.env,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # safe: no thread runs yet
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._say("failed", text=_reason(spec, error))
            return None
        os.close(write)
        self._main = identify(engine.pid) or Identity(engine.pid, 0)
        self._watch = Watch(self._main, launched_at, frozenset(spec.shm), self._record)
        self._record()
        self._say("started", pid=engine.pid, start=self._main.start, at=launched_at)
        return engine

    def _open_log(self, pipe: int, launched_at: float) -> Pump:
        redacted = Redactor(self.spec.secrets).stream()
        return Pump(pipe, Path(self.spec.log), Path(self.spec.lines), launched_at, redacted)

    def _record(self) -> None:
        """Write what we have started where the next run finds it."""
        spec = self.spec
        with self._entry_lock, contextlib.suppress(OSError):
            registry.write(
                Path(spec.state),
                registry.Entry(
                    run_id=spec.run_id,
                    start=spec.start,
                    kind="process",
                    owner=self._owner(),
                    keeper=identify(os.getpid()),
                    known=tuple(sorted(self._watch.known)),
                    port=spec.port,
                    folder=spec.folder,
                    command=spec.command,
                    started_at=spec.started_at,
                    shm=tuple(sorted(self._watch.shm)),
                    kept=self._kept,
                    labels=self._labels(),
                    boot=registry.boot_id(),
                    namespace=registry.pid_namespace(),
                ),
            )

    def _owner(self) -> Identity:
        """Whose death makes an orphan of what runs here."""
        return Identity(*self.spec.owner)

    def _labels(self) -> dict[str, str]:
        """What else the next run must know to remove this start."""
        return {}

    def _tick(self) -> None:
        """Done in every round of the loop, at least four times a second."""
        if os.getppid() != self.spec.owner[0]:
            self._owner_died()

    def _pause(self) -> float:
        if self._ending is not None:
            return self._ending.pause
        return QUIET

    def _reap(self) -> None:
        """Take the exit codes of all children that have ended, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._main.pid and not self._exited:
                self._exited = True
                self._pump.drain()
                code, alone = os.waitstatus_to_exitcode(status), self._ending is None or self._left
                self._say("exit", code=code, at=time.monotonic(), alone=alone)

    def _read_commands(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self._selector.unregister(0)
            self._owner_died()
            return
        *whole, self._commands = (self._commands + data).split(b"\n")
        for line in whole:
            self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        if command["do"] == "stop":
            self._end(command["limit"], command["give_up"])
        elif command["do"] == "keep":
            self._kept = True
            self._record()
            self._say("keep")
        elif command["do"] == "facts":
            if not self._exited and self._ending is None:
                self._watch.look_well()
                self._reap()
            self._say("facts", **self._figures())

    def _owner_died(self) -> None:
        if not self._orphaned:
            self._orphaned = True
            if not self._kept:
                self._end(ORPHAN_LIMIT, ORPHAN_GIVE_UP)

    def _end(self, limit: float, give_up: float) -> None:
        if self._ending is None:
            self._watch.pause()
            self._reap()  # who has gone by now did so by itself
            self._left = is_ending(self._main)
            self._ending = stopping.Ending(self._watch.living, self._main, limit, give_up)
        else:
            self._ending.hurry(limit)

    def _finished(self) -> bool:
        if self._ending is None:
            # Left up on purpose and orphaned: our work is done when the engine has ended by itself.
            return self._orphaned and self._exited and not self._watch.living() and self._close(())
        return self._ending.step() and self._close(self._ending.left)

    def _close(self, left: tuple[Process, ...]) -> bool:
        self._watch.pause()
        self._reap()
        limit = time.monotonic() + 1.0
        while not (self._pump.closed and self._exited) and time.monotonic() < limit:
            if self._pump.closed or not self._pump.pump():
                time.sleep(0.01)
            self._reap()
        self._pump.close()
        removed, held = stopping.remove_shm(self._watch.shm)
        if not left and not held:
            with self._entry_lock:
                registry.entry_path(Path(self.spec.state), self.spec.run_id, self.spec.start).unlink(missing_ok=True)
        self._say(
            "ended",
            left=[[p.pid, p.identity.start, p.name] for p in left],
            ended=self._ending.seen if self._ending else [],
            killed=bool(self._ending and self._ending.killed),
            shm=sorted(self._watch.shm),
            shm_removed=removed,
            shm_held=held,
            **self._figures(),
        )
        return True

    def _figures(self) -> dict[str, Any]:
        watch = self._watch
        return {
            "peak": asdict(watch.peak) if watch.peak else None,
            "processes": len(watch.known),
            "lost": watch.lost,
            "log_error": self._pump.error,
            "bytes": self._pump.received,
        }

    def _say(self, event: str, **members: Any) -> None:
        with contextlib.suppress(OSError):  # pytest has died; nobody listens
            sys.stdout.write(json.dumps({"event": event, **members}) + "\n")
            sys.stdout.flush()


def _reason(spec: Spec, error: Exception) -> str:
    if not os.path.isdir(spec.cwd):
        return f"working folder {spec.cwd} is not there"
    if isinstance(error, FileNotFoundError):
        return f"command {spec.argv[0]!r} not found (PATH={spec.env.get('PATH', '')})"
    if isinstance(error, PermissionError):
        return f"command {spec.argv[0]!r} may not be executed: {error.strerror}"
    return f"command {spec.argv[0]!r} can't be started: {error}"


def main() -> None:
    """Read the spec (first line of stdin), keep the engine, leave at once when done."""
    keeper: Keeper | None = None
    try:
        first = b""
        while not first.endswith(b"\n"):  # unbuffered: what follows belongs to the selector
            byte = os.read(0, 1)
            if not byte:
                return
            first += byte
        keeper = Keeper(Spec(**json.loads(first)))
        keeper.run()
    except BaseException:
        with contextlib.suppress(OSError):
            sys.stdout.write(json.dumps({"event": "fault", "text": traceback.format_exc()}) + "\n")
            sys.stdout.flush()
    os._exit(0)  # the watching thread may still sleep
