"""What a dead run left in a container engine: seen and removed by the labels that only our containers carry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pytest_startup.launch import registry, stopping
from pytest_startup.launch.container import address as docker_address
from pytest_startup.launch.container import labels as container_labels
from pytest_startup.launch.container.address import Address
from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere
from pytest_startup.launch.memory import SHM
from pytest_startup.launch.registry import Entry
from pytest_startup.record import Leftover


def look(entry: Entry) -> Sequence[str]:
    """What is there of an entry's start: its containers, created ones too; or why that can't be told."""
    with _daemon(entry) as daemon:
        try:
            return [container_labels.told(seen) for seen in daemon.containers([_label(entry)])]
        except (DaemonLost, DaemonRefused) as error:
            return [_untold(entry, error)]


def remove(entry: Entry) -> Sequence[Leftover]:
    """Remove its containers, then the shared memory of the host that they held. Named volumes stay."""
    out = []
    with _daemon(entry) as daemon:
        try:
            for seen in daemon.containers([_label(entry)]):
                told = container_labels.told(seen).removeprefix("container ")
                try:
                    daemon.remove(seen["Id"])
                except NotThere:
                    continue
                except DaemonRefused as error:
                    out.append(Leftover("container", f"{told}: {error}", False))
                    continue
                out.append(Leftover("container", told, True))
        except (DaemonLost, DaemonRefused) as error:
            return [*out, Leftover("container", _untold(entry, error), False)]
    if entry.boot == registry.boot_id():
        removed, held = stopping.remove_shm(entry.shm)
        out += [Leftover("shm", f"{SHM}/{name}", True) for name in removed]
        out += [Leftover("shm", f"{SHM}/{name}", False) for name in held]
    return out


def unregistered(runs: Collection[str], environ: Mapping[str, str]) -> list[tuple[str, Callable[[], Leftover]]]:
    """Containers of dead runs beside these ``runs``, at the engine that ``environ`` names: their registry was lost.

    Each as ``docker ps`` would tell it, with the way to remove it. Empty where no engine answers.
    """
    try:
        address = docker_address.find(None, environ)
        with _at(address) as daemon:
            seen = daemon.containers([container_labels.RUN])
    except (docker_address.AddressError, DaemonLost, DaemonRefused):
        return []
    return [
        (container_labels.told(one), partial(_remove_one, address, str(one["Id"]), container_labels.told(one)))
        for one in seen
        if container_labels.run_is_dead(one.get("Labels")) and one["Labels"][container_labels.RUN] not in runs
    ]


def _remove_one(address: Address, container: str, told: str) -> Leftover:
    try:
        with _at(address) as daemon:
            daemon.remove(container)
    except NotThere:
        pass
    except (DaemonLost, DaemonRefused) as error:
        return Leftover("container", f"{told.removeprefix('container ')}: {error}", False)
    return Leftover("container", told.removeprefix("container "), True)


@contextmanager
def _at(address: Address) -> Iterator[Daemon]:
    daemon = Daemon(address)
    try:
        yield daemon
    finally:
        daemon.close()


def place(address: Address) -> dict[str, str]:
    """What an entry has to hold so that its daemon is found again."""
    tls = {"tls": str(address.tls)} if address.tls is not None else {}
    return {"daemon": address.url, **tls}


@contextmanager
def _daemon(entry: Entry) -> Iterator[Daemon]:
    tls = entry.labels.get("tls")
    with _at(Address(entry.labels.get("daemon", ""), "of that run", Path(tls) if tls else None)) as daemon:
        yield daemon


def _label(entry: Entry) -> str:
    return f"{container_labels.RUN}={entry.run_id}"


def _untold(entry: Entry, error: Exception) -> str:
    path = registry.entry_path(registry.state_folder(create=False), entry.run_id, entry.start)
    return (
        f"{entry.labels.get('name', '?')}: {error}; start it and clean again, or, if it is gone for good, delete {path}"
    )
