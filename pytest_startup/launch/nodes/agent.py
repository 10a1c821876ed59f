"""Our part on a node: answers one errand after the other over the link, or keeps an engine until the link breaks.

JSON lines both ways. ``{"do": NAME, …}`` is answered by ``{"event": "done", "answer": …}`` or ``{"event": "failed",
"text": …}``; ``clock`` tells the time; ``keep`` turns the process into the keeper of one start.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_startup.launch import ports, registry
from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.identity import Identity, alive, identify
from pytest_startup.launch.memory import shm_names
from pytest_startup.launch.nodes import gpus as nodes_gpus
from pytest_startup.launch.nodes import steps as nodes_steps
from pytest_startup.launch.nodes.caches import look
from pytest_startup.launch.nodes.inspect import host, inspect
from pytest_startup.launch.nodes.keeper import NodeKeeper
from pytest_startup.launch.nodes.pipe import Out
from pytest_startup.launch.pagecache import drop_page_cache
from pytest_startup.launch.process import clean as process_clean
from pytest_startup.launch.wiping import wipe
from pytest_startup.profile.model import CacheFolder

Errand = Callable[[Mapping[str, Any]], Any]


def _orphans() -> list[registry.Entry]:
    """What dead runs have left here, and what was left up on purpose."""
    folder = registry.state_folder(create=False)
    entries = list(registry.entries(folder)) if folder.is_dir() else []
    return [e for e in entries if e.kind == "process" and registry.orphaned(e)]


def _remains(_: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For ``pytest-startup clean``: each of them with what would be removed."""
    return [
        {"run_id": e.run_id, "start": e.start, "title": registry.title(e), "things": list(process_clean.look(e))}
        for e in _orphans()
    ]


def _clean(asked: Mapping[str, Any]) -> list[list[Any]]:
    """Remove one of them."""
    out = []
    for entry in _orphans():
        if (entry.run_id, entry.start) == (asked["run_id"], asked["start"]):
            done = process_clean.remove(entry)
            if all(one.released for one in done):
                registry.remove(registry.state_folder(), entry)
            out += [[d.kind, d.what, d.released] for d in done]
    return out


def _sweep(_: Mapping[str, Any]) -> list[str]:
    """Remove what dead runs left behind on this node, but not what was kept on purpose; one text each."""
    out = []
    for entry in _orphans():
        if entry.kept:
            continue
        done = process_clean.remove(entry)
        if all(one.released for one in done):
            registry.remove(registry.state_folder(), entry)
        if done:
            told = ", ".join(f"{d.kind} {d.what} {'removed' if d.released else 'could not be removed'}" for d in done)
            out.append(f"a dead run had left behind {entry.command} ({entry.run_id}, {entry.start}): {told}")
    return out


def _drop(asked: Mapping[str, Any]) -> str:
    return drop_page_cache([Path(p) for p in asked["paths"]]).text


def _wipe(asked: Mapping[str, Any]) -> list[str]:
    keep = [Path(p) for p in asked["keep"]]
    return [wipe(CacheFolder(c["name"], Path(c["path"]), c["kind"]), keep) for c in asked["caches"]]


def _listens(asked: Mapping[str, Any]) -> bool:
    return bool(ports.listeners(int(asked["port"])))


def _released(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Wait until these ports can be listened on again; per port whether it can, and who holds it if not."""
    begin = time.monotonic()
    out = []
    for port in asked["ports"]:
        while True:
            taken = ports.why_taken(asked["address"], port)
            seconds = time.monotonic() - begin
            if taken is None or seconds >= asked["within"]:
                break
            time.sleep(0.05)
        out.append({"port": port, "taken": taken, "seconds": round(seconds, 3)})
    return out


def _finish(asked: Mapping[str, Any]) -> list[list[Any]]:
    """End a start whose link broke: wait for its keeper, which ends it by itself, then remove what is left."""
    folder = registry.state_folder()
    path = registry.entry_path(folder, asked["run_id"], asked["start"])
    end = time.monotonic() + asked["within"]
    while path.exists() and time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            entry = registry.read(path)
            if entry.keeper is None or not alive(entry.keeper):
                done = process_clean.remove(entry)
                if all(one.released for one in done):
                    registry.remove(folder, entry)
                return [[d.kind, d.what, d.released] for d in done]
        time.sleep(0.1)
    if path.exists():
        entry = registry.read(path)
        return [["pid", f"{one.pid}", not alive(one)] for one in entry.known if alive(one)]
    return []


def _put(asked: Mapping[str, Any]) -> dict[str, str]:
    """Keep an overlay file in the state folder under its hash; the hash of what is there now."""
    folder = registry.state_folder() / "files"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{asked['sha256'][:16]}-{os.path.basename(asked['name'])}"
    path.write_bytes(base64.b64decode(asked["data"]))
    path.chmod(0o644)
    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


ERRANDS: dict[str, Errand] = {
    "sweep": _sweep,
    "remains": _remains,
    "clean": _clean,
    "drop": _drop,
    "wipe": _wipe,
    "listens": _listens,
    "released": _released,
    "finish": _finish,
    "inspect": inspect,
    "host": host,
    "computing": nodes_gpus.computing,
    "gpus_released": nodes_gpus.released,
    "caches": look,
    "put": _put,
    "remove": lambda asked: nodes_steps.remove(asked["docker"], asked["label"]),
}


def _line(unread: bytearray) -> bytes | None:
    """The next line of stdin; what follows it stays in ``unread``."""
    while b"\n" not in unread:
        data = os.read(0, 65536)
        if not data:
            return None
        unread += data
    line, _, rest = bytes(unread).partition(b"\n")
    unread[:] = rest
    return line


def _keep(asked: dict[str, Any], out: Out, unread: bytes) -> None:
    parent = identify(os.getppid()) or Identity(os.getppid(), 0)
    data = {
        **asked,
        "owner": [parent.pid, parent.start],
        "state": str(registry.state_folder()),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "shm": sorted(shm_names()),
    }
    keeper = NodeKeeper.prepare(data, out, unread)
    if keeper is not None:
        keeper.run()


def main() -> None:
    """Serve the link until it ends."""
    out = Out()
    unread = bytearray()
    try:
        out.say("hello", pid=os.getpid(), uid=os.getuid(), python=sys.version.split()[0])
        while (line := _line(unread)) is not None:
            asked = json.loads(line)
            do = asked.pop("do")
            if do == "clock":
                out.say("clock", t=asked["t"], mono=time.monotonic(), wall=time.time())
            elif do == "keep":
                _keep(asked, out, bytes(unread))
                break
            else:
                try:
                    out.say("done", answer=ERRANDS[do](asked))
                except (LaunchError, OSError, registry.UnsafeFolder) as error:
                    out.say("failed", text=f"{do}: {error}")
            out.drain(30.0)
    except BaseException:
        out.say("fault", text=traceback.format_exc())
    out.drain(5.0)
    os._exit(0)
