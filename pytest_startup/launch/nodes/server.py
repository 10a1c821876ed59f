"""On a node: an engine that ``docker exec`` has started in a container that idles: which process it is, and its end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_startup.launch.container.processes import pid_inside
from pytest_startup.launch.identity import Identity, Process, alive, look, send
from pytest_startup.launch.nodes import steps as nodes_steps
from pytest_startup.launch.stopping import Ending

#: Seconds for the ``docker exec`` command to end once its process has: what that left behind may hold its output.
_COMMAND = 2.0


@dataclass(frozen=True)
class Server:
    """The process. A TERM to the ``docker exec`` command ends that command only and never reaches it."""

    docker: Sequence[str]
    container: str
    main: Identity

    def living(self) -> list[Process]:
        """Itself, or nothing when it has ended."""
        process = look(self.main.pid)
        return [process] if process is not None and process.identity == self.main and process.runs else []

    def term(self) -> None:
        """By the kernel, or, where the processes of the daemon are not ours to signal, by the container's ``kill``."""
        inside = pid_inside(self.main.pid)
        if not send(self.main, signal.SIGTERM) and alive(self.main) and inside is not None:
            nodes_steps.run([*self.docker, "exec", self.container, "kill", "-TERM", str(inside)])


def of_exec(processes: Sequence[Process], main: Identity) -> Identity | None:
    """Of a container's processes the oldest that none of them has started: what ``docker exec`` has put there.

    What others leave behind there when they end falls to the container's first process, ``main``.
    """
    pids = {p.pid for p in processes}
    put = [p.identity for p in processes if p.parent not in pids and p.identity != main]
    return min(put, key=lambda one: one.start, default=None)


class ServerEnding(Ending):
    """TERM to the server, which has the whole allowance; then the end of its command (``living``).

    What does not end by itself goes with its container.
    """

    def __init__(
        self,
        server: Server,
        living: Callable[[], Sequence[Process]],
        main: Identity | None,
        limit: float,
        give_up: float,
    ) -> None:
        super().__init__(self._now, main, limit, give_up)
        self._server = server
        self._command = living
        self._over = False

    def _now(self) -> Sequence[Process]:
        serves = [] if self._over else self._server.living()
        if serves and time.monotonic() < self._kill_at:
            return serves
        if not self._over:
            self._over = True
            self.hurry(_COMMAND)
        return self._command()

    def _term(self, living: Sequence[Process]) -> None:
        if self._over:
            super()._term(living)
        else:
            self._server.term()
