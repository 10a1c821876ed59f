"""pytest-xdist: all that needs the engine of a profile runs on one worker, in order, whatever ``--dist`` says."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Member of ``workerinput``: the file into which workers write node id → group before they report their collection.
KEY = "startup_groups"


class SharedGroups:
    """The controller's end of that file, which lies in a folder of its own."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def tell(self, node: Any) -> None:
        """Tell a worker where to write."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="pytest-startup-"))
        node.workerinput[KEY] = str(self._folder / "groups.json")

    def read(self) -> dict[str, str]:
        """What the workers wrote; to be called once all of them have collected. The file is removed."""
        path = None if self._folder is None else self._folder / "groups.json"
        groups: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
        self.remove()
        return groups

    def remove(self) -> None:
        """Idempotent."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def write_groups(config: Any, groups: Mapping[str, str]) -> None:
    """On a worker. All workers write the same."""
    path = Path(config.workerinput[KEY])
    temporary = path.with_name(f"{config.workerinput['workerid']}.json")
    temporary.write_text(json.dumps(groups), encoding="utf-8")
    os.replace(temporary, path)


def make_scheduler(config: Any, log: Any, shared: SharedGroups) -> Any:
    """A scheduler that keeps our groups whole and spreads everything else as ``--dist`` asks."""
    import importlib

    xdist = importlib.import_module("xdist.scheduler")

    dist = config.getvalue("dist")
    base: Any = {"loadfile": xdist.LoadFileScheduling, "loadgroup": xdist.LoadGroupScheduling}.get(
        dist, xdist.LoadScopeScheduling
    )

    class GateScheduling(base):  # type: ignore[misc]
        """Scopes by group; ``load`` and ``worksteal`` hand out every other test on its own."""

        groups: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self.groups is None:
                self.groups = shared.read()
            group = self.groups.get(nodeid)
            if group is not None:
                return f"startup:{group}"
            if base is xdist.LoadScopeScheduling and dist != "loadscope":
                return nodeid
            scope: str = super()._split_scope(nodeid)
            return scope

    return GateScheduling(config, log)
