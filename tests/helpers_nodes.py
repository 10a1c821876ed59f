"""Two nodes on this machine: network namespaces of the test's own, and profiles of the stand-in engine over both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers_launch import FAKE

from pytest_startup.engines.vllm import VllmDialect
from pytest_startup.launch.base import StartPlan
from pytest_startup.launch.nodes import node_commands
from pytest_startup.profile.load import load
from pytest_startup.profile.model import Profile

HERE = Path(__file__).parent
NET = HERE / "nodes" / "net.sh"
LOGS = HERE / "data" / "nodes"
RENDEZVOUS = "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.78.0.1:29600 backend=gloo"

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare"))),
    reason="two nodes on one machine are network namespaces: root, iproute2 and util-linux",
)


@contextmanager
def network(name: str) -> Iterator[str]:
    """A set of namespaces ``{name}ctl``, ``{name}head``, ``{name}worker``, removed again whatever happens."""
    subprocess.run([NET, "up", name], check=True, capture_output=True, text=True, timeout=30)
    try:
        yield name
    finally:
        subprocess.run([NET, "down", name], check=True, capture_output=True, timeout=30)


def link(name: str, state: str, node: str = "worker") -> None:
    """Cut (``down``) or mend (``up``) the cable of a node."""
    subprocess.run(["ip", "-n", f"{name}ctl", "link", "set", f"v{node}", state], check=True, timeout=10)


def pair_text(
    name: str, head: Mapping[str, Any] | None = None, worker: Mapping[str, Any] | None = None, **more: str
) -> str:
    """A profile of the stand-in on both nodes. ``head``/``worker``: how it behaves there (see ``fake_engine``).

    ``more``: ``head_keys``, ``worker_keys`` (further lines of a node), ``deadlines``, ``restarts``, ``rest``.
    """

    def how(values: Mapping[str, Any] | None, default: Mapping[str, Any]) -> str:
        return json.dumps(json.dumps({**default, **(values or {})}))

    head_how = how(head, {"log": str(LOGS / "head-warm.log")})
    worker_how = how(worker, {"log": str(LOGS / "worker-warm.log"), "hang": "end"})
    return f"""\
schema: 1
name: pair
engine: {{kind: vllm, model: models/dense, args: [--tensor-parallel-size, "2"]}}
launch: {{process: {{command: [{sys.executable}, {FAKE}, serve]}}, host: 0.0.0.0, port: 8000}}
nodes:
  head:
    reach: {{namespace: {name}head}}
    address: 10.78.0.1
    ports: [29600]
    ranks: [0]
    args: [--node-rank, "${{node.head.rank}}", --master-addr, "${{node.head.address}}"]
    env: {{FAKE_ENGINE: {head_how}}}
{more.get("head_keys", "")}
  worker:
    reach: {{namespace: {name}worker}}
    address: 10.78.0.2
    ranks: [1]
    args: [--node-rank, "${{node.worker.rank}}", --master-addr, "${{node.head.address}}", --headless]
    env: {{FAKE_ENGINE: {worker_how}}}
{more.get("worker_keys", "")}
deadlines: {more.get("deadlines", "{ready: 60s, stop: 12s, release: 10s}")}
restarts: {more.get("restarts", "[{kind: process}]")}
{more.get("rest", "")}
"""


def pair(folder: Path, name: str, head: Any = None, worker: Any = None, **more: str) -> Profile:
    path = folder / "pair.yaml"
    path.write_text(pair_text(name, head, worker, **more))
    return load(path, {})


def plan(profile: Profile, folder: Path, start: str = "reference") -> StartPlan:
    commands = node_commands(profile, VllmDialect(), 8000)
    return StartPlan(
        profile, start, "process", folder / start, f"test{os.getpid()}", 8000, commands["head"], node_argv=commands
    )


def gate(folder: Path, name: str, *args: str, text: str | None = None, timeout: float = 120.0) -> Any:
    """pytest with the plugin inside the controlling namespace, as a user would run it; its result as a process."""
    if text is not None:
        (folder / "pair.yaml").write_text(text)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "VLLM_")) and k != "CI"}
    env |= {"PYTHONPATH": str(HERE.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "http_proxy": "http://192.0.2.1:9"}
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "pytest_startup.plugin",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
    ]
    return subprocess.run(
        ["nsenter", f"--net=/run/netns/{name}ctl", "--", *argv, "--startup-profile", "pair.yaml", *args],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def record(folder: Path, start: str = "reference") -> dict[str, Any]:
    """The saved record of a start of the newest run."""
    newest = sorted((folder / ".startup" / "pair").iterdir())[-1]
    data: dict[str, Any] = json.loads((newest / start / "record.json").read_text())
    return data
