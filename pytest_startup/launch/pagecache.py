"""Drops files from the kernel's page cache without root, and says how much of them really went."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: mincore is asked for this many bytes at a time: the answer takes one byte per page.
_WINDOW = 1 << 30


@dataclass(frozen=True)
class Dropped:
    """What became of the page cache of a set of files. Sizes in bytes; ``before``/``after`` None: can't be told here.

    ``reasons``: why something stayed (files that can't be opened, pages that somebody has mapped or locked).
    """

    files: int
    size: int
    before: int | None
    after: int | None
    reasons: tuple[str, ...] = ()

    @property
    def complete(self) -> bool | None:
        """At most 1 % stayed; None: can't be told."""
        return None if self.after is None else not self.reasons and self.after <= self.size * 0.01

    @property
    def text(self) -> str:
        """One line for people."""
        if not self.files:
            return "; ".join(["page cache: nothing was dropped", *self.reasons])
        gib = 2**30
        text = f"page cache: {self.files} files, {self.size / gib:.2f} GiB"
        if self.after is None or self.before is None:
            text += "; how much was dropped can't be told here"
        else:
            text += f": {self.before / gib:.2f} GiB were cached, {self.after / gib:.2f} GiB still are"
        return "; ".join([text, *self.reasons])


def plain_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files of a checkpoint: ``paths`` themselves, or all below them; links are followed (model hubs use them)."""
    seen: set[str] = set()
    for path in paths:
        if path.is_file():
            found = [path]
        else:
            found = [Path(folder, n) for folder, _, names in os.walk(path, followlinks=True) for n in sorted(names)]
        for file in found:
            real = os.path.realpath(file)
            if real not in seen and os.path.isfile(real):
                seen.add(real)
                yield Path(real)


def drop_page_cache(paths: Iterable[Path]) -> Dropped:
    """Drop all files at or below ``paths`` (``POSIX_FADV_DONTNEED``). Never raises; needs no privileges.

    Pages that are dirty are written first. Pages that a process has mapped stay: stop the engine before.
    """
    files = size = 0
    before: int | None = 0
    after: int | None = 0
    reasons: list[str] = []
    for path in plain_files(paths):
        files += 1
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            reasons.append(f"{path} can't be opened: {error.strerror}")
            continue
        try:
            length = os.fstat(handle).st_size
            size += length
            before = _add(before, cached(handle, length))
            _sync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            left = cached(handle, length)
            after = _add(after, left)
            if left and left > max(length // 100, 16 * mmap.PAGESIZE):
                reasons.append(f"{path.name} keeps {left / 2**20:.1f} MiB (mapped by a process, or its file system)")
        except OSError as error:
            reasons.append(f"{path}: {error.strerror}")
        finally:
            os.close(handle)
    if not files:
        where = ", ".join(map(str, paths))
        reasons.append(f"no file found at {where}" if where else "no checkpoint is known: give launch.checkpoint")
    return Dropped(files, size, before, after, tuple(reasons))


def _add(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more


def _sync(handle: int) -> None:
    try:
        os.fdatasync(handle)
    except OSError:  # a read-only file system has nothing to write
        return


def cached(handle: int, length: int) -> int | None:
    """How many bytes of an open file are in the page cache; None where the kernel does not say (others' files).

    The kernel tells the truth only to those who own the file or may write to it; all others hear "all of it".
    """
    if length == 0:
        return 0
    seen = os.fstat(handle)
    if os.geteuid() not in (0, seen.st_uid) and not os.access(f"/proc/self/fd/{handle}", os.W_OK):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    resident = 0
    for offset in range(0, length, _WINDOW):
        part = min(_WINDOW, length - offset)
        pages = -(-part // mmap.PAGESIZE)
        place = libc.mmap(None, part, mmap.PROT_READ, mmap.MAP_SHARED, handle, offset)
        if place in (None, ctypes.c_void_p(-1).value):
            return None
        try:
            answer = ctypes.create_string_buffer(pages)
            if libc.mincore(place, part, answer) != 0:
                return None
            resident += sum(byte & 1 for byte in answer.raw[:pages])
        finally:
            libc.munmap(place, part)
    return min(length, resident * mmap.PAGESIZE)
