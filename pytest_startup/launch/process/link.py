"""The line between pytest and a keeper process: starts it, sends commands, receives events."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.identity import identify
from pytest_startup.launch.process import reaper

#: A keeper is up within 0.1 s; a host that is loaded beyond measure gets this many seconds.
_LIMIT = 60.0


class KeeperLink:
    """A keeper process. Events are kept by name, the last of each; whoever waits is woken at each one.

    ``gone`` is true when the keeper has ended: after ``ended`` that is its normal end, without it it was killed.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._news = threading.Condition()
        self._events: dict[str, dict[str, Any]] = {}
        self._write_lock = threading.Lock()
        self.gone = False
        threading.Thread(target=self._receive, name="pytest-startup-keeper", daemon=True).start()

    @classmethod
    def start(cls, spec: Mapping[str, object], handles: Sequence[int] = ()) -> KeeperLink:
        """Start a keeper and, through it, the engine. Raises LaunchError when either can't be started.

        ``spec`` are the members of ``keeper.Spec``, the owner and the time left out. ``handles`` are lock files that
        must stay locked until the keeper has ended, also when this process dies before it.
        """
        me = identify(os.getpid())
        if me is None or not sys.executable:
            raise LaunchError("the local process launcher needs Linux with /proc, and a Python executable")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reaper.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=tuple(handles),
            cwd="/",
        )
        link = cls(process)
        started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        link.send({**spec, "owner": [me.pid, me.start], "started_at": started_at})
        link.wait(("started", "failed", "fault"), _LIMIT)
        if link.event("started") is not None:
            return link
        link.close()
        failed, fault = link.event("failed"), link.event("fault")
        if failed is not None:
            raise LaunchError(str(failed["text"]))
        text = fault["text"] if fault is not None else f"exit code {process.returncode}"
        raise LaunchError(f"the process that should start the engine failed: {text}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Mapping[str, object]) -> bool:
        """False when the keeper has ended."""
        data = (json.dumps(command) + "\n").encode()
        stdin = self._process.stdin
        try:
            with self._write_lock:
                if stdin is None or stdin.closed:
                    return False
                stdin.write(data)
                stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def event(self, name: str) -> dict[str, Any] | None:
        """The last event of this name that the keeper has sent; None: none yet."""
        return self._events.get(name)

    def wait(self, names: Sequence[str], timeout: float) -> bool:
        """Wait until one of these events is there or the keeper has ended; False when ``timeout`` seconds passed."""
        with self._news:
            return self._news.wait_for(lambda: self.gone or any(n in self._events for n in names), timeout)

    def ask(self, command: str, timeout: float) -> dict[str, Any] | None:
        """Send a command that is answered by the event of the same name; None when no answer came."""
        with self._news:
            self._events.pop(command, None)
        if self.send({"do": command}):
            self.wait((command,), timeout)
        return self.event(command)

    def close(self) -> None:
        """Wait for the keeper's own end, which follows its last event at once, and take its exit code."""
        with contextlib.suppress(OSError, ValueError), self._write_lock:
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)

    def forget(self) -> None:
        """The keeper stays after us: not an error of which the interpreter's end should warn."""
        self._process.returncode = 0

    def _take(self, name: str, event: dict[str, Any]) -> None:
        """An event has come. Called with the condition held, by the receiving thread."""
        self._events[name] = event

    def _receive(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            return
        with stdout:
            for line in stdout:
                with contextlib.suppress(ValueError, KeyError, TypeError), self._news:
                    event = json.loads(line)
                    self._take(event.pop("event"), event)
                    self._news.notify_all()
        with self._news:
            self.gone = True
            self._news.notify_all()
