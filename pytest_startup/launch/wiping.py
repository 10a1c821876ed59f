"""Wipes a cache folder that the profile names: never another one, never through a link, at once out of the way."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from pytest_startup.launch.base import LaunchError
from pytest_startup.profile.model import CacheFolder


class WipeRefused(LaunchError):
    """The folder is not one that may be wiped. The message says which and why."""


#: Folders that are nobody's cache as a whole, whatever a profile says.
_NEVER = frozenset(
    """
/ /bin /boot /dev /dev/shm /etc /home /lib /lib64 /media /mnt /opt /proc /root /run /run/user /sbin /srv /sys /tmp
/usr /usr/local /var /var/cache /var/lib /var/tmp
""".split()  # noqa: SIM905 - a list of words reads better
)


def why_refused(cache: CacheFolder, keep: Iterable[Path] = ()) -> str | None:
    """Why this folder is not wiped; None when it may be. ``keep``: paths that must not lie in it."""
    path = cache.path
    if not path.is_absolute() or ".." in path.parts:
        return f"cache {cache.name}: {path} is not an absolute path without '..'"
    real = Path(os.path.realpath(path))
    if path.is_symlink():
        return f"cache {cache.name}: {path} is a link (to {real}); name the folder itself"
    if str(real) in _NEVER or len(real.parts) < 3:
        return f"cache {cache.name}: {real} is not a folder of its own"
    home = Path(os.path.realpath(os.path.expanduser("~")))
    if real == home or real in home.parents:
        return f"cache {cache.name}: {real} is or holds the home folder {home}"
    cwd = Path.cwd()
    if real == cwd or real in cwd.parents:
        return f"cache {cache.name}: {real} is or holds the current folder {cwd}"
    for other in keep:
        inside = Path(os.path.realpath(other))
        if real == inside or real in inside.parents:
            return f"cache {cache.name}: {real} holds {inside}, which is not a cache"
    if real.exists() and not real.is_dir():
        return f"cache {cache.name}: {real} is not a folder"
    if os.path.ismount(real):
        return f"cache {cache.name}: {real} is a mount point; name a folder below it"
    return None


def wipe(cache: CacheFolder, keep: Iterable[Path] = ()) -> str:
    """Remove the folder; what was done, in a sentence. It is first renamed, so that nobody finds half of it; links in
    it are removed, not followed. ``keep``: paths that must not lie in it (profile, checkpoint).

    Raises WipeRefused. When only the removal failed, nothing stands under the cache's name any more.
    """
    reason = why_refused(cache, keep)
    if reason is not None:
        raise WipeRefused(f"nothing is wiped: {reason}")
    path = Path(os.path.realpath(cache.path))
    if not path.exists():
        return f"cache {cache.name} was not there ({path})"
    files, size = _content(path)
    aside = path.with_name(f".{path.name}.wiped-{secrets.token_hex(4)}")
    try:
        os.rename(path, aside)
        shutil.rmtree(aside)  # does not follow links, nor such as are put in its way meanwhile
    except OSError as error:
        raise WipeRefused(f"cache {cache.name}: {path} can't be wiped: {error.strerror} ({error.filename})") from error
    return f"cache {cache.name} wiped: {files} files, {size / 2**20:.1f} MiB ({path})"


def _content(path: Path) -> tuple[int, int]:
    files = size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                seen = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            files += 1
            size += seen.st_size if stat.S_ISREG(seen.st_mode) else 0
    return files, size
