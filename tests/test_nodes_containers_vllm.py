"""One real engine over two nodes in containers of two daemons: TP 2, cold, then fresh containers, caches kept."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from helpers_container_vllm import ENGINE, LONG, WAIVED, need_vllm, volumes
from helpers_docker import TestEngine
from helpers_launch import until
from helpers_nodes import Gate, gate, needs_namespaces, record, two_engines

pytestmark = [needs_namespaces, LONG, pytest.mark.usefixtures("isolated")]
NODES = ("head", "worker")


@pytest.fixture
def engines():
    need_vllm()
    with two_engines(f"d{os.getpid()}-") as made:
        yield made


def text(net: str, made: dict[str, TestEngine], caches: Path, expect: str = "") -> str:
    rows = "\n".join(
        f"      {source}: {target}"
        for source, target in {**volumes(), str(ENGINE / "models" / "facts"): "/model:ro"}.items()
    )

    def node(name: str, rank: int, address: str, more: str) -> str:
        return f"""\
  {name}:
    reach: {{namespace: {net}{name}}}
    address: {address}
    ranks: [{rank}]
    args: [--node-rank, "{rank}"{more}]
    env: {{VLLM_HOST_IP: {address}, VLLM_CPU_OMP_THREADS_BIND: "{rank}"}}
    container: {{docker_host: "{made[name].url}", volumes: {{{caches}/{name}: /cache}}}}
    caches: {{compile-cache: {{path: {caches}/{name}/torch_compile_cache, kind: compile}}}}
"""

    return f"""\
schema: 1
name: pair
engine:
  kind: vllm
  version: 0.31.0
  model: /model
  served_name: facts
  args: [--served-model-name, facts, --max-model-len, "1024", --kv-cache-memory-bytes, "268435456",
         --tensor-parallel-size, "2", --nnodes, "2", --master-addr, "${{node.head.address}}", --master-port, "29600"]
  env: {{HF_HUB_OFFLINE: "1", VLLM_NO_USAGE_STATS: "1", CPU_VLLM_COMPILE: "1", GLOO_SOCKET_IFNAME: eth0,
        VLLM_CACHE_ROOT: /cache}}
launch:
  container:
    image: {made["head"].image}
    command: [{ENGINE}/venv/bin/vllm, serve]
    network: host
    shm_size: 1g
    volumes:
{rows}
  host: 0.0.0.0
  port: 8000
nodes:
{node("head", 0, "10.78.0.1", "")}    ports: [29600]
{node("worker", 1, "10.78.0.2", ", --headless")}
deadlines: {{ready: 20m, stop: 25s, release: 30s}}
restarts: [{{kind: fresh-container}}]
expect:
  completion: {{prompt: "The capital of France is", contains: Paris}}
{expect}{WAIVED}"""


def caches(folder: Path) -> Path:
    """A cache folder per node."""
    for node in NODES:
        (folder / "caches" / node).mkdir(parents=True)
    return folder / "caches"


def test_a_pair_of_containers_is_restarted_warm_and_accepted(engines, tmp_path):
    net, made = engines
    done = gate(tmp_path, net, text=text(net, made, caches(tmp_path)), timeout=2400)
    assert done.returncode == 0, done.stdout
    seen = record(tmp_path, "restart-1")
    loaded = {(f["node"], f["rank"]) for f in seen["facts"] if f["fact"] == "compile.cache_loaded"}
    assert loaded == {("head", "TP0"), ("worker", "TP1")}
    assert {f["node"] for f in seen["facts"] if f["fact"] == "container.image"} == set(NODES)
    assert all(left["released"] for left in seen["cleanup"])
    assert [one.docker("ps", "-aq") for one in made.values()] == ["", ""]


@pytest.mark.parametrize("what", ["container", "daemon"])
def test_the_end_of_the_worker_s_container_or_daemon_while_the_pair_serves(engines, tmp_path, what):
    """The head answers /health with 200 until the next request, and the worker's exit code would be 137 or 0."""
    net, made = engines
    load = "  throughput: {concurrency: [1], output_tokens: 900, prompt_tokens: 8, repeats: 7}\n"
    with Gate(tmp_path, net, text=text(net, made, caches(tmp_path), load)) as run:
        run.said("ready after", 1500)
        begin = time.monotonic()
        if what == "container":
            made["worker"].docker("kill", *made["worker"].docker("ps", "-q").split())
        else:
            os.kill(made["worker"].pid, signal.SIGKILL)
        out = run.end(120)
        assert time.monotonic() - begin < 60
    seen = record(tmp_path)
    assert seen["failure"]["node"] == "worker", seen["failure"]
    assert made["head"].docker("ps", "-aq") == ""
    if what == "container":
        assert "SIGKILL" in seen["failure"]["summary"], seen["failure"]
        assert made["worker"].docker("ps", "-aq") == ""
    else:
        assert seen["failure"]["kind"] == "daemon-lost", seen["failure"]
        assert [left["kind"] for left in seen["cleanup"] if not left["released"]] == ["container"], out


#: A test of the user's own beside the gate, which leaves the engine idle for a while and then asks it.
IDLE = """\
import pathlib, time

HERE = pathlib.Path(__file__).parent


def test_idle(engine):
    (HERE / "idle").touch()
    until = time.monotonic() + 60
    while not (HERE / "killed").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert engine.complete("The capital of France is").error is None
"""


def test_a_container_that_is_killed_while_nobody_asks(engines, tmp_path):
    """No request is in flight, the head's /health stays at 200, and all checks were green: the gate's watch knows."""
    net, made = engines
    (tmp_path / "test_idle.py").write_text(IDLE)
    with Gate(tmp_path, net, "test_idle.py", text=text(net, made, caches(tmp_path))) as run:
        until(lambda: (tmp_path / "idle").exists() or run.process.poll() is not None, "the engine is idle", 1500)
        made["worker"].docker("kill", *made["worker"].docker("ps", "-q").split())
        (tmp_path / "killed").touch()
        out = run.end(120)
    assert run.process.returncode == 1, out
    assert "node worker (pid" in out, out
    assert "was killed by SIGKILL" in out, out
    assert "REJECTED  the engine did not live until it was stopped" in out, out
    assert [one.docker("ps", "-aq") for one in made.values()] == ["", ""]
