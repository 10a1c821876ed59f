"""What a node is, looked at from itself, for the preflight and the record. Runs on the node; touches nothing."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_startup.launch import locks, ports, registry
from pytest_startup.launch.nodes import gpus as nodes_gpus
from pytest_startup.launch.nodes import steps as nodes_steps
from pytest_startup.observe.host import host_facts, meminfo, shm_facts
from pytest_startup.record import Evidence, Fact
from pytest_startup.record_json import fact_to_json

#: Files of a checkpoint that are hashed whole; all others count by name and size (a shard takes minutes to hash).
_HASHED = 1 << 20


def host(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The facts of ``observe.host.host_facts``, and ``engine.revision`` where a folder of ``checkpoint`` tells it."""
    facts = host_facts()
    for path in asked["checkpoint"]:
        if found := revision(Path(path)):
            facts.append(Fact("engine.revision", found, Evidence("host", path, f"revision {found}")))
    return [fact_to_json(fact) for fact in facts]


def revision(path: Path) -> str | None:
    """The commit of a checkpoint that a hub has loaded: of its folder (``models--…``, by ``refs/main``) or snapshot."""
    name = path.name if path.parent.name == "snapshots" else ""
    if path.name.startswith("models--"):
        try:
            name = (path / "refs" / "main").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
    return name if re.fullmatch(r"[0-9a-f]{40}", name) else None


def inspect(asked: Mapping[str, Any]) -> dict[str, Any]:
    """All at once. ``asked``: address, ports, locks, gpus, checkpoint, caches, files, command, cwd, path."""
    return {
        "name": platform.node(),
        "page_size": os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "memory": {k: v for k, v in meminfo().items() if k in ("MemTotal", "MemAvailable")},
        "shm_free": _free("/dev/shm"),  # noqa: S108 - only looked at
        "shm_stale": [[f.detail["path"], f.value] for f in shm_facts() if f.name == "host.shm_stale"],
        "address": _own(asked["address"]),
        "ports": {str(p): taken for p in asked["ports"] if (taken := ports.why_taken(asked["address"], p))},
        "locks": {
            f"{k} {n}": locks.holder(locks.lock_path(k, n)) for k, n in asked["locks"] if not locks.is_free(k, n)
        },
        "kept": kept(),
        "checkpoint": {p: manifest(Path(p)) for p in asked["checkpoint"]},
        "file_systems": {p: file_system(p) for p in (*asked["checkpoint"], *asked["caches"].values())},
        "caches": asked["caches"],
        "files": {p: sha256(Path(p)) for p in asked["files"]},
        "docker": nodes_steps.inspect(**asked["docker"]) if asked["docker"] else None,
        "sources": [p for p in asked["sources"] if not os.path.exists(p)],
        "command": find_command(asked["command"], asked["cwd"], asked["path"]),
        "cwd": os.path.isdir(asked["cwd"]),
        "gpu": nodes_gpus.gpus() if asked["gpus"] or asked["look_at_gpus"] else None,
    }


def kept() -> list[str]:
    """Engines of ours that were left up on purpose by a run that is over, one title each."""
    try:
        folder = registry.state_folder(create=False)
    except registry.UnsafeFolder:
        return []
    entries = registry.entries(folder) if folder.is_dir() else ()
    return [registry.title(e) for e in entries if e.kept and registry.orphaned(e)]


def find_command(command: str, cwd: str, path: str | None) -> str | None:
    if os.sep in command:
        full = os.path.join(cwd, command)
        return full if os.path.isfile(full) and os.access(full, os.X_OK) else None
    return shutil.which(command, path=path)


def _own(address: str) -> str | None:
    """Why ``address`` is not one of this node; None when it is."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_DGRAM)
    except OSError as error:
        return f"not known: {error.strerror or error}"
    for family, kind, _, _, where in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.bind((where[0], 0))
        except OSError:
            continue
        return None
    return "no interface of this node has it"


def _free(folder: str) -> int | None:
    try:
        seen = os.statvfs(folder)
    except OSError:
        return None
    return seen.f_bavail * seen.f_frsize


def manifest(path: Path) -> dict[str, Any]:
    """``files``, ``shards`` (weight files), ``size`` in bytes, and a hash of names, sizes and small files' contents.

    ``missing`` True and nothing else where there is no such path. A file that can't be read makes the hash differ.
    """
    if not path.exists():
        return {"missing": True}
    digest = hashlib.sha256()
    files = shards = size = 0
    for name, file in _files(path):
        try:
            length = file.stat().st_size
            digest.update(f"{name}\0{length}\0".encode())
            if length <= _HASHED:
                digest.update(hashlib.sha256(file.read_bytes()).digest())
        except OSError as error:
            digest.update(f"{name}\0{error.strerror}".encode())
            continue
        files, size = files + 1, size + length
        shards += name.endswith((".safetensors", ".bin", ".gguf", ".pt"))
    return {"files": files, "shards": shards, "size": size, "hash": digest.hexdigest(), "revision": revision(path)}


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Plain files at or below, by relative name; links are followed, hidden folders (downloads) left out."""
    if path.is_file():
        yield path.name, path
        return
    for folder, below, names in os.walk(path, followlinks=True):
        below[:] = sorted(n for n in below if not n.startswith("."))
        for name in sorted(n for n in names if not n.startswith(".")):
            file = Path(folder, name)
            if file.is_file():
                yield str(file.relative_to(path)), file


def file_system(path: str) -> str | None:
    """Type of the file system that holds ``path`` or the nearest folder above it that exists."""
    real = os.path.realpath(path)
    while not os.path.exists(real):
        real = os.path.dirname(real)
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            rows = [line.split(" ")[1:3] for line in file]
    except OSError:
        return None
    best = max(
        (
            (len(point), kind)
            for point, kind in ((p.replace("\\040", " "), k) for p, k in rows)
            if real == point or real.startswith(point.rstrip("/") + "/")
        ),
        default=None,
    )
    return best[1] if best else None


def sha256(path: Path) -> str | None:
    """Of a plain file; None: it is none, or can't be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
    except OSError:
        return None
