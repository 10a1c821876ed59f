"""On a node: the container of an engine, as the node's docker command and the kernel show it, and its processes.

The keeper's own child is only the ``docker`` command; the engine's processes are members of the container's control
group. They are watched (memory, ranks that die), and the port must be theirs.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_startup.launch.container.processes import ContainerProcesses
from pytest_startup.launch.identity import Identity, Process, identify
from pytest_startup.launch.nodes import steps as nodes_steps
from pytest_startup.launch.nodes.server import Server, of_exec

_POLL = 0.2
_LIMIT = 60.0
_CHUNK = 1 << 20


class Inside:
    """``found`` is called once, in a thread of ours, with what ``describe`` gives. ``files``: paths to be hashed.

    ``by_exec``: the engine is started by ``docker exec`` in a container that only idles.
    """

    def __init__(
        self,
        docker: Sequence[str],
        label: str,
        files: Sequence[str],
        launched_at: float,
        found: Callable[[dict[str, Any]], None],
        by_exec: bool = False,
    ) -> None:
        self.watch: ContainerProcesses | None = None
        self._main: Identity | None = None
        self._id = ""
        self._server: Server | None = None
        self._by_exec = by_exec
        self._docker = docker
        self._label = label
        self._files = files
        self._launched_at = launched_at
        self._found = found
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def pause(self) -> None:
        """Stop looking and watching. Idempotent."""
        self._over.set()
        if self.watch is not None:
            self.watch.pause()

    def living(self) -> list[Process]:
        """Its processes, where they can be seen."""
        return [] if self.watch is None else self.watch.living()

    def shm(self) -> Path | None:
        """Its /dev/shm, as this host can look into it; None: it was not seen yet."""
        return None if self._main is None else Path(f"/proc/{self._main.pid}/root/dev/shm")

    def server(self) -> Server | None:
        """What ``docker exec`` has started, the first that was seen; None: it is another kind, or nothing of it was."""
        if self._server is None and self._by_exec and self._main is not None:
            first = of_exec(self.living(), self._main)
            if first is not None:
                self._server = Server(self._docker, self._id, first)
        return self._server

    def _look(self) -> None:
        while not self._over.is_set():
            ids, _ = nodes_steps.containers(self._docker, self._label)
            seen = describe(self._docker, ids[0]) if ids else None
            main = identify(seen["pid"]) if seen is not None and seen["pid"] else None
            if seen is not None and main is not None:
                self.watch = ContainerProcesses(seen["id"], main, self._launched_at, frozenset(), lambda: None)
                self.watch.start()
                self._id, self._main = seen["id"], main
                files = {path: sha256_inside(self._docker, seen["id"], path) for path in self._files}
                self._found({**seen, "files": files})
                while self._by_exec and self.server() is None and not self._over.is_set():
                    self._over.wait(_POLL)
                return
            self._over.wait(_POLL)


def describe(docker: Sequence[str], container: str) -> dict[str, Any] | None:
    """``id``, ``name``, ``pid`` (0: it does not run), ``image`` (its id) and the image's repo ``digests``; None: it is
    not there."""
    rows = _json([*docker, "inspect", container])
    if not rows:
        return None
    seen = rows[0]
    images = _json([*docker, "image", "inspect", seen["Image"]]) or [{}]
    return {
        "id": seen["Id"],
        "name": seen["Name"].lstrip("/"),
        "pid": int(seen["State"].get("Pid") or 0),
        "image": seen["Image"],
        "digests": images[0].get("RepoDigests") or [],
    }


def sha256_inside(docker: Sequence[str], container: str, path: str) -> list[str | None]:
    """The hash of a file as the container sees it and None; or None and why not. Links are followed."""
    try:
        with subprocess.Popen(
            [*docker, "cp", "-L", f"{container}:{path}", "-"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            timer = threading.Timer(_LIMIT, process.kill)
            timer.start()
            try:
                return _of_archive(process)
            finally:
                timer.cancel()
                process.kill()
    except OSError as error:
        return [None, str(error)]


def _of_archive(process: subprocess.Popen[bytes]) -> list[str | None]:
    try:
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            member = archive.next()
            file = archive.extractfile(member) if member is not None and member.isfile() else None
            if file is None:
                return [None, "no plain file"]
            digest = hashlib.sha256()
            while block := file.read(_CHUNK):
                digest.update(block)
            return [digest.hexdigest(), None]
    except (tarfile.TarError, OSError) as error:
        said = process.stderr.read().decode("utf-8", "replace").strip() if process.stderr is not None else ""
        return [None, said[-200:] or str(error)]


def _json(argv: Sequence[str]) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT)
        rows = json.loads(done.stdout) if done.returncode == 0 else []
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [row for row in rows if isinstance(row, dict)]
