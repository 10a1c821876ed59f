"""An engine that is started by exec in a container that idles: its output, its end, its stop signal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere
from pytest_startup.launch.container.processes import pid_inside
from pytest_startup.launch.container.watch import main_process
from pytest_startup.launch.identity import Identity, alive, send
from pytest_startup.launch.logfiles import LogFiles
from pytest_startup.redact import Redactor

_POLL = 0.05
#: Seconds until a daemon knows the pid of what it has started.
_PID = 5.0
#: Of an output that is not the log, this much of its end is kept for messages.
_TAIL = 2000


class Exec:
    """One engine in a running container. Raises DaemonLost, DaemonRefused, NotThere when it can't be started."""

    def __init__(
        self,
        daemon: Daemon,
        container: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        user: str | None,
        working_dir: str | None,
    ) -> None:
        options: dict[str, object] = {"environment": dict(env)}
        if user is not None:
            options["user"] = user
        if working_dir is not None:
            options["workdir"] = working_dir
        self._daemon, self._container, self._user = daemon, container, user
        self._id = daemon.exec_create(container, argv, **options)
        self._output = daemon.exec_start(self._id)
        self._problem: str | None = None
        self._files: LogFiles | None = None
        self._tail = b""
        self._thread: threading.Thread | None = None
        self.main: Identity | None = main_process(container, self._pid())

    @property
    def error(self) -> str | None:
        return (self._files.error if self._files is not None else None) or self._problem

    @property
    def tail(self) -> str:
        """The end of an output that is not the log."""
        return self._tail.decode("utf-8", "replace").strip()

    def _pid(self) -> int:
        """As the daemon says, which knows it a moment after the start."""
        end = time.monotonic() + _PID
        while True:
            seen = self._daemon.exec_inspect(self._id)
            pid = int(seen.get("Pid") or 0)
            if pid or not seen.get("Running") or time.monotonic() > end:
                return pid
            time.sleep(_POLL)

    def exit_code(self) -> int | None:
        """None while it runs. Raises DaemonLost, NotThere."""
        seen = self._daemon.exec_inspect(self._id)
        return None if seen.get("Running") else int(seen.get("ExitCode") or 0)

    def follow(self, node: Path | None, redactor: Redactor, launched_at: float) -> None:
        """Move its output into the node's files; ``node`` None: the log is elsewhere, only the end of it is kept.

        The daemon keeps no copy of it: what comes while the connection is broken is lost, and ``error`` says so.
        """
        if node is not None:
            self._files = LogFiles(node / "engine.log", node / "lines.tsv", redactor.stream())
        args = (launched_at, redactor)
        self._thread = threading.Thread(target=self._run, args=args, name="startup-exec-log", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """It runs already; ``follow`` began it."""

    def reopen(self) -> None:
        """There is no way back to an output that was cut off."""

    def finish(self, timeout: float) -> bool:
        """Wait for the end of the output."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._output.close()
            self._thread.join(5.0)
        return self._problem is None

    def end(self, limit: float) -> float:
        """TERM to the engine itself, which a container's stop would not send it; the seconds that are left to stop.

        When it has ended, what idles in the container needs no time of its own.
        """
        begin = time.monotonic()
        if self.main is None or not alive(self.main):
            return limit
        if not send(self.main, signal.SIGTERM) and not self._term_inside(self.main.pid):
            return 0.0
        while alive(self.main) and time.monotonic() < begin + limit:
            time.sleep(_POLL)
        return 0.0

    def _term_inside(self, pid: int) -> bool:
        """By the ``kill`` of the container, if it has one: not everybody may signal the processes of a daemon."""
        inside = pid_inside(pid)
        if inside is None:
            return False
        options = {} if self._user is None else {"user": self._user}
        try:
            made = self._daemon.exec_create(self._container, ["kill", "-TERM", str(inside)], **options)
            output = self._daemon.exec_start(made)
            try:
                for _ in output:
                    pass
            finally:
                output.close()
            return self._daemon.exec_inspect(made).get("ExitCode") == 0
        except (DaemonLost, DaemonRefused, NotThere):
            return False

    def _run(self, launched_at: float, redactor: Redactor) -> None:
        try:
            for data in self._output:
                if self._files is not None:
                    self._files.feed(data, time.monotonic() - launched_at)
                else:
                    self._tail = redactor.text((self._tail + data)[-_TAIL:].decode("utf-8", "replace")).encode()
            if self.exit_code() is None:
                self._problem = "the log is incomplete: the engine's output was cut off while it still ran"
        except NotThere:
            pass  # the container was removed meanwhile; the watch says so
        except (DaemonLost, DaemonRefused) as error:
            self._problem = f"the log is incomplete: {error}"
        finally:
            self._output.close()
            if self._files is not None:
                self._files.close()
