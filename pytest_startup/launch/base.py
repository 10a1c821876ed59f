"""What a launcher gives: a running engine with its logs, and a stop that proves what is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pytest_startup.observe.sources import NodeLog as NodeLog
from pytest_startup.observe.sources import only_node as only_node

if TYPE_CHECKING:
    from pytest_startup.observe.caches import Snapshot
    from pytest_startup.observe.sources import Listening
    from pytest_startup.profile.model import CacheFolder, Profile
    from pytest_startup.record import Fact, Leftover


@dataclass(frozen=True)
class StartPlan:
    """One start to be made. ``folder`` is its artifacts folder: a node's log goes to ``folder/<node>/engine.log``.

    ``fresh`` False asks a container launcher to start the container of the start before again (same-container).
    ``run_id`` labels all that is created. ``port`` is already chosen and free when the plan is made. ``node_argv``: of
    an engine over several nodes the arguments of each; ``argv`` are then those of the node that serves the API.
    """

    profile: Profile
    name: str
    kind: str
    folder: Path
    run_id: str
    port: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = True
    node_argv: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Exit:
    """The engine, or a part without which it can't serve, has ended. ``code`` < 0: killed by that signal.

    ``reason``: exited, killed, oom-killed, container-gone, daemon-lost; with nodes also node-lost, not-met (peers that
    did not come), step-failed (a step of the profile, before the engine) and not-started. ``alone``: it is known that
    nobody had asked it to end, also where that is only seen behind a stop.
    """

    node: str
    code: int | None
    reason: str
    text: str
    alone: bool = False


class LaunchError(Exception):
    """Nothing could be started. The message tells what to do; it is printed without a traceback."""


class Running(Protocol):
    """A started engine. All methods return within their stated time, whatever the engine does."""

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:8888``, without a trailing slash."""

    @property
    def logs(self) -> Sequence[NodeLog]:
        """One for each node."""

    @property
    def launched_at(self) -> float:
        """``time.monotonic()`` at launch; all seconds of a record count from here."""

    def exited(self) -> Exit | None:
        """Has the engine ended? Returns at once (≤ 50 ms); None while it runs."""

    def wait_exit(self, timeout: float) -> Exit | None:
        """Wait up to ``timeout`` seconds for the end, waking the moment that it comes."""

    def facts(self) -> Sequence[Fact]:
        """Identity facts that the launcher knows: argv, pid, image id, file hashes, peak host memory."""

    def stop(self) -> Sequence[Leftover]:
        """TERM, then KILL after ``deadlines.stop``, to exactly what is ours; then prove pids, port, /dev/shm (and GPU
        memory) gone within ``deadlines.release``. Idempotent. What is not released is in the answer."""


@runtime_checkable
class Hurries(Protocol):
    """A running engine (optional) whose stop can be made a KILL at once."""

    def hurry(self) -> None:
        """Ctrl-C has come again: a stop that has begun, or is yet to come, is a KILL."""


@runtime_checkable
class Keeps(Protocol):
    """A running engine (optional) that can outlive the run."""

    def keep(self) -> bool:
        """Leave it up after us (``--startup-keep``): it is not stopped at our end. False if it can't be."""


@runtime_checkable
class OneProcess(Protocol):
    """A running engine (optional) that is a process of this host, with all that descends from it."""

    @property
    def pid(self) -> int:
        """Of the first process. Cheap: it is read to tell whether it is there, too."""


@runtime_checkable
class ListsProcesses(Protocol):
    """A running engine (optional) whose processes are of this host, but descend from none that we started."""

    @property
    def pids(self) -> Callable[[], Collection[int]] | None:
        """Lists those that live now; None where they can't be seen, or are not those that listen on the port. Cheap,
        as ``OneProcess.pid``: the looking is done by what it gives."""


@runtime_checkable
class ProvesServer(Protocol):
    """A running engine (optional) that knows by itself whose the server on its port is."""

    def owner(self) -> Listening:
        """Is the server that listens now this engine? ``foreign``: it never counts as ready."""


@runtime_checkable
class ServesElsewhere(Protocol):
    """A running engine (optional) that serves from other addresses than this host's loopback."""

    @property
    def hosts(self) -> Collection[str]:
        """Addresses to which requests of ours may go, too. Cheap, as ``OneProcess.pid``."""


@runtime_checkable
class SparesNodes(Protocol):
    """A running engine over several nodes (optional), of which some can stay up over a restart."""

    def spare(self, names: Collection[str]) -> None:
        """These nodes are not stopped by the next ``stop``: the next start goes on with them."""


class Launcher(Protocol):
    """Starts engines of one kind (process, container, nodes)."""

    def preflight(self, profile: Profile) -> Sequence[str]:
        """Reasons why nothing should be started, all at once; touches nothing. Empty: go ahead."""

    def start(self, plan: StartPlan) -> Running:
        """Start and return at once. Raises LaunchError."""

    def close(self) -> Sequence[Leftover]:
        """End of the run: remove what ``same-container`` restarts kept. Idempotent."""


@runtime_checkable
class HoldsCaches(Protocol):
    """A launcher (optional) whose engines have caches where this process may not be able to look: in volumes, inside
    a container. ``fresh``: the next start is a fresh one, with nothing of what a container before held in itself."""

    def snapshots(self, profile: Profile, earlier: Mapping[str, Snapshot], fresh: bool) -> Mapping[str, Snapshot]:
        """All caches of the profile, as ``observe.caches.snapshots``. Raises LaunchError."""

    def wipe(self, profile: Profile, cache: CacheFolder, fresh: bool) -> str:
        """Empty one; what was done, in a sentence. Raises LaunchError."""


@runtime_checkable
class PreparesNodes(Protocol):
    """A launcher (optional) whose engines run on hosts that only it can reach."""

    def prepare(self, profile: Profile, names: Collection[str], drop: bool, wipe: Sequence[str]) -> list[str]:
        """Drop page caches and wipe the caches that ``wipe`` names on these nodes (all, if none is named); what was
        done, one text each. Raises LaunchError."""
