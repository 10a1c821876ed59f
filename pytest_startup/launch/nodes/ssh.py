"""The operator's own ssh: one master connection per node, whose end is noticed; argument lists only.

Keys, jump hosts, known hosts and user names are those of the operator's configuration. Nothing is ever asked
(``BatchMode``). The remote side hands a command to the login shell of its user: that is how ssh works, and the one
shell that we can't avoid; ``shlex.join`` quotes for it (any POSIX shell).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_startup.launch.base import LaunchError

#: Seconds between two signs of life, and how many may be missed: a cut network ends the connection within 4 s.
ALIVE_INTERVAL = 1
ALIVE_COUNT = 3
CONNECT_LIMIT = 15


class SshMaster:
    """The master connection to one node. ``open`` raises LaunchError with what ssh said."""

    def __init__(self, target: str, config: Path | None = None) -> None:
        self.target = target
        self._config = config
        self._folder = tempfile.mkdtemp(prefix="pts-", dir=short_folder())
        self._control = os.path.join(self._folder, "m")
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = os.path.join(self._folder, "e")

    def open(self) -> None:
        """Connect, unless connected. Returns within the connection limit."""
        if self.alive():
            return
        self._end()
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                [*self._ssh(), "-M", "-N", "-o", "ControlPersist=no", self.target],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        limit = time.monotonic() + CONNECT_LIMIT + 2
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                said = self.errors() or f"exit code {self._process.returncode}"
                raise LaunchError(f"ssh {self.target}: {said}")
            if os.path.exists(self._control) and self._check():
                return
            time.sleep(0.02)
        self._end()
        raise LaunchError(f"ssh {self.target}: no connection within {CONNECT_LIMIT} s")

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def errors(self) -> str:
        """The last lines that ssh itself has said, on one line."""
        try:
            text = Path(self._errors).read_text("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return "; ".join(lines[-3:])

    def command(self, argv: Sequence[str]) -> list[str]:
        """The local argument list that runs ``argv`` on the node over the master connection."""
        return [*self._ssh(), "-T", self.target, "--", shlex.join(argv)]

    def close(self) -> None:
        """End the connection and all that runs over it. Idempotent."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ssh(self) -> list[str]:
        config = ["-F", str(self._config)] if self._config is not None else []
        options = {
            "BatchMode": "yes",
            "ControlPath": self._control,
            "ControlMaster": "no",
            "ConnectTimeout": str(CONNECT_LIMIT),
            "ServerAliveInterval": str(ALIVE_INTERVAL),
            "ServerAliveCountMax": str(ALIVE_COUNT),
            "ExitOnForwardFailure": "yes",
            "ForwardAgent": "no",
            "ForwardX11": "no",
        }
        return ["ssh", *config, *(part for k, v in options.items() for part in ("-o", f"{k}={v}"))]

    def _check(self) -> bool:
        """Does the master answer?"""
        try:
            done = subprocess.run(
                [*self._ssh(), "-O", "check", self.target],
                capture_output=True,
                timeout=CONNECT_LIMIT,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(3.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def short_folder() -> str | None:
    """A folder in which the path of a socket stays short enough: /tmp, unless it can't be written."""
    return "/tmp" if os.access("/tmp", os.W_OK) else None  # noqa: S108 - mkdtemp makes a folder of our own
