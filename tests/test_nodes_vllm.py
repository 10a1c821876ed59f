"""One real engine over two nodes of this machine, as plain processes: split in three ways, restarted warm, and hurt."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers_container_vllm import ENGINE, LONG, WAIVED, need_vllm
from helpers_launch import gone, until
from helpers_nodes import Gate, Sshd, gate, link, needs_namespaces, network, record

from pytest_startup.launch.identity import arguments
from pytest_startup.launch.listeners import process_tree

pytestmark = [needs_namespaces, pytest.mark.usefixtures("isolated")]


@pytest.fixture(scope="module")
def net():
    need_vllm()
    with network(f"v{os.getpid()}-") as name:
        yield name


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """Compiled once: each node has its own, as two hosts would."""
    return tmp_path_factory.mktemp("caches")


def text(
    net: str,
    caches: Path,
    expect: str = "",
    restarts: str = "[]",
    worker: str = "",
    master: str = "${node.head.address}",
    peers: str = "5m",
    split: str = "tensor",
    reach: str | None = None,
) -> str:
    """``worker``: further lines of that node, ``reach``: the way to it; ``master``: the address at which it looks for
    the head; ``split``: what is divided over the nodes (tensor, pipeline, data)."""
    if split == "data":
        engine = (
            '--data-parallel-size-local, "1", --data-parallel-address, 10.78.0.1, --data-parallel-rpc-port, "29600"'
        )
        own = ["", '--data-parallel-start-rank, "1"']
    else:
        engine = '--nnodes, "2", --master-port, "29600"'
        own = [
            f'--node-rank, "{rank}", --master-addr, "{at}"' for rank, at in enumerate(("${node.head.address}", master))
        ]

    def node(name: str, rank: int, address: str, more: str) -> str:
        return f"""\
  {name}:
    reach: {reach if rank and reach else f"{{namespace: {net}{name}}}"}
    address: {address}
    ranks: [{rank}]
    args: [{", ".join(filter(None, (own[rank], more)))}]
    env: {{VLLM_HOST_IP: {address}, VLLM_CPU_OMP_THREADS_BIND: "{rank}", VLLM_CACHE_ROOT: {caches}/{name}}}
    caches: {{compile-cache: {{path: {caches}/{name}/torch_compile_cache, kind: compile}}}}
"""

    return f"""\
schema: 1
name: pair
engine:
  kind: vllm
  version: 0.31.0
  model: {ENGINE}/models/facts
  args: [--max-model-len, "1024", --kv-cache-memory-bytes, "268435456", --{split}-parallel-size, "2",
         {engine}]
  env: {{HF_HUB_OFFLINE: "1", VLLM_NO_USAGE_STATS: "1", CPU_VLLM_COMPILE: "1", GLOO_SOCKET_IFNAME: eth0}}
launch: {{process: {{command: [{ENGINE}/venv/bin/vllm, serve]}}, host: 0.0.0.0, port: 8000}}
nodes:
{node("head", 0, "10.78.0.1", "")}    ports: [29600]
{node("worker", 1, "10.78.0.2", "--headless")}{worker}
deadlines: {{ready: 20m, stop: 25s, release: 30s, peers: {peers}}}
restarts: {restarts}
expect:
  completion: {{prompt: "The capital of France is", contains: Paris}}
{expect}
{WAIVED}"""


LOAD = "  throughput: {concurrency: [1], output_tokens: 900, prompt_tokens: 8, repeats: 7}"


def test_a_warm_restart_is_accepted(net, caches, tmp_path):
    done = gate(tmp_path, net, text=text(net, caches, restarts="[{kind: process}]"), timeout=2400)
    assert done.returncode == 0, done.stdout
    seen = record(tmp_path, "restart-1")
    loaded = {(f["node"], f["rank"]) for f in seen["facts"] if f["fact"] == "compile.cache_loaded"}
    assert loaded == {("head", "TP0"), ("worker", "TP1")}
    versions = {f["node"] for f in seen["facts"] if f["fact"] == "engine.version" and f["source"] == "log"}
    assert versions == {"head", "worker"}
    assert all(left["released"] for left in seen["cleanup"])


@LONG
@pytest.mark.parametrize("split", ["pipeline", "data"])
def test_another_split_over_the_nodes_is_accepted(net, tmp_path, split):
    done = gate(tmp_path, net, text=text(net, tmp_path, restarts="[{kind: process}]", split=split), timeout=2400)
    assert done.returncode == 0, done.stdout
    seen = record(tmp_path, "restart-1")
    assert {f["node"] for f in seen["facts"] if f["fact"] == "compile.cache_loaded"} == {"head", "worker"}
    assert all(left["released"] for left in seen["cleanup"])


@LONG
def test_a_worker_that_never_starts_its_engine_is_missed(net, caches, tmp_path):
    """The head says nothing at all while it waits, for up to half an hour."""
    asleep = '    command: [/bin/sh, -c, "exec sleep 3600"]\n'
    run = gate(tmp_path, net, text=text(net, caches, worker=asleep, peers="60s"), timeout=1200)
    assert run.returncode == 1, run.stdout
    seen = record(tmp_path)
    assert (seen["failure"]["kind"], seen["failure"]["node"]) == ("node-missing", "worker"), run.stdout
    assert all(left["released"] for left in seen["cleanup"])


@LONG
@pytest.mark.skipif(not shutil.which("sshd", path="/usr/sbin:/usr/bin"), reason="no sshd")
def test_a_killed_sshd_while_the_pair_serves(net, caches, tmp_path):
    server = Sshd(tmp_path, net, "worker", "10.78.0.2")
    try:
        reach = f"{{ssh: 10.78.0.2, config: {server.config}}}"
        with Gate(tmp_path, net, text=text(net, caches, LOAD, reach=reach)) as run:
            run.said("ready after", 1300)
            (rank,) = titled("VLLM::Worker_TP1")
            begin = time.monotonic()
            server.kill()
            out = run.end(120)
            assert time.monotonic() - begin < 60
            until(lambda: gone(rank), "the worker's engine ends by itself", 30)
    finally:
        server.close()
    failure = record(tmp_path)["failure"]
    assert (failure["kind"], failure["node"], failure["phase"]) == ("node-lost", "worker", "serving"), out


@LONG
def test_a_rank_that_dies_while_serving_is_named_at_once(net, caches, tmp_path):
    with Gate(tmp_path, net, text=text(net, caches, LOAD)) as run:
        run.said("ready after", 1300)
        everything = processes(run)
        (rank,) = processes(run, "VLLM::Worker_TP1")
        begin = time.monotonic()
        os.kill(rank, signal.SIGKILL)
        run.end(60)
        assert time.monotonic() - begin < 30  # all of it: noticed, both nodes stopped, the record written
    failure = record(tmp_path)["failure"]
    assert failure["node"] == "worker"
    assert failure["phase"] == "serving"
    assert len(everything) == 3
    assert all(gone(pid) for pid in everything)


@LONG
def test_a_cut_between_the_nodes_ends_what_health_calls_healthy(net, caches, tmp_path):
    with Gate(tmp_path, net, text=text(net, caches, LOAD)) as run:
        run.said("ready after", 1300)
        everything = processes(run)
        begin = time.monotonic()
        link(net, "down")
        try:
            run.end(90)
            assert time.monotonic() - begin < 60  # noticed within 5 s; the worker takes 11 s or more to stop
        finally:
            link(net, "up")
    seen = record(tmp_path)
    assert (seen["failure"]["kind"], seen["failure"]["node"]) == ("node-lost", "worker")
    assert all(left["released"] for left in seen["cleanup"])
    assert len(everything) == 3
    assert all(gone(pid) for pid in everything)


#: The worker is started when the head waits for it: as late as can be.
LATE = "    start_when: {node: head, log: 'world_size=2 rank=0', within: 5m}\n"


@LONG
def test_a_late_worker_is_met_and_the_head_alone_can_not_be_restarted(net, caches, tmp_path):
    """The worker that was left up comes to no second rendezvous: told after ``deadlines.peers``, not after 30 min."""
    run = gate(
        tmp_path,
        net,
        text=text(net, caches, restarts="[{kind: process, nodes: [head]}]", worker=LATE, peers="3m"),
        timeout=2400,
    )
    assert record(tmp_path)["ready"], run.stdout
    seen = record(tmp_path, "restart-1")
    assert (seen["failure"]["kind"], seen["failure"]["node"]) == ("node-missing", "worker"), run.stdout
    assert "it was left up and does not come again: this engine needs all its nodes restarted" in run.stdout
    assert all(left["released"] for left in seen["cleanup"])


@LONG
def test_the_worker_alone_can_not_be_restarted(net, caches, tmp_path):
    """The head does not survive the loss of its worker: it ends at the stop, or at the next request."""
    run = gate(tmp_path, net, text=text(net, caches, restarts="[{kind: process, nodes: [worker]}]"), timeout=2400)
    assert record(tmp_path)["ready"], run.stdout
    seen = record(tmp_path, "restart-1")
    assert run.returncode == 1, run.stdout
    assert seen["failure"]["node"] == "head", seen["failure"]
    assert "node head was" in seen["failure"]["summary"] or "on node head" in seen["failure"]["summary"]
    assert "left up" in seen["failure"]["summary"]
    assert "ready_seconds" not in seen


@LONG
def test_a_wrong_master_address_is_named(net, caches, tmp_path):
    run = gate(tmp_path, net, text=text(net, caches, master="10.78.0.77", peers="60s"), timeout=1200)
    seen = record(tmp_path)
    assert (seen["failure"]["kind"], seen["failure"]["node"]) == ("node-missing", "worker"), run.stdout
    assert "worker can't connect to 10.78.0.77:29600 (wrong address or port?)" in run.stdout
    assert all(left["released"] for left in seen["cleanup"])


@LONG
@pytest.mark.parametrize("rank", ["Worker_TP0", "Worker_TP1"])
def test_a_rank_that_is_asked_to_end_while_serving(net, caches, tmp_path, rank):
    with Gate(tmp_path, net, text=text(net, caches, LOAD)) as run:
        run.said("ready after", 1300)
        everything = processes(run)
        (victim,) = processes(run, f"VLLM::{rank}")
        os.kill(victim, signal.SIGTERM)
        run.end(120)
    failure = record(tmp_path)["failure"]
    assert failure["node"] == {"Worker_TP0": "head", "Worker_TP1": "worker"}[rank]
    assert all(gone(pid) for pid in everything)


#: A fault of the start: what stands in the log of ``node`` when it is made, and whom it hits.
KILLS = [
    ("worker", "main", "Starting to load model"),
    ("head", "VLLM::Worker_TP0", "Starting to load model"),
    ("worker", "VLLM::Worker_TP1", "Warming up model"),
    ("head", "VLLM::EngineCore", "Warming up model"),
    ("head", "main", "Warming up model"),
]


@LONG
@pytest.mark.parametrize(("node", "victim", "seen"), KILLS)
def test_a_process_that_is_killed_while_the_pair_starts(net, caches, tmp_path, node, victim, seen):
    """What becomes of the engine is a race, up to a pair that serves with an orphan; the gate names the node."""
    with Gate(tmp_path, net, text=text(net, caches)) as run:
        logged(tmp_path, node, seen)
        everything = processes(run)
        (pid,) = mains(run, node) if victim == "main" else processes(run, victim)
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        run.end(90)
        assert time.monotonic() - begin < 60  # noticed within a second; then both nodes are stopped
    failure = record(tmp_path)["failure"]
    assert failure["node"] == node, failure
    assert "SIGKILL" in failure["summary"], failure
    assert all(gone(pid) for pid in everything)


@LONG
@pytest.mark.parametrize("seconds", [2.0, None], ids=["mended", "for good"])
def test_a_cut_while_the_pair_starts(net, caches, tmp_path, seconds):
    with Gate(tmp_path, net, text=text(net, caches)) as run:
        logged(tmp_path, "worker", "Warming up model")
        everything = processes(run)
        link(net, "down")
        try:
            run.process.wait(seconds or 90)
        except subprocess.TimeoutExpired:
            assert seconds is not None
        finally:
            link(net, "up")
        run.end(600)
    seen = record(tmp_path)
    assert all(gone(pid) for pid in everything)
    if seconds is None:
        assert (seen["failure"]["kind"], seen["failure"]["node"]) == ("node-lost", "worker")
    else:
        assert seen["ready"]
        assert "failure" not in seen


def logged(folder: Path, node: str, text: str, limit: float = 600.0) -> None:
    """Wait until this stands in the log of a node."""

    def there() -> bool:
        return any(text in p.read_text(errors="replace") for p in folder.glob(f".startup/pair/*/*/{node}/engine.log"))

    until(there, f"{text!r} in the log of {node}", limit)


def mains(run: Gate, node: str) -> list[int]:
    """The first process of a node's engine."""
    rank = {"head": "0", "worker": "1"}[node]

    def ours(pid: int) -> bool:
        argv = arguments(pid) or []
        return argv[1:3] == [f"{ENGINE}/venv/bin/vllm", "serve"] and argv[argv.index("--node-rank") + 1] == rank

    return [pid for pid in process_tree(run.process.pid) if ours(pid)]


def titled(start: str) -> list[int]:
    """The processes of this machine that have this title."""
    return [int(p) for p in os.listdir("/proc") if p.isdecimal() and title(int(p)).startswith(start.encode())]


def title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def processes(run: Gate, start: str = "VLLM::") -> list[int]:
    """The engine's processes below a run that have this title (they overwrite their environment with it)."""
    return [pid for pid in process_tree(run.process.pid) if title(pid).startswith(start.encode())]
