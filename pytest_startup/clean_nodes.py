"""``pytest-startup clean --profile``: what is left of dead runs on the nodes behind ssh, and its removal there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup.launch.base import LaunchError
from pytest_startup.record import Leftover

if TYPE_CHECKING:
    from pytest_startup.launch.nodes.reach import Access

#: Seconds for the end of an engine that was left up: TERM, KILL, its container.
_LIMIT = 150.0
Found = tuple[str, tuple[str, ...], Callable[[], Sequence[Leftover]]]


class Far:
    """The nodes of a profile that are other hosts; all others share the registry of this one.

    Raises ProfileError, LaunchError (no such context). ``problems``: nodes that could not be asked.
    """

    def __init__(self, path: Path) -> None:
        from pytest_startup.launch.nodes.launcher import NodesLauncher
        from pytest_startup.profile.load import load

        self.problems: list[str] = []
        self.notes: list[str] = []
        profile = load(path, os.environ, need_environment=False)
        self._launcher = NodesLauncher()
        ways = self._launcher.access(profile)
        self._ways = {name: way for name, way in ways.items() if way.node.reach.kind == "ssh"}
        if not self._ways:
            self.notes.append(f"{path}: no node of it is behind ssh; what was started from here is found without it")

    def find(self) -> Iterator[Found]:
        """Title, things that would be removed, and how; changes nothing."""
        for name, way in self._ways.items():
            try:
                rows = way.errand("remains")
            except LaunchError as error:
                self.problems.append(str(error))
                continue
            for row in rows:
                yield f"node {name}: {row['title']}", tuple(row["things"]), partial(_remove, name, way, row)

    def close(self) -> None:
        self._launcher.close()


def _remove(name: str, way: Access, row: dict[str, str]) -> list[Leftover]:
    try:
        done = way.errand("clean", limit=_LIMIT, run_id=row["run_id"], start=row["start"])
    except LaunchError as error:
        return [Leftover("node", str(error), False, node=name)]
    return [Leftover(kind, what, gone, node=name) for kind, what, gone in done]
