"""A log that is a file inside a container: what comes in is followed, from where this boot's part of it begins."""

from __future__ import annotations

import os
import tarfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere
from pytest_startup.launch.container.facts import ArchiveReader
from pytest_startup.launch.logfiles import LogFiles
from pytest_startup.redact import Redactor

_CHUNK = 1 << 18
#: Seconds between two looks at a file that this host can read, and between two archives of one that it can't.
_LOOK = 0.1
_ASK = 1.0
#: Bytes at the beginning of a log by which it is known to be still the one of before.
_HEAD = 4096
#: The share of the time that asking for archives may take: each holds the whole file.
_SHARE = 0.05


@dataclass(frozen=True)
class Earlier:
    """What a log file held before this boot (a volume keeps it): so many bytes, which began with ``head``."""

    size: int = 0
    head: bytes = b""


class FilePump:
    """A thread that follows ``path`` in a container into the node's files, behind what it held ``before``.

    ``pid`` is the container's first process where this host's /proc shows it: then the file is read through it, else
    the daemon is asked for it again and again. A file that shrank, or begins otherwise than before, was begun anew, and
    is read from its start.
    """

    def __init__(
        self,
        daemon: Daemon,
        container: str,
        path: str,
        pid: int,
        node: Path,
        redactor: Redactor,
        at: float,
        before: Earlier,
    ) -> None:
        self.offset = before.size
        self._head: bytes = before.head
        self._daemon, self._container, self._path, self._pid = daemon, container, path, pid
        self._launched_at = at
        self._files = LogFiles(node / "engine.log", node / "lines.tsv", redactor.stream())
        self._seen = False
        self._problem: str | None = None
        self._last_call = threading.Event()
        self._thread = threading.Thread(target=self._run, name="startup-container-file-log", daemon=True)

    @property
    def error(self) -> str | None:
        return self._files.error or self._problem

    def start(self) -> None:
        self._thread.start()

    def reopen(self) -> None:
        """Nothing stays open between two looks."""

    def finish(self, timeout: float) -> bool:
        """The container has ended: read what is left. Idempotent."""
        self._last_call.set()
        self._thread.join(timeout + 5.0)
        return not self._thread.is_alive() and self._problem is None

    def _run(self) -> None:
        pause = _LOOK
        while not self._last_call.wait(pause):
            pause = self._look()
        self._ask()
        self._files.close()

    def _look(self) -> float:
        handle = open_inside(self._pid, self._path) if self._pid else None
        if handle is None:
            begun = time.monotonic()
            self._ask()
            return max(_ASK, (time.monotonic() - begun) / _SHARE)
        with os.fdopen(handle, "rb", buffering=0) as file:
            if not self._read(cast("IO[bytes]", file), os.fstat(handle).st_size):
                self._files.flush()
        return _LOOK

    def _read(self, file: IO[bytes], size: int) -> bool:
        """Take what is new of a file of ``size`` bytes that can be sought; False: nothing."""
        self._seen = True
        file.seek(0)
        self._begun_anew(file.read(len(self._head)) if self._head else b"", size)
        file.seek(self.offset)
        new = False
        while self.offset < size and (data := file.read(min(_CHUNK, size - self.offset))):
            self._take(data)
            new = True
        return new

    def _begun_anew(self, head: bytes, size: int) -> None:
        """Is it not the file of before? ``head`` is how it begins now. Once something of this boot is read: by size."""
        if size < self.offset or (self._head and head != self._head):
            self.offset = 0
        self._head = b"" if size > self.offset else self._head

    def _take(self, data: bytes) -> None:
        self.offset += len(data)
        self._files.feed(data, time.monotonic() - self._launched_at)

    def _ask(self) -> None:
        """The same from an archive, which can only be read forward."""
        try:
            pieces = self._daemon.archive(self._container, self._path)
            try:
                with tarfile.open(fileobj=cast("IO[bytes]", ArchiveReader(pieces)), mode="r|") as archive:
                    member = archive.next()
                    file = archive.extractfile(member) if member is not None and member.isreg() else None
                    if member is not None and file is not None:
                        self._seen = True
                        head = file.read(len(self._head)) if self._head else b""
                        self._begun_anew(head, member.size)
                        self._skip_and_take(file, head)
            finally:
                pieces.close()
            self._problem = None
        except NotThere:
            self._problem = None if self._seen else f"there is no {self._path} in the container"
        except (DaemonLost, DaemonRefused, tarfile.TarError, EOFError) as error:
            self._problem = f"the log is incomplete: {error}"

    def _skip_and_take(self, file: IO[bytes], head: bytes) -> None:
        """``head``: what of ``file`` has been read already."""
        left = max(0, self.offset - len(head))
        if self.offset < len(head):
            self._take(head[self.offset :])
        while left and (data := file.read(min(_CHUNK, left))):
            left -= len(data)
        while data := file.read(_CHUNK):
            self._take(data)
        self._files.flush()


def open_inside(pid: int, path: str) -> int | None:
    """A descriptor of ``path`` as process ``pid`` sees it; None where that can't be had.

    No link is followed: one that begins with ``/`` would lead into this host's own files.
    """
    try:
        folder = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    parts = PurePosixPath(path).parts[1:]
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except (OSError, IndexError):
        return None
    finally:
        os.close(folder)


def held_inside(daemon: Daemon, container: str, path: str) -> Earlier:
    """What a file holds in a container, created, running or stopped. Raises DaemonLost, DaemonRefused."""
    try:
        pieces = daemon.archive(container, path)
    except NotThere:
        return Earlier()
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", ArchiveReader(pieces)), mode="r|") as archive:
            member = archive.next()
            file = archive.extractfile(member) if member is not None and member.isreg() else None
            if member is None or file is None:
                return Earlier()
            return Earlier(member.size, file.read(min(_HEAD, member.size)))
    except (tarfile.TarError, EOFError):
        return Earlier()
    finally:
        pieces.close()
