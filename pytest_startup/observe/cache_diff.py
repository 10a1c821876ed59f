"""Two moments of a watched cache folder compared, by the content of its files."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_startup.record import CacheFile, CacheTree


@dataclass(frozen=True)
class Difference:
    """Paths of two trees: only in the second, other content, equal, only in the first; each sorted.

    A file of unknown hash on either side is ``same`` only if size and mtime are equal. ``rewritten`` are files of equal
    content whose mtime moved (a library that writes its cache back on every start); they are in ``same`` too.
    """

    new: tuple[str, ...]
    changed: tuple[str, ...]
    same: tuple[str, ...]
    gone: tuple[str, ...]
    rewritten: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)


def diff(before: CacheTree | None, after: CacheTree | None) -> Difference:
    """What changed from one tree to another; a tree that is None or does not exist is empty."""
    old = before.by_path() if before else {}
    new = after.by_path() if after else {}
    both = sorted(old.keys() & new.keys())
    same = [p for p in both if same_content(old[p], new[p])]
    equal = set(same)
    return Difference(
        new=tuple(sorted(new.keys() - old.keys())),
        changed=tuple(p for p in both if p not in equal),
        same=tuple(same),
        gone=tuple(sorted(old.keys() - new.keys())),
        rewritten=tuple(p for p in same if old[p].mtime_ns != new[p].mtime_ns),
    )


def same_content(one: CacheFile, other: CacheFile) -> bool:
    """Equal hashes; where a hash is missing, equal size and mtime."""
    if one.sha256 and other.sha256:
        return one.sha256 == other.sha256
    return (one.size, one.mtime_ns) == (other.size, other.mtime_ns)
