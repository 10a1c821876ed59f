"""A watched cache folder as a tree of hashed files; only what changed since the snapshot before is read again.

Nothing in a cache is ever imported, unpickled or executed: files are read as bytes, hashed, and the few that hold
JSON (tuning records, key factors) are parsed by ``cache_facts``.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from pytest_startup.observe.cache_facts import content_facts, wanted
from pytest_startup.record import CacheFile, CacheTree, Evidence, Fact

if TYPE_CHECKING:
    from pytest_startup.profile.model import CacheFolder

#: size, mtime, ctime (ns) and inode: a file with the same four is not read again.
Stamp = tuple[int, int, int, int]

#: A file that changed this shortly before it was hashed may change again without a new time stamp.
RACY_NS = 1_000_000_000
READ_TRIES = 3
CHUNK = 1 << 20
#: Larger files are hashed, but never parsed.
PARSE_LIMIT = 32 << 20
#: Why a part of a folder is not looked into. Where that is a whole folder (``BLIND``), its fact has ``folder`` true.
CLOSED = "a folder that can't be read"
LINKED = "a link to a folder elsewhere; not followed"
LINKED_FILE = "a link that leads out of the folder; not followed"
BLIND = (CLOSED, LINKED)


@dataclass(frozen=True)
class Snapshot:
    """A cache folder at one moment, and what makes the next snapshot of it cheap.

    ``facts`` are of source ``cache``: parsed tuning records and key factors (``cache_facts``), and ``cache.unreadable``
    for what could not be read (value: the path; detail ``reason``, and ``folder`` true for a whole one). ``hashed``
    counts the files read for this snapshot.
    """

    tree: CacheTree
    facts: tuple[Fact, ...] = ()
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict)
    hashed: int = 0


def snapshot(
    name: str,
    path: str | os.PathLike[str],
    *,
    kind: str = "other",
    node: str | None = None,
    before: Snapshot | None = None,
) -> Snapshot:
    """Read the folder ``path``. ``before``: an earlier snapshot of the same folder, whose hashes are used again.

    Never raises for what is in the folder: a folder that is not there gives ``exists`` False; a file that vanishes
    meanwhile is left out; one that can't be read, or changes at each of three tries, has ``sha256`` None and a
    ``cache.unreadable`` fact. Links to files are followed inside the folder only, links to folders never.
    """
    root = Path(path)
    problems: list[tuple[str, str]] = []
    try:
        there = stat.S_ISDIR(os.stat(root).st_mode)
    except OSError as error:
        there = False
        if not isinstance(error, FileNotFoundError):
            problems.append((".", f"{CLOSED}: {error.strerror or error}"))
    if not there:
        return _finish(name, str(path), kind, node, exists=False, problems=problems)
    entries: list[CacheFile] = []
    stamps: dict[str, Stamp] = {}
    contents: dict[str, bytes] = {}
    old = before.tree.by_path() if before and before.tree.path == str(path) else {}
    hashed = 0
    for found, info in _walk(root, problems):
        relative = _shown(found)
        known = old.get(relative)
        stamp = _stamp(info)
        if known and before and known.sha256 and before.stamps.get(relative) == stamp:
            entries.append(known)
            stamps[relative] = stamp
            if relative in before.contents:
                contents[relative] = before.contents[relative]
            continue
        keep = wanted(relative, kind)
        try:
            digest, data, info, settled = _read(f"{root}/{found}", info, keep)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append((relative, error.strerror or str(error)))
            entries.append(CacheFile(relative, info.st_size, info.st_mtime_ns))
            continue
        hashed += 1
        if digest is None:
            problems.append((relative, f"changed while it was read, {READ_TRIES} times"))
        elif settled:
            stamps[relative] = _stamp(info)
        if data is not None and digest is not None:
            contents[relative] = data
        entries.append(CacheFile(relative, info.st_size, info.st_mtime_ns, digest))
    return _finish(name, str(path), kind, node, True, entries, stamps, contents, problems, hashed)


def snapshots(
    folders: Iterable[CacheFolder], before: Mapping[str, Snapshot] | None = None, node: str | None = None
) -> dict[str, Snapshot]:
    """Snapshots of a profile's caches by name, each against the one of the same name in ``before``."""
    earlier = before or {}
    return {f.name: snapshot(f.name, f.path, kind=f.kind, node=node, before=earlier.get(f.name)) for f in folders}


def snapshot_tar(
    name: str, path: str, stream: IO[bytes], *, kind: str = "other", node: str | None = None, strip: int = 1
) -> Snapshot:
    """The same from a tar stream (a container's archive of ``path``, ``tar -c`` on a node); nothing is unpacked.

    ``strip`` leading parts of each member's name are dropped (a container engine puts the folder's own name there).
    Raises ValueError when the stream is no tar archive or ends early.
    """
    entries: list[CacheFile] = []
    contents: dict[str, bytes] = {}
    hashed = 0
    source = _Ending(stream)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|") as archive:
            for member in archive:
                relative = "/".join(p for p in PurePosixPath(member.name).parts if p not in ("/", "."))
                relative = "/".join(relative.split("/")[strip:])
                handle = archive.extractfile(member) if member.isreg() else None
                if handle is None or not relative:
                    continue
                keep = wanted(relative, kind) and member.size <= PARSE_LIMIT
                digest, data = _digest(handle, keep)
                hashed += 1
                if data is not None:
                    contents[relative] = data
                entries.append(CacheFile(relative, member.size, int(member.mtime * 1_000_000_000), digest))
        source.check()
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"cache {name} ({path}): the archive can't be read: {error}") from None
    return _finish(name, path, kind, node, True, entries, {}, contents, [], hashed)


class _Ending:
    """A stream that knows how it ended: ``tarfile`` takes an archive cut between two members for a whole one."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._tail = b""

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._tail = (self._tail + data)[-1024:]
        return data

    def check(self) -> None:
        """Raise EOFError unless the rest of the stream is there, two blocks of zeros at its end."""
        while self.read(CHUNK):
            pass
        if len(self._tail) < 1024 or any(self._tail):
            raise EOFError("it ends early")


def facts_of(*moments: Mapping[str, Snapshot]) -> tuple[Fact, ...]:
    """The facts of several moments (before, after) for one record, each distinct content once."""
    seen: dict[tuple[object, ...], Fact] = {}
    for moment in moments:
        for shot in moment.values():
            for fact in shot.facts:
                key = (fact.name, fact.node, fact.evidence.where, fact.detail.get("sha256"), str(fact.value)[:200])
                seen.setdefault(key, fact)
    return tuple(seen.values())


def _walk(root: Path, problems: list[tuple[str, str]]) -> Iterator[tuple[str, os.stat_result]]:
    """Every regular file below ``root`` as (relative path with ``/``, its stat), in no particular order."""
    real_root = os.path.realpath(root)
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(f"{root}/{folder}") as listing:
                children = list(listing)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append((folder or ".", f"{CLOSED}: {error.strerror or error}"))
            continue
        for child in children:
            relative = f"{folder}/{child.name}" if folder else child.name
            try:
                if child.is_symlink():
                    target = os.path.realpath(child.path)
                    if os.path.commonpath((real_root, target)) != real_root:
                        problems.append((relative, LINKED if os.path.isdir(target) else LINKED_FILE))
                        continue
                    info = os.stat(child.path)
                    if not stat.S_ISREG(info.st_mode):
                        continue
                elif child.is_dir(follow_symlinks=False):
                    pending.append(relative)
                    continue
                else:
                    info = child.stat(follow_symlinks=False)
            except OSError:
                continue  # vanished since it was listed, or a link to nothing
            if stat.S_ISREG(info.st_mode):
                yield relative, info


def _read(path: str, info: os.stat_result, keep: bool) -> tuple[str | None, bytes | None, os.stat_result, bool]:
    """Hash a file that may be written meanwhile: hash, content if kept, its last stat, and can that stat be trusted?

    The hash is None when the file changed during each try. Raises OSError.
    """
    for _ in range(READ_TRIES):
        begun = time.time_ns()
        # O_NONBLOCK: a FIFO put in the file's place must not block the snapshot.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as handle:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise FileNotFoundError(path)
            digest, data = _digest(handle, keep and before.st_size <= PARSE_LIMIT)
            info = os.fstat(descriptor)
        if _stamp(before) == _stamp(info):
            settled = max(info.st_mtime_ns, info.st_ctime_ns) < begun - RACY_NS
            return digest, data, info, settled
    return None, None, info, False


def _digest(handle: IO[bytes], keep: bool) -> tuple[str, bytes | None]:
    digest = hashlib.sha256()
    kept: list[bytes] = []
    while chunk := handle.read(CHUNK):
        digest.update(chunk)
        if keep:
            kept.append(chunk)
    return digest.hexdigest(), b"".join(kept) if keep else None


def _shown(relative: str) -> str:
    """The path as text that can be written: bytes of a file name that are no UTF-8 as ``\\xff``."""
    return relative.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _stamp(info: os.stat_result) -> Stamp:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def _finish(
    name: str,
    path: str,
    kind: str,
    node: str | None,
    exists: bool,
    entries: Iterable[CacheFile] = (),
    stamps: Mapping[str, Stamp] | None = None,
    contents: Mapping[str, bytes] | None = None,
    problems: Iterable[tuple[str, str]] = (),
    hashed: int = 0,
) -> Snapshot:
    files = tuple(sorted(entries, key=lambda f: f.path))
    tree = CacheTree(name=name, path=path, exists=exists, node=node, files=files)
    unreadable = tuple(
        Fact(
            name="cache.unreadable",
            value=_shown(where),
            evidence=Evidence("cache", f"{name}/{_shown(where)}", reason, node=node),
            node=node,
            detail={"cache": name, "reason": reason, **({"folder": True} if reason.startswith(BLIND) else {})},
        )
        for where, reason in sorted(problems)
    )
    facts = content_facts(tree, contents or {}, kind) + unreadable
    return Snapshot(tree, facts, stamps or {}, contents or {}, hashed)
