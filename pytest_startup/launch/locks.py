"""Host-wide kernel locks: one run at a time per GPU and per port. The kernel releases them when their holders die."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_startup.launch.identity import command_line, opened

#: Another folder for the lock files; all runs that share GPUs or ports must use the same one.
FOLDER_VARIABLE = "PYTEST_STARTUP_LOCKS"
_DEFAULT = "/tmp/pytest-startup-locks"  # noqa: S108 - made sticky like /tmp itself; files are opened without links
_POLL = 0.1
_NOTICE = 20.0


class LockTaken(Exception):
    """Somebody else has it. The message names what, who, and since when."""


class LockUnusable(Exception):
    """The lock folder or file can't be used safely. The message says why and what to do."""


@dataclass
class _Held:
    handle: int
    count: int


#: Locks of this process by path: taken once more by the same process they are counted, not waited for.
_held: dict[Path, _Held] = {}


def lock_folder() -> Path:
    """The folder of the lock files, made if missing: writable by all, each may only remove his own (as /tmp)."""
    folder = Path(os.environ.get(FOLDER_VARIABLE) or _DEFAULT)
    try:
        folder.mkdir(mode=0o1777, parents=True)
        os.chmod(folder, 0o1777)  # noqa: S103 - as /tmp; mkdir obeys the umask
    except FileExistsError:
        pass
    except OSError as error:
        raise LockUnusable(f"the lock folder {folder} can't be made: {error.strerror}") from error
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode):
        raise LockUnusable(f"the lock folder {folder} is not a folder (a link?); remove it or set {FOLDER_VARIABLE}")
    shared = seen.st_mode & stat.S_IWOTH
    if shared and not seen.st_mode & stat.S_ISVTX:
        raise LockUnusable(f"the lock folder {folder} is writable by all without the sticky bit: chmod 1777 {folder}")
    if not shared and seen.st_uid != os.getuid():
        raise LockUnusable(f"the lock folder {folder} of uid {seen.st_uid} is not writable for others: chmod 1777 it")
    return folder


def lock_path(kind: str, name: str) -> Path:
    """``gpu`` and a UUID, or ``port`` and a number."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return lock_folder() / f"{kind}-{safe}.lock"


def _open(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    for mode in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR, os.O_RDONLY):
        try:
            handle = os.open(path, mode | flags, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise LockUnusable(f"the lock {path} is a link; remove it") from error
            last = error
            continue
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise LockUnusable(f"the lock {path} is not a plain file; remove it")
        if mode & os.O_CREAT:
            with contextlib.suppress(OSError):
                os.fchmod(handle, 0o666)  # others may write their names into it while they hold it
        return handle
    raise LockUnusable(f"the lock {path} can't be opened: {last.strerror}")


class Lock:
    """A lock that is held. ``handle`` may be inherited: the lock then lasts until all who have it have ended."""

    def __init__(self, kind: str, name: str, path: Path) -> None:
        self.kind = kind
        self.name = name
        self.path = path
        self._released = False

    @property
    def handle(self) -> int:
        return _held[self.path].handle

    def release(self) -> None:
        """Give it back, for whoever inherited it too. Idempotent."""
        if self._released:
            return
        self._released = True
        held = _held[self.path]
        held.count -= 1
        if held.count == 0:
            del _held[self.path]
            with contextlib.suppress(OSError):
                if self.kind == "port":  # there would be one file for each port ever used
                    self.path.unlink()
                else:
                    os.ftruncate(held.handle, 0)
            fcntl.flock(held.handle, fcntl.LOCK_UN)
            os.close(held.handle)


def _try(path: Path, owner: str) -> bool:
    if path in _held:
        _held[path].count += 1
        return True
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    if not _still_there(handle, path):
        os.close(handle)
        return False  # its holder has removed it meanwhile; the next attempt makes a new one
    note = {"pid": os.getpid(), "owner": owner, "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with contextlib.suppress(OSError):  # another user's file may be read-only for us: the lock holds all the same
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(note).encode(), 0)
    _held[path] = _Held(handle, 1)
    return True


def _still_there(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except OSError:
        return False


def holder(path: Path) -> str:
    """Who holds the lock, as far as it can be told: ``run X (pid 12: pytest …) since …``. The kernel's word first."""
    pids = _kernel_holders(path)
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        owner, since, pid = str(note["owner"]), str(note["since"]), int(note["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        owner, since, pid = "somebody", "", 0
    living = [p for p in (pid, *pids) if p and os.path.exists(f"/proc/{p}")] or _inheritors(path)
    who = f" (pid {living[0]}: {command_line(living[0])})" if living else f" (pid {pid}, which has died)" if pid else ""
    return f"{owner}{who}{f' since {since}' if since else ''}"


def _kernel_holders(path: Path) -> list[int]:
    try:
        seen = os.stat(path)
        with open("/proc/locks", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []
    place = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    return [int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == place and int(row[4]) > 0]


def _inheritors(path: Path) -> list[int]:
    """Who has the lock file open after its taker has died: the process that is still ending the engine."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        if str(path) in opened(int(name)):
            found.append(int(name))
    return found


def is_free(kind: str, name: str) -> bool:
    """Could it be taken now? Creates and keeps nothing."""
    folder = Path(os.environ.get(FOLDER_VARIABLE) or _DEFAULT)
    if not folder.is_dir():
        return True
    path = lock_path(kind, name)
    if path in _held or not path.exists():
        return True
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def take(
    wanted: Sequence[tuple[str, str]],
    owner: str,
    wait: float = 0.0,
    notice: Callable[[str], None] | None = None,
) -> list[Lock]:
    """Take all of ``wanted`` (``(kind, name)``) or none. ``owner`` is what others read while they wait.

    Always in one order, so that two runs can't wait for each other. Waits up to ``wait`` seconds in all; ``notice``
    hears at once, and about every 20 s, for what. Raises LockTaken with the holder, or LockUnusable.
    """
    limit = time.monotonic() + wait
    got: list[Lock] = []
    try:
        for kind, name in sorted(set(wanted)):
            path = lock_path(kind, name)
            next_notice = time.monotonic()
            while not _try(path, owner):
                now = time.monotonic()
                if now >= limit:
                    waited = f" after waiting {wait:.0f} s" if wait else ""
                    raise LockTaken(f"{kind} {name} is still in use{waited}: {holder(path)}")
                if notice is not None and now >= next_notice:
                    notice(f"waiting for {kind} {name}, in use by {holder(path)}; {limit - now:.0f} s left")
                    next_notice = now + _NOTICE
                time.sleep(min(_POLL, max(0.0, limit - now)))
            got.append(Lock(kind, name, path))
    except BaseException:
        for lock in got:
            lock.release()
        raise
    return got
