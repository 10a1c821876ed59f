"""pytest-xdist: all that needs the engine of a profile runs on one worker, in order, whatever ``--dist`` says."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Workers write node id → group into this file before they report their collection; the controller reads it.
KEY = "startup_groups"
_shared: dict[str, Path] = {}


def share_groups(node: Any) -> None:
    """On the controller: tell a worker where to write."""
    if "file" not in _shared:
        _shared["file"] = Path(tempfile.mkdtemp(prefix="pytest-startup-")) / "groups.json"
    node.workerinput[KEY] = str(_shared["file"])


def write_groups(config: Any, groups: Mapping[str, str]) -> None:
    """On a worker. All workers write the same."""
    path = Path(config.workerinput[KEY])
    temporary = path.with_name(f"{config.workerinput['workerid']}.json")
    temporary.write_text(json.dumps(groups), encoding="utf-8")
    os.replace(temporary, path)


def read_groups() -> dict[str, str]:
    """On the controller, once all workers have collected; the file is removed."""
    path = _shared.pop("file", None)
    if path is None or not path.exists():
        return {}
    groups: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    path.parent.rmdir()
    return groups


def make_scheduler(config: Any, log: Any) -> Any:
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
                self.groups = read_groups()
            group = self.groups.get(nodeid)
            if group is not None:
                return f"startup:{group}"
            if base is xdist.LoadScopeScheduling and dist != "loadscope":
                return nodeid
            scope: str = super()._split_scope(nodeid)
            return scope

    return GateScheduling(config, log)
