"""Two nodes on this machine: network namespaces of the test's own, and profiles of the stand-in engine over both."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers_docker import TestEngine, need_engine
from helpers_launch import FAKE, until

from pytest_startup.engines.vllm import VllmDialect
from pytest_startup.launch.base import StartPlan
from pytest_startup.launch.identity import look
from pytest_startup.launch.listeners import process_tree
from pytest_startup.launch.nodes.launcher import node_commands
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
def network(name: str, *nodes: str) -> Iterator[str]:
    """A set of namespaces ``{name}ctl``, ``{name}head``, ``{name}worker`` (or of ``nodes``: 10.78.0.1, .2 and so on),
    removed again whatever happens."""
    subprocess.run([NET, "up", name, *nodes], check=True, capture_output=True, text=True, timeout=30)
    try:
        yield name
    finally:
        subprocess.run([NET, "down", name, *nodes], check=True, capture_output=True, timeout=30)


@contextmanager
def two_engines(name: str) -> Iterator[tuple[str, dict[str, TestEngine]]]:
    """Namespaces as of ``network``, and a container engine in that of each node."""
    need_engine()
    with network(name) as net:
        made = {node: TestEngine(NETNS=f"{net}{node}").start() for node in ("head", "worker")}
        try:
            assert made["head"].image == made["worker"].image
            yield net, made
        finally:
            for engine in made.values():
                engine.stop()


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
    reach: {more.get("head_reach", f"{{namespace: {name}head}}")}
    address: 10.78.0.1
    ports: [29600]
    ranks: [0]
    args: [--node-rank, "${{node.head.rank}}", --master-addr, "${{node.head.address}}"]
    env: {{FAKE_ENGINE: {head_how}}}
{more.get("head_keys", "")}
  worker:
    reach: {more.get("worker_reach", f"{{namespace: {name}worker}}")}
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


def gate_command(folder: Path, name: str, *args: str, text: str | None = None) -> dict[str, Any]:
    """How pytest is run with the plugin inside the controlling namespace, as a user would: arguments of ``Popen``."""
    if text is not None:
        (folder / "pair.yaml").write_text(text)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "VLLM_")) and k != "CI"}
    env |= {"PYTHONPATH": str(HERE.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "http_proxy": "http://192.0.2.1:9"}
    # the registry and the locks of the test, if it has its own
    env |= {k: os.environ[k] for k in ("PYTEST_STARTUP_LOCKS",) if k in os.environ}
    argv = [sys.executable, "-m", "pytest", "-p", "pytest_startup.plugin", "-p", "no:cacheprovider"]
    argv += ["--rootdir", str(folder), "--startup-profile", "pair.yaml", *args]
    return {"args": ["nsenter", f"--net=/run/netns/{name}ctl", "--", *argv], "cwd": folder, "env": env, "text": True}


def gate(folder: Path, name: str, *args: str, text: str | None = None, timeout: float = 120.0) -> Any:
    """A whole run; its result as a finished process."""
    return subprocess.run(**gate_command(folder, name, *args, text=text), capture_output=True, timeout=timeout)


class Gate:
    """A run that goes on while the test does something to it. ``said(text)`` waits for a line of its output."""

    def __init__(self, folder: Path, name: str, *args: str, text: str | None = None) -> None:
        self.process = subprocess.Popen(
            **gate_command(folder, name, *args, text=text), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def said(self, text: str, limit: float = 60.0) -> None:
        until(lambda: text in self.output or self.process.poll() is not None, f"{text!r} in the output", limit)
        assert text in self.output, self.output

    def end(self, limit: float) -> str:
        """Its whole output."""
        self.process.wait(limit)
        self._reader.join(10)
        return self.output

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        self._reader.join(10)

    def _read(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                self.output += line


def record(folder: Path, start: str = "reference") -> dict[str, Any]:
    """The saved record of a start of the newest run."""
    newest = sorted((folder / ".startup" / "pair").iterdir())[-1]
    data: dict[str, Any] = json.loads((newest / start / "record.json").read_text())
    return data


class Sshd:
    """A real sshd in a node's namespace, with throw-away keys; nothing of the machine's own ssh is touched."""

    def __init__(self, folder: Path, net: str, node: str, address: str, shm: str | None = None) -> None:
        """``shm``: the size of a /dev/shm of its own (``80m``)."""
        self.folder = folder / f"sshd-{node}"
        self.folder.mkdir(mode=0o700)
        for key in ("id", "host"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True, timeout=20
            )
        Path("/run/sshd").mkdir(exist_ok=True)
        server = {
            "ListenAddress": address,
            "Port": "22",
            "HostKey": self.folder / "host",
            "PidFile": "none",
            "AuthorizedKeysFile": self.folder / "id.pub",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
        }
        (self.folder / "sshd.conf").write_text("".join(f"{k} {v}\n" for k, v in server.items()))
        host_key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text(f"{address} {host_key}\n")
        client = {
            "User": "root",
            "IdentityFile": self.folder / "id",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "StrictHostKeyChecking": "yes",
        }
        self.config = self.folder / "ssh_config"
        self.config.write_text(f"Host {address}\n" + "".join(f"  {k} {v}\n" for k, v in client.items()))
        server_command = [shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-f", str(self.folder / "sshd.conf")]
        mount = f'mount -t tmpfs -o size={shm} tmpfs /dev/shm && exec "$@"'
        own = ["unshare", "--mount", "--", "sh", "-c", mount, "sh"] if shm else []
        self.process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{net}{node}", "--", *own, *server_command, "-E", str(self.folder / "log")],
            start_new_session=True,
        )
        until(lambda: "Server listening" in self.log(), "sshd listens")

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        """The server and all its sessions, at once."""
        for pid in process_tree(self.process.pid):
            process = look(pid)  # one that was on its way out may have gone
            if process is not None and (pid == self.process.pid or "sshd" in process.name):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)


@contextmanager
def inside(net: str) -> Iterator[None]:
    """This thread, and what it starts, in the controlling namespace: there the nodes can be reached."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{net}ctl") as there:
        assert libc.setns(there.fileno(), 0x40000000) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(before.fileno(), 0x40000000) == 0
