"""Facts of a running container: its image, command, environment, and the files in it as it sees them."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere
from pytest_startup.profile.model import ContainerFile, Profile
from pytest_startup.record import JSON, Evidence, Fact
from pytest_startup.redact import Redactor

_CHUNK = 1 << 20
#: A reference of a hub's cache is one line of 40 hex digits.
_SMALL = 4096
_HUB = "/root/.cache/huggingface/hub"


class Unreadable(Exception):
    """A file in a container that can't be read. The message says why."""


def identity_facts(seen: Mapping[str, Any], image: Mapping[str, Any], node: str, redactor: Redactor) -> list[Fact]:
    """``container.image`` (the id that really runs), ``.id``, ``.name``, ``.command``, ``.env``, ``.started_at``,
    ``.options``; and ``process.argv``: the command line with which the container was made."""
    config, host = seen["Config"], seen["HostConfig"]
    argv = redactor.argv([str(seen.get("Path", "")), *map(str, seen.get("Args") or ())])
    env = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
    digests = [str(d) for d in image.get("RepoDigests") or ()]
    where = f"container {str(seen['Id'])[:12]}"

    def fact(name: str, value: JSON, text: str, **detail: JSON) -> Fact:
        return Fact(name, value, Evidence("container", where, text[:400], node=node), node=node, detail=detail)

    options: dict[str, JSON] = {
        key: cast("JSON", host[key])
        for key in ("NetworkMode", "IpcMode", "ShmSize", "Runtime", "Memory", "Ulimits", "CapAdd", "DeviceRequests")
        if host.get(key)
    }
    hidden_env = cast("dict[str, JSON]", redactor.json(env))
    return [
        fact("container.image", str(seen["Image"]), f"image {seen['Image']}, made from {config.get('Image')}",
             digests=cast("JSON", digests), tags=cast("JSON", [str(t) for t in image.get("RepoTags") or ()])),
        fact("container.id", str(seen["Id"]), str(seen["Id"])),
        fact("container.name", str(seen["Name"]).lstrip("/"), str(seen["Name"]).lstrip("/")),
        fact("container.command", cast("JSON", argv), " ".join(argv)),
        fact("container.env", hidden_env, f"{len(env)} variables"),
        fact("container.started_at", str(seen["State"]["StartedAt"]), f"StartedAt {seen['State']['StartedAt']}"),
        fact("container.options", options, ", ".join(sorted(options))),
        fact("process.argv", cast("JSON", argv), " ".join(argv)),
    ]  # fmt: skip


def file_facts(daemon: Daemon, container: str, profile: Profile, node: str) -> list[Fact]:
    """``file.sha256`` of each pinned file as the running container sees it; detail ``path`` and ``expected``.

    A file that can't be read there has a ``file.unreadable`` fact instead, so that nothing passes for it.
    """
    out = []
    for file in profile.launch.container.files if profile.launch.container else ():
        detail: dict[str, JSON] = {"path": file.path, "host": str(file.host), "expected": file.sha256}
        where = f"container {container[:12]}:{file.path}"
        try:
            digest = sha256_inside(daemon, container, file.path)
            evidence = Evidence("container", where, f"sha256 {digest} in the container", node=node)
            out.append(Fact("file.sha256", digest, evidence, node=node, detail=detail))
        except (Unreadable, NotThere, DaemonRefused, DaemonLost) as error:
            evidence = Evidence("container", where, str(error)[:400], node=node)
            out.append(Fact("file.unreadable", file.path, evidence, node=node, detail=detail))
    return out


def revision_facts(daemon: Daemon, container: str, profile: Profile, env: Mapping[str, str], node: str) -> list[Fact]:
    """``engine.revision``: the commit that a hub's cache in the container holds for the model; empty if none shows."""
    model = profile.engine.model
    if model.startswith(("/", ".")):
        parts = PurePosixPath(model).parts
        commit = parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else ""
        where = model
    else:
        hub = env.get("HF_HUB_CACHE") or (f"{env['HF_HOME']}/hub" if env.get("HF_HOME") else _HUB)
        wanted = _option(profile.engine.args, "--revision") or "main"
        where = f"{hub}/models--{model.replace('/', '--')}/refs/{wanted}"
        try:
            commit = read_inside(daemon, container, where).decode("ascii", "replace").strip()
        except (Unreadable, NotThere, DaemonRefused, DaemonLost):
            return []
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return []
    evidence = Evidence("container", f"container {container[:12]}:{where}", commit, node=node)
    return [Fact("engine.revision", commit, evidence, node=node)]


def _option(args: tuple[str, ...], name: str) -> str | None:
    for number, arg in enumerate(args):
        if arg == name and number + 1 < len(args):
            return args[number + 1]
        if arg.startswith(f"{name}="):
            return arg.partition("=")[2]
    return None


class ArchiveReader:
    """A stream of pieces as a file that ``tarfile`` can read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        """As a file does; all that is left where ``size`` is negative."""
        while size < 0 or len(self._held) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._held += piece
        cut = len(self._held) if size < 0 else size
        data, self._held = self._held[:cut], self._held[cut:]
        return data


def _member(daemon: Daemon, container: str, path: str) -> Iterator[bytes]:
    pieces = daemon.archive(container, path)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", ArchiveReader(pieces)), mode="r|") as archive:
            member = archive.next()
            handle = archive.extractfile(member) if member is not None and member.isreg() else None
            if handle is None:
                raise Unreadable(f"{path} is no regular file in the container")
            while chunk := handle.read(_CHUNK):
                yield chunk
    except (tarfile.TarError, EOFError) as error:
        raise Unreadable(f"{path}: what the daemon sent is no archive: {error}") from None
    finally:
        pieces.close()


def sha256_inside(daemon: Daemon, container: str, path: str) -> str:
    """Raises Unreadable, NotThere, DaemonLost, DaemonRefused."""
    digest = hashlib.sha256()
    for chunk in _member(daemon, container, path):
        digest.update(chunk)
    return digest.hexdigest()


def read_inside(daemon: Daemon, container: str, path: str) -> bytes:
    """The first 4 KiB of a file. Raises as ``sha256_inside``."""
    out = io.BytesIO()
    for chunk in _member(daemon, container, path):
        out.write(chunk[:_SMALL])
        break
    return out.getvalue()


def sha256_of(path: Path) -> str:
    """Of a file of this host. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def file_problems(profile: Profile) -> list[str]:
    """Files to be mounted that are not there, or not the pinned ones; each with its place in the profile."""
    out = []
    for number, file in enumerate(profile.launch.container.files if profile.launch.container else ()):
        place = profile.place(f"launch.container.files.{number}")
        problem = file_problem(file)
        if problem:
            out.append(f"{place}: {problem}")
    return out


def file_problem(file: ContainerFile) -> str | None:
    """Why a file that is to be mounted is not the pinned one; None: it is."""
    if not file.host.is_file():
        return f"{file.host} is not there or no file; it is to be mounted at {file.path}"
    if file.sha256 is None:
        return None
    try:
        seen = sha256_of(file.host)
    except OSError as error:
        return f"{file.host} can't be read: {error.strerror}"
    if seen != file.sha256:
        return (
            f"{file.host} is not the pinned file: its sha256 is {seen}, expected {file.sha256}; restore the file, or "
            "validate the new one and pin it"
        )
    return None
