"""The commands that a profile over two nodes would run: those of the examples equal the hand-written launchers'."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_startup.engines.vllm import VllmDialect
from pytest_startup.launch.base import StartPlan
from pytest_startup.launch.nodes.launcher import node_commands, node_spec, without_api
from pytest_startup.profile.load import load
from pytest_startup.redact import Redactor

EXAMPLES = Path(__file__).parent.parent / "examples"
IMAGE = "vllm/vllm-openai@sha256:" + "0" * 64
LOADER = "/usr/local/lib/python3.12/dist-packages/vllm/model_executor/model_loader/weight_utils.py"
#: What both hand-written launchers pass to docker, besides name, volumes and environment.
HARDWARE = ["--gpus", "all", "--network", "host", "--ipc", "host", "--cap-add", "SYS_NICE", "--ulimit", "memlock=-1"]
HARDWARE += ["--ulimit", "stack=67108864", "--device", "/dev/infiniband"]
ANY = "0.0.0.0"  # noqa: S104 - in the arguments of an engine


def specs(name: str) -> dict[str, dict]:
    profile = load(EXAMPLES / name, {"HF_TOKEN": "hf-of-a-test"})
    commands = node_commands(profile, VllmDialect(), 8888)
    plan = StartPlan(profile, "reference", "fresh-container", Path("/x"), "r1", 8888, (), node_argv=commands)
    return {n.name: node_spec(plan, n, Redactor(profile.secrets), {LOADER: "/there/loader.py"}) for n in profile.nodes}


def docker_parts(argv: list[str]) -> tuple[list[str], list[str], list[str], list[str]]:
    """(options, volumes, names of variables, what stands behind the image)."""
    image = argv.index(IMAGE)
    options, volumes, variables = [], [], []
    words = iter(argv[:image])
    for word in words:
        if word == "-v":
            volumes.append(next(words))
        elif word == "-e":
            variables.append(next(words))
        else:
            options.append(word)
    return options, volumes, variables, argv[image + 1 :]


@pytest.mark.parametrize(
    ("node", "rank", "tail"),
    [("worker", "1", ["--headless"]), ("head", "0", [])],
)
def test_one_container_per_node(node, rank, tail):
    made = specs("gb10-qwen38-pair.yaml")[node]
    assert made["steps"] == []
    # "the gpus" of the node is its own key: GPU 0 of one, which is all of a GB10
    options, volumes, variables, engine = docker_parts(made["argv"])
    label = ["--label", f"org.pytest-startup.node-run=r1.{node}"]
    hardware = ["--gpus", '"device=0"', *HARDWARE[2:]]
    assert options == ["docker", "run", "--name", f"vllm-qwen38-{node}", *label, *hardware]
    assert volumes == [
        "/srv/vllm-cache:/cache/vllm",
        "/srv/hf-cache:/root/.cache/huggingface",
        f"/there/loader.py:{LOADER}:ro",
    ]
    assert {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "VLLM_HOST_IP", "HF_TOKEN"} <= set(variables)
    api = ["--host", ANY, "--port", "8888"] if node == "head" else []
    pair = "--tensor-parallel-size 2 --enable-expert-parallel --nnodes 2 --master-addr 192.0.2.10 --master-port 29501"
    assert engine == [
        "nvidia/Qwen3.8-Flash-Next-NVFP4",
        *api,
        *pair.split(),
        "--max-model-len",
        "262144",
        "--node-rank",
        rank,
        *tail,
    ]
    assert made["own_env"]["VLLM_HOST_IP"] == {"head": "192.0.2.10", "worker": "192.0.2.11"}[node]
    assert "hf-of-a-test" not in " ".join(made["argv"])


def test_idle_containers_ray_and_the_server_by_exec():
    made = specs("gb10-mimo-pair-ray.yaml")
    for node, name in (("head", "mimo-head"), ("worker", "mimo-worker")):
        options, volumes, _, command = docker_parts(made[node]["steps"][0]["argv"])
        label = ["--label", f"org.pytest-startup.node-run=r1.{node}"]
        entry = ["--entrypoint", "sleep"]
        assert options == ["docker", "run", "-d", "--name", name, *label, *HARDWARE, *entry]
        assert command == ["infinity"]
        assert f"/there/loader.py:{LOADER}:ro" in volumes

    def executed(argv: list[str]) -> str:
        words = iter(argv)
        kept = [w for w in words if w != "-e" or not next(words)]
        return " ".join(kept)

    head = [executed(step["argv"]) for step in made["head"]["steps"][1:]]
    assert head == [
        "docker exec mimo-head ray start --head --node-ip-address 192.0.2.10 --port 6379 --num-gpus 1 "
        "--disable-usage-stats",
        "docker exec mimo-head ray status --address 192.0.2.10:6379",
    ]
    assert made["head"]["steps"][2]["until"] == r"/2\.0 GPU"
    assert [step["until"] for step in made["worker"]["steps"]] == [None, r"/1\.0 GPU", None]
    ready, worker = [executed(step["argv"]) for step in made["worker"]["steps"][1:]]
    assert ready == "docker exec mimo-worker ray status --address 192.0.2.10:6379"
    assert worker == (
        "docker exec mimo-worker ray start --address 192.0.2.10:6379 --node-ip-address 192.0.2.11 --num-gpus 1 "
        "--disable-usage-stats"
    )
    assert executed(made["head"]["argv"]) == (
        "docker exec mimo-head vllm serve XiaomiMiMo/MiMo-v2.6 --host 0.0.0.0 --port 8888 --tensor-parallel-size 2 "
        "--distributed-executor-backend ray --max-model-len 262144"
    )
    assert made["worker"]["argv"] == ["docker", "logs", "-f", "mimo-worker"]


def test_the_pair_of_the_cpu_engine_as_plain_processes(tmp_path):
    (tmp_path / "p.yaml").write_text(
        """\
schema: 1
name: pair
engine: {kind: vllm, model: models/dense, args: [--max-model-len, "1024", --tensor-parallel-size, "2", --nnodes, "2", --master-addr, "${node.head.address}", --master-port, "29600"]}
launch: {process: {command: [vllm, serve]}, host: 0.0.0.0, port: 8000}
nodes:
  head: {address: 10.78.0.1, args: [--node-rank, "${node.head.rank}"], ranks: [0], env: {A: "1"}}
  worker: {address: 10.78.0.2, args: [--node-rank, "${node.worker.rank}", --headless], ranks: [1], command: [other, serve]}
restarts: [{kind: process, change: {args: [--enforce-eager]}}]
"""  # noqa: E501  one line per key, as such a profile is written
    )
    profile = load(tmp_path / "p.yaml", {})
    both = "--max-model-len 1024 --tensor-parallel-size 2 --nnodes 2 --master-addr 10.78.0.1 --master-port 29600"
    made = {n: " ".join(argv) for n, argv in node_commands(profile, VllmDialect(), 8000, ["--enforce-eager"]).items()}
    assert made == {
        "head": f"vllm serve models/dense --host 0.0.0.0 --port 8000 {both} --node-rank 0 --enforce-eager",
        "worker": f"other serve models/dense {both} --node-rank 1 --headless --enforce-eager",
    }


def test_only_the_api_options_of_the_dialect_are_left_out():
    served = ("m", "--host", "h", "--port", "1", "--x", "--port", "1", "--host", "other")
    assert without_api(served, "h", 1) == ("m", "--x", "--port", "1", "--host", "other")
