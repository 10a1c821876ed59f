"""One real engine over two nodes in containers of two daemons: TP 2, cold, then fresh containers, caches kept."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from helpers_container_vllm import ENGINE, LONG, WAIVED, need_vllm, volumes
from helpers_docker import TestEngine
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


def test_a_pair_of_containers_is_restarted_warm_and_accepted(engines, tmp_path):
    net, made = engines
    for node in NODES:
        (tmp_path / "caches" / node).mkdir(parents=True)
    done = gate(tmp_path, net, text=text(net, made, tmp_path / "caches"), timeout=2400)
    assert done.returncode == 0, done.stdout
    seen = record(tmp_path, "restart-1")
    loaded = {(f["node"], f["rank"]) for f in seen["facts"] if f["fact"] == "compile.cache_loaded"}
    assert loaded == {("head", "TP0"), ("worker", "TP1")}
    assert {f["node"] for f in seen["facts"] if f["fact"] == "container.image"} == set(NODES)
    assert all(left["released"] for left in seen["cleanup"])
    assert [one.docker("ps", "-aq") for one in made.values()] == ["", ""]


def test_a_container_that_is_killed_while_the_pair_serves_is_named(engines, tmp_path):
    """The head answers /health with 200 until the next request, and the worker's exit code would be 137 or 0."""
    net, made = engines
    for node in NODES:
        (tmp_path / "caches" / node).mkdir(parents=True)
    load = "  throughput: {concurrency: [1], output_tokens: 900, prompt_tokens: 8, repeats: 7}\n"
    with Gate(tmp_path, net, text=text(net, made, tmp_path / "caches", load)) as run:
        run.said("ready after", 1500)
        (container,) = made["worker"].docker("ps", "-q").split()
        begin = time.monotonic()
        made["worker"].docker("kill", container)
        run.end(120)
        assert time.monotonic() - begin < 60
    failure = record(tmp_path)["failure"]
    assert failure["node"] == "worker", failure
    assert "SIGKILL" in failure["summary"], failure
    assert [one.docker("ps", "-aq") for one in made.values()] == ["", ""]
