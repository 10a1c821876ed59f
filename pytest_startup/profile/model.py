"""The typed, frozen form of a profile. Built only by ``profile.load``; everything else reads it."""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_startup.profile.expect import Expect
from pytest_startup.profile.nodes import Node

#: Where a container's or process's environment may name a value of the caller's environment: ``${NAME}``.
Environment = Mapping[str, str]


@dataclass(frozen=True)
class Engine:
    """What is pinned. ``version`` is compared with what the engine says, ``args`` are passed on verbatim, in order.

    ``env`` may hold resolved ``${VAR}`` values: those that came from the environment are in ``Profile.secrets``.
    ``served_name`` is the model name that the API must report; default: ``--served-model-name``, else ``model``.
    """

    kind: str
    model: str
    version: str | None = None
    revision: str | None = None
    served_name: str | None = None
    args: tuple[str, ...] = ()
    env: Environment = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessLaunch:
    """A local process: ``command`` + model + engine.args + host and port options of the dialect; never a shell.

    ``pass_env`` names further variables of the caller's environment that the engine gets (allow-list).
    """

    command: tuple[str, ...]
    cwd: Path
    pass_env: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContainerFile:
    """A file bind-mounted into a container, pinned by hash (``sha256`` is lower-case hex)."""

    host: Path
    path: str
    sha256: str | None = None
    read_only: bool = True


@dataclass(frozen=True)
class ContainerLaunch:
    """A container, created by the Docker API with exactly these options. ``image`` is an id or a digest, never a tag.

    ``volumes`` maps a host path or volume name to a container path (``/srv/cache:ro`` for read-only). ``gpus`` None: no
    GPU request; ``("all",)`` or ids/UUIDs. ``engine_options`` are passed on to the API's HostConfig verbatim.
    """

    image: str
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] = ()
    name: str | None = None
    volumes: Mapping[str, str] = field(default_factory=dict)
    files: tuple[ContainerFile, ...] = ()
    gpus: tuple[str, ...] | None = None
    network: str | None = None
    ipc: str | None = None
    shm_size: str | None = None
    ulimits: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    cap_add: tuple[str, ...] = ()
    runtime: str | None = None
    user: str | None = None
    working_dir: str | None = None
    memory: str | None = None
    init: bool = False
    docker_host: str | None = None
    context: str | None = None
    engine_options: Mapping[str, object] = field(default_factory=dict)
    exec_command: tuple[str, ...] | None = None
    log_file: str | None = None


@dataclass(frozen=True)
class Launch:
    """How the engine is started: exactly one of ``process`` and ``container`` (or a launcher added by a hook).

    ``port`` None: a free one is chosen for each start. ``gpus`` are the GPU indices or UUIDs that the engine uses:
    the kernel locks and the memory proof are for these; empty: none; ``("all",)``: every GPU of the host.
    """

    process: ProcessLaunch | None = None
    container: ContainerLaunch | None = None
    custom: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int | None = None
    gpus: tuple[str, ...] = ()
    checkpoint: tuple[Path, ...] = ()


@dataclass(frozen=True)
class CacheFolder:
    """A cache folder that is watched and may be wiped. ``kind``: compile, autotune, triton, inductor, jit, other.

    ``container``: its path in the container (``path`` is then the same), wherever that lies on the host.
    """

    name: str
    path: Path
    kind: str
    container: str | None = None


@dataclass(frozen=True)
class Host:
    """What the host must be, before anything is started and while it runs. None: not pinned.

    ``kernel``, ``driver`` and ``gpu`` are globs (``580.*``) in any case of letters; a GPU's name may be given in part.
    """

    page_size: int | None = None
    kernel: str | None = None
    driver: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None

    def fits(self, key: str, seen: object) -> bool:
        """Is the property ``key`` (``page_size``, ``kernel``, ``driver``, ``gpu``) as pinned, or not pinned at all?"""
        pinned = getattr(self, key)
        glob = f"*{pinned}*" if key == "gpu" else str(pinned)
        return pinned is None or fnmatch.fnmatchcase(str(seen).lower(), glob.lower())


@dataclass(frozen=True)
class Deadlines:
    """Limits in seconds. ``phases`` are per phase of ``record.PHASES``; ``ready`` is the whole start, launch to first
    completion; ``stop`` from TERM to KILL; ``release`` until pids, port and memory are back; ``request`` one request;
    ``silence`` no log line and no change while starting (a warning, not a failure); ``peers`` how long a node may wait
    for the others at the rendezvous."""

    ready: float = 1800.0
    stop: float = 30.0
    release: float = 60.0
    request: float = 120.0
    silence: float = 300.0
    phases: Mapping[str, float] = field(default_factory=dict)
    peers: float = 300.0


@dataclass(frozen=True)
class Change:
    """What differs on a restart on purpose: arguments appended, environment set, for a candidate to be validated."""

    args: tuple[str, ...] = ()
    env: Environment = field(default_factory=dict)


@dataclass(frozen=True)
class Restart:
    """One restart to do. ``name`` is ``restart-1`` …, ``kind`` process, same-container, fresh-container.

    ``wipe`` names entries of ``Profile.caches``. ``population`` is what times are compared within. ``nodes``: only
    these are restarted, the others stay up; empty: all.
    """

    name: str
    kind: str
    drop_page_cache: bool = False
    wipe: tuple[str, ...] = ()
    change: Change = Change()
    nodes: tuple[str, ...] = ()

    @property
    def population(self) -> str:
        """``process+page-cache-dropped+wiped:compile-cache``; a changed restart is a population of its own."""
        parts = [self.kind]
        if self.drop_page_cache:
            parts.append("page-cache-dropped")
        if self.wipe:
            parts.append("wiped:" + ",".join(sorted(self.wipe)))
        if self.nodes:
            parts.append("only:" + ",".join(sorted(self.nodes)))
        if self.change.args or self.change.env:
            parts.append("changed:" + " ".join([*self.change.args, *sorted(self.change.env)]))
        return "+".join(parts)

    @property
    def warm(self) -> bool:
        """Are the caches of the start before expected to be used again?"""
        return not self.wipe


@dataclass(frozen=True)
class Waiver:
    """``check`` need not be exercised or observable, for a ``reason``, ``until`` a date (inclusive) or for good."""

    check: str
    reason: str
    until: datetime.date | None = None


@dataclass(frozen=True)
class Profile:
    """A whole profile. ``origin`` maps dotted keys (``expect.kv.tokens``, ``restarts.0.kind``) to lines of ``path``.

    ``secrets`` are values that must never be written anywhere: every value that came from ``${VAR}``.
    ``warnings`` are said once at the start of a run: allowed, but hardly meant (no restarts).
    """

    path: Path
    name: str
    engine: Engine
    launch: Launch
    caches: tuple[CacheFolder, ...] = ()
    host: Host = Host()
    deadlines: Deadlines = Deadlines()
    restarts: tuple[Restart, ...] = ()
    expect: Expect = field(default_factory=Expect)
    waivers: tuple[Waiver, ...] = ()
    settle: float = 0.0
    origin: Mapping[str, int] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()

    def place(self, key: str) -> str:
        """``gh200-mimo.yaml:31`` of a dotted key, or of the nearest key above it that the file holds."""
        while key and key not in self.origin:
            key = key.rpartition(".")[0]
        line = self.origin.get(key)
        return self.path.name if line is None else f"{self.path.name}:{line}"

    def waiver(self, check: str) -> Waiver | None:
        """The waiver of this check, if there is one."""
        return next((w for w in self.waivers if w.check == check), None)
