"""What runs of ours have started and not yet removed: one small state file each, so that the next run can clean up."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_startup.launch.identity import Identity, alive

_SCHEMA = 1


class UnsafeFolder(Exception):
    """The state folder belongs to somebody else, or others may write into it. The message says which and why."""


@dataclass(frozen=True)
class Entry:
    """One started thing. ``owner`` is the pytest process, ``keeper`` the process that ends it when pytest dies.

    ``kind`` process or container (``labels`` then says which one, and where its daemon is). ``known`` are all
    processes seen of it. ``shm`` are names below ``/dev/shm`` that its processes had open. ``kept``: left up on
    purpose (``--startup-keep``), so it is only removed on request. ``boot`` and ``namespace`` tell where pids count.
    """

    run_id: str
    start: str
    kind: str
    owner: Identity
    keeper: Identity | None = None
    known: tuple[Identity, ...] = ()
    port: int | None = None
    folder: str = ""
    command: str = ""
    started_at: str = ""
    shm: tuple[str, ...] = ()
    kept: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    boot: str = ""
    namespace: str = ""


def boot_id() -> str:
    """Of this boot of the host: pids of another one mean nothing. Empty where it can't be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """``pid:[4026531836]``: pids of another one are not ours to judge. Empty where it can't be read."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def state_folder(environment: Mapping[str, str] | None = None, create: bool = True) -> Path:
    """``$XDG_RUNTIME_DIR/pytest-startup`` or ``/tmp/pytest-startup-<uid>``, made with mode 0700 if it is missing.

    ``create`` False: a missing one stays missing (it then holds no entries).

    Raises UnsafeFolder for a link, another owner, or a folder into which others may write.
    """
    env = os.environ if environment is None else environment
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        folder = Path(runtime) / "pytest-startup"
    else:
        folder = Path(f"/tmp/pytest-startup-{os.getuid()}")  # noqa: S108 - owner, mode and links are checked below
    if not create and not os.path.lexists(folder):
        return folder
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UnsafeFolder(f"the state folder {folder} can't be made: {error.strerror}") from error
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or stat.S_IMODE(seen.st_mode) & 0o022:
        raise UnsafeFolder(
            f"the state folder {folder} must be a folder of uid {os.getuid()} into which nobody else may write, "
            f"not {stat.filemode(seen.st_mode)} of uid {seen.st_uid}; remove it or set XDG_RUNTIME_DIR"
        )
    return folder


def entry_path(folder: Path, run_id: str, start: str) -> Path:
    """Where the entry of a start lies; names of runs and starts are made safe for a file's name."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in f"{run_id}--{start}")
    return folder / f"{safe[:200]}.json"


def write(folder: Path, entry: Entry) -> Path:
    """Write or replace an entry; a reader sees the old or the new one, never a half."""
    path = entry_path(folder, entry.run_id, entry.start)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"schema": _SCHEMA, **asdict(entry)}, file)
    os.replace(draft, path)
    return path


def remove(folder: Path, entry: Entry) -> None:
    """Forget the entry of a start of which nothing is left."""
    entry_path(folder, entry.run_id, entry.start).unlink(missing_ok=True)


def _identity(data: Any) -> Identity | None:
    return None if data is None else Identity(int(data["pid"]), int(data["start"]))


def read(path: Path) -> Entry:
    """Raises OSError, ValueError, KeyError or TypeError for a file that is not an entry of this version."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, encoding="utf-8") as file:
        data = json.load(file)
    if data.pop("schema") != _SCHEMA:
        raise ValueError("another schema")
    owner = _identity(data.pop("owner"))
    if owner is None:
        raise ValueError("no owner")
    known = tuple(Identity(int(i["pid"]), int(i["start"])) for i in data.pop("known"))
    keeper = _identity(data.pop("keeper"))
    return Entry(owner=owner, keeper=keeper, known=known, **{**data, "shm": tuple(data["shm"])})


def entries(folder: Path) -> Iterator[Entry]:
    """All readable entries, oldest name first; files that are not entries are left alone."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue


def title(entry: Entry) -> str:
    """What was started, when and by which run, on one line."""
    kept = ", left up on purpose" if entry.kept else ""
    return f"{entry.kind} of run {entry.run_id}, {entry.start}, started {entry.started_at}{kept}: {entry.command}"


def orphaned(entry: Entry) -> bool:
    """Has the run that started it ended, so that nobody else will remove it (a keeper does not end what is kept)?

    Entries of another pid namespace can't be judged and are never orphaned; after a reboot all are.
    """
    if entry.boot != boot_id():
        return True
    if entry.namespace != pid_namespace():
        return False
    return not alive(entry.owner) and (entry.kept or entry.keeper is None or not alive(entry.keeper))
