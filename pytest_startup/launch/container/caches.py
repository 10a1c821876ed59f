"""Cache folders that a profile names by their path in the container: looked at and wiped wherever they really are."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.container.daemon import Daemon, DaemonRefused, NotThere
from pytest_startup.launch.container.facts import ArchiveReader
from pytest_startup.launch.container.options import host_path, mounts
from pytest_startup.launch.wiping import WipeRefused, wipe
from pytest_startup.observe.caches import Snapshot, snapshot, snapshot_tar
from pytest_startup.profile.model import CacheFolder, ContainerLaunch
from pytest_startup.record import CacheTree

#: What removes a folder in a container of the engine's image, and the seconds for it.
_RM = ("rm", "-rf", "--")
_WIPE = 120.0


class ContainerCaches:
    """The caches of one container profile. Raises DaemonLost and DaemonRefused where the daemon has to be asked."""

    def __init__(self, daemon: Daemon, container: ContainerLaunch, labels: Mapping[str, str]) -> None:
        self._daemon, self._container, self._labels = daemon, container, labels

    def look(self, cache: CacheFolder, made: str | None, before: Snapshot | None) -> Snapshot:
        """``made``: id of the container that holds what is in no volume; None: there is none yet."""
        if cache.container is None:
            return snapshot(cache.name, cache.path, kind=cache.kind, before=before)
        folder = self.folder(cache.container)
        if folder is not None:
            return snapshot(cache.name, folder, kind=cache.kind, before=before)
        empty = Snapshot(CacheTree(name=cache.name, path=cache.container, exists=False))
        with self._holder(cache.container, made) as holder:
            if holder is None:
                return empty
            try:
                pieces = self._daemon.archive(holder, cache.container)
            except NotThere:
                return empty
            try:
                stream = cast("IO[bytes]", ArchiveReader(pieces))
                return snapshot_tar(cache.name, cache.container, stream, kind=cache.kind)
            finally:
                pieces.close()

    @contextlib.contextmanager
    def _holder(self, inside: str, made: str | None) -> Iterator[str | None]:
        """A container that has this path: ``made``, or one that is only created, never started, for a volume or folder
        that is the daemon's to enter and not ours. None: there is no such thing yet."""
        mount = None if made is not None else self._mount_of(inside)
        if made is not None or mount is None:
            yield made
            return
        body = {
            "Image": self._container.image,
            "Cmd": ["true"],
            "Labels": dict(self._labels),
            "HostConfig": {"Mounts": [mount], "NetworkMode": "none"},
        }
        looker = self._daemon.create(body, f"pytest-startup-look-{uuid.uuid4().hex[:12]}")
        try:
            yield looker
        finally:
            with contextlib.suppress(NotThere):
                self._daemon.remove(looker)

    def _mount_of(self, inside: str) -> dict[str, Any] | None:
        """The mount that this path lies in, read-only, and as it is: no volume is made or filled by looking at it."""
        found = host_path(self._container, inside)
        if found is None:
            return None
        if not found[0].startswith("/"):
            try:
                self._daemon.volume(found[0])
            except NotThere:
                return None
        wanted = next(one for one in mounts(self._container) if one["Source"] == found[0])
        return {
            **wanted,
            "ReadOnly": True,
            **({"VolumeOptions": {"NoCopy": True}} if wanted["Type"] == "volume" else {}),
        }

    def folder(self, inside: str) -> Path | None:
        """The folder of this host that a path of the container is; None: in no mount, or not for us to see."""
        found = host_path(self._container, inside)
        if found is None:
            return None
        source = Path(found[0])
        if not source.is_absolute():
            try:
                source = Path(str(self._daemon.volume(found[0])["Mountpoint"]))
            except NotThere:
                return None  # it is made at the first start
        if not os.access(source, os.R_OK | os.X_OK):
            return None
        folder = source / found[1]
        real, root = os.path.realpath(folder), os.path.realpath(source)
        # A link that the engine has made may lead anywhere on this host.
        return folder if os.path.commonpath((real, root)) == root else None

    def wipe(self, cache: CacheFolder, made: str | None, keep: Iterable[Path]) -> str:
        """Empty it; what was done, in a sentence. ``made``: a container that stays (None: a new one will be made).

        Raises WipeRefused.
        """
        inside = cache.container
        folder = cache.path if inside is None else self.folder(inside)
        if folder is not None:
            kept = _manner(folder)
            if inside is not None and _is_root(self._container, self._daemon, folder):
                return f"cache {cache.name} wiped: {_empty(folder)} entries ({folder})"
            said = wipe(CacheFolder(cache.name, folder, cache.kind), keep)
            _again(folder, kept)
            return said
        assert inside is not None  # noqa: S101 - narrows the type: without it there is a folder
        found = host_path(self._container, inside)
        if found is None:
            if made is None:
                return f"cache {cache.name} is in no volume ({inside}): it goes with the old container"
            raise WipeRefused(
                f"nothing is wiped: cache {cache.name} ({inside}) is in no volume of the container, which is started "
                "again as it is; use kind: fresh-container, or put the cache into a volume"
            )
        source, rest = found
        if not source.startswith("/") and not rest and made is None:
            try:
                self._daemon.remake_volume(source)
            except NotThere:
                return f"cache {cache.name} was not there (volume {source})"
            return f"cache {cache.name} wiped: volume {source} was made anew"
        why = "" if source.startswith("/") or not rest else self._wipe_inside(inside)
        if why is None:
            return f"cache {cache.name} wiped: {inside}, in volume {source}, by the image's own rm"
        raise WipeRefused(
            f"nothing is wiped: cache {cache.name} ({inside}) lies in {source}, which uid {os.getuid()} may not enter"
            f"{why}; run as root, or give the cache a volume of its own and restart it with kind: fresh-container"
        )

    def _wipe_inside(self, inside: str) -> str | None:
        """Remove a folder in a volume that is not ours to enter: a container of the image, with nothing else mounted
        and no network, runs ``rm``. None: done; else why not, to be put behind a sentence."""
        mount = self._mount_of(inside)
        if mount is None:
            return None
        body = {
            "Image": self._container.image,
            "Entrypoint": [*_RM, inside],
            "User": "0",
            "Labels": dict(self._labels),
            "HostConfig": {"Mounts": [{**mount, "ReadOnly": False}], "NetworkMode": "none"},
        }
        wiper = self._daemon.create(body, f"pytest-startup-wipe-{uuid.uuid4().hex[:12]}")
        try:
            self._daemon.start(wiper)
            until = time.monotonic() + _WIPE
            while (state := self._daemon.inspect(wiper)["State"]).get("Running") and time.monotonic() < until:
                time.sleep(0.05)
            if state.get("Running"):
                return f", and rm in a container did not end within {_WIPE:g} s"
            code = int(state.get("ExitCode") or 0)
            return f", and rm in a container ended with {code}" if code else None
        except DaemonRefused as error:
            return f", and a container of the image can't do it ({error})"
        finally:
            with contextlib.suppress(NotThere):
                self._daemon.remove(wiper)


def _manner(folder: Path) -> os.stat_result | None:
    try:
        return os.lstat(folder)
    except OSError:
        return None


def _again(folder: Path, seen: os.stat_result | None) -> None:
    """A wiped folder may be what is mounted: it must be there, empty and of the same owner."""
    if seen is None or folder.exists():
        return
    try:
        folder.mkdir()
        os.chmod(folder, stat.S_IMODE(seen.st_mode))
        if os.geteuid() == 0:
            os.chown(folder, seen.st_uid, seen.st_gid)
    except OSError as error:
        raise LaunchError(f"{folder} was wiped, and can't be made again: {error.strerror}") from None


def _is_root(container: ContainerLaunch, daemon: Daemon, folder: Path) -> bool:
    """Is it the whole of a named volume? The daemon's own folder must stay where it is."""
    for source in container.volumes:
        if not source.startswith("/"):
            try:
                if str(folder) == str(daemon.volume(source)["Mountpoint"]):
                    return True
            except NotThere:
                continue
    return False


def _empty(folder: Path) -> int:
    """Remove all that is in it, following no links; how many entries there were."""
    count = 0
    for child in list(os.scandir(folder)):
        count += 1
        if child.is_dir(follow_symlinks=False):
            shutil.rmtree(child.path)
        else:
            os.unlink(child.path)
    return count


def snapshots(
    caches: Iterable[CacheFolder], where: ContainerCaches, made: str | None, before: Mapping[str, Snapshot]
) -> dict[str, Snapshot]:
    """Of all these caches by name; ``made``: the container to look into, None: there is none yet."""
    return {c.name: where.look(c, made, before.get(c.name)) for c in caches}
