"""``pytest-startup clean``: what dead runs of ours left behind, and its removal; also done at the start of each run."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_startup import clean_nodes
from pytest_startup.launch import registry
from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.container import clean as container_clean
from pytest_startup.launch.process import clean as process_clean
from pytest_startup.launch.registry import Entry
from pytest_startup.profile.problems import ProfileError
from pytest_startup.record import Leftover


@dataclass(frozen=True)
class Remains:
    """What is left of one start whose run has died. ``things``: what would be removed, one text each."""

    entry: Entry
    things: tuple[str, ...]

    @property
    def title(self) -> str:
        return registry.title(self.entry)


#: ``look(entry) -> texts`` and ``remove(entry) -> leftovers`` of one kind of entry.
Look = Callable[[Entry], Sequence[str]]
Remove = Callable[[Entry], Sequence[Leftover]]


#: How entries of each kind are looked at and removed; entries of a kind that is not here are left alone.
KINDS: dict[str, tuple[Look, Remove]] = {
    "process": (process_clean.look, process_clean.remove),
    "container": (container_clean.look, container_clean.remove),
}


def find(folder: Path) -> list[Remains]:
    """Everything in the registry whose run has died. Changes nothing."""
    out = []
    for entry in registry.entries(folder):
        ways = KINDS.get(entry.kind)
        if ways is not None and registry.orphaned(entry):
            out.append(Remains(entry, tuple(ways[0](entry))))
    return out


def remove(folder: Path, remains: Remains) -> list[Leftover]:
    """Remove it; its entry stays as long as something could not be removed."""
    ways = KINDS.get(remains.entry.kind)
    done = list(ways[1](remains.entry)) if ways is not None else []
    if all(one.released for one in done):
        registry.remove(folder, remains.entry)
    return done


def sweep() -> list[str]:
    """What a run does first: remove what dead runs left behind, but not what was kept on purpose; one text each."""
    try:
        folder = registry.state_folder(create=False)
    except registry.UnsafeFolder as error:
        return [str(error)]
    out = []
    for remains in find(folder):
        if remains.entry.kept and remains.things:
            out.append(f"still up: {remains.title}; remove it with: pytest-startup clean --yes")
            continue
        done = remove(folder, remains)
        if done:
            out.append(f"a dead run had left behind: {remains.title}: {told(done)}")
    return out


def told(done: Sequence[Leftover]) -> str:
    """``pid 12 vllm … removed, shm /dev/shm/x could not be removed``."""
    return ", ".join(f"{d.kind} {d.what} {'removed' if d.released else 'could not be removed'}" for d in done)


def _one(take: Callable[[], Leftover]) -> list[Leftover]:
    return [take()]


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0 nothing is left (any more), 1 something is there or could not be removed, or a node could not be
    reached, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="pytest-startup clean",
        description="Find what dead runs left behind: processes, shared memory, containers. Removes only what "
        "pytest-startup has started itself and can tell for certain.",
        epilog="exit codes: 0 nothing is left (any more), 1 something is there or could not be removed, or a node "
        "could not be reached, 2 wrong usage",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--dry-run", action="store_true", help="only show it (default)")
    choice.add_argument("--yes", action="store_true", help="remove it, also what --startup-keep left up")
    parser.add_argument(
        "--profile",
        metavar="YAML",
        type=Path,
        action="append",
        default=[],
        help="look on the nodes behind ssh of this profile, too; may be given several times",
    )
    options = parser.parse_args(list(argv))
    try:
        folder = registry.state_folder(create=False)
        far = [clean_nodes.Far(path) for path in options.profile]
    except (registry.UnsafeFolder, ProfileError, LaunchError) as error:
        print(f"pytest-startup clean: {error}", file=sys.stderr)
        return 2
    found = [Found(r.title, r.things, partial(remove, folder, r)) for r in find(folder)]
    for thing, take in container_clean.unregistered({e.run_id for e in registry.entries(folder)}, os.environ):
        found.append(Found("container of a run that is not in the registry (any more)", (thing,), partial(_one, take)))
    unseen = False
    with contextlib.ExitStack() as stack:
        for one in far:
            stack.callback(one.close)
            for title, things, way in one.find():
                found.append(Found(title, things, way))
            for note in one.notes:
                print(f"pytest-startup clean: {note}", file=sys.stderr)
            for problem in one.problems:
                print(f"pytest-startup clean: {problem}", file=sys.stderr)
                unseen = True
        nothing = "nothing is left of dead runs" + (" where it could be looked" if unseen else "")
        return max(_remove(found, nothing) if options.yes else _show(found, nothing), int(unseen))


@dataclass(frozen=True)
class Found:
    """What is left of one start, here or on a node, and how it is removed."""

    title: str
    things: tuple[str, ...]
    remove: Callable[[], Sequence[Leftover]]


def _show(found: Sequence[Found], nothing: str) -> int:
    for one in found:
        print(one.title)
        for thing in one.things or ("nothing of it is left but its entry",):
            print(f"  {thing}")
    if not found:
        print(nothing)
        return 0
    print("nothing was touched; remove it with --yes")
    return 1 if any(one.things for one in found) else 0


def _remove(found: Sequence[Found], nothing: str) -> int:
    failed = False
    for one in found:
        print(one.title)
        done = one.remove()
        for left in done:
            print(f"  {told([left])}")
        failed = failed or not all(left.released for left in done)
    print("something could not be removed" if failed else nothing)
    return 1 if failed else 0
