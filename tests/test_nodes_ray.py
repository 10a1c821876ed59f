"""Idle containers, a Ray cluster over both nodes by exec until it shows two GPUs, then the server by exec on the head.

``data/nodes/ray`` holds what the real ``ray status`` (2.60.0) said with nobody there (after 36 s, exit code 1), while
its head was starting (exit code 0!), of one node (20 s after the other one was killed) and of two.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers_container_vllm import ENGINE, LONG, need_vllm, volumes
from helpers_nodes import gate, needs_namespaces, record, two_engines

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.nodes.steps import StepFailed, last_words, run_steps

pytestmark = pytest.mark.usefixtures("isolated")

HERE = Path(__file__).parent
SAID = HERE / "data" / "nodes" / "ray"
EXAMPLE = HERE.parent / "examples" / "gb10-mimo-pair-ray.yaml"


def condition(node: str = "head") -> str:
    """The example's own: when does the cluster hold both GPUs (head), or that of the head (worker)?"""
    steps = yaml.safe_load(EXAMPLE.read_text())["nodes"][node]["steps"]
    (until,) = [step["until"] for step in steps if "until" in step]
    return until


@pytest.mark.parametrize(("said", "holds"), [("nobody", False), ("starting", False), ("one", False), ("two", True)])
def test_the_start_condition_on_what_ray_really_says(said, holds):
    text = (SAID / f"{said}.txt").read_text()
    assert bool(re.search(condition(), text)) is holds
    assert bool(re.search(condition("worker"), text)) is (said == "one")


def test_a_step_is_repeated_until_the_cluster_is_whole(tmp_path):
    """An exit code of 0 says nothing: Ray gives it before it has a status."""
    queue = tmp_path / "queue"
    queue.write_text("nobody starting one two two")
    show = (
        f"import pathlib, sys; q = pathlib.Path({str(queue)!r}); first, *rest = q.read_text().split(); "
        f"q.write_text(' '.join(rest)); print(open({str(SAID)!r} + '/' + first + '.txt').read()); "
        "sys.exit(first == 'nobody')"
    )
    run_steps([{"argv": [sys.executable, "-c", show], "until": condition(), "within": 60.0}], {}, "/")
    assert queue.read_text() == "two"


def test_a_cluster_that_stays_too_small_is_told_with_its_last_words():
    show = f"print(open({str(SAID / 'one.txt')!r}).read())"
    with pytest.raises(LaunchError, match=r"no '/2\\\\.0 GPU' within 0.5 s: .*0\.0/1\.0 GPU"):
        run_steps([{"argv": [sys.executable, "-c", show], "until": condition(), "within": 0.5}], {}, "/")


@pytest.mark.parametrize(
    ("said", "last"),
    [
        ("", "it has said nothing"),
        ("a\n b  c\n\n", "a b c"),
        ("Traceback (most recent call last):\n  File x\nValueError: no ray.\n", "ValueError: no ray."),
    ],
)
def test_the_words_that_a_failed_step_leaves(said, last):
    """Below a traceback it is the last line that counts."""
    assert last_words(said) == last


@pytest.mark.parametrize(
    ("shown", "code", "expected"),
    [
        ("ray start", 3, (StepFailed, "step failed with exit code 3: no ray (ray start)")),
        (None, 3, (LaunchError, "the start of the idle container failed with exit code 3: no ray")),
        ("ray start", 0, None),
    ],
)
def test_a_step_of_the_profile_is_not_the_container_around_it(shown, code, expected):
    argv = [sys.executable, "-c", f"print('no ray'); raise SystemExit({code})"]
    steps = [{"argv": argv, "until": None, "within": 60.0, "shown": shown}]
    if expected is None:
        run_steps(steps, {}, "/")
        return
    with pytest.raises(LaunchError, match=re.escape(expected[1])) as failed:
        run_steps(steps, {}, "/")
    assert type(failed.value) is expected[0]


# The rest takes minutes, with the real ray package and the real engine.


def need_ray() -> Path:
    """A virtual environment with ray that sees the engine's packages, beside the engine's own."""
    need_vllm()
    venv = ENGINE / "ray"
    if not (venv / "complete").exists():
        subprocess.run([ENGINE / "venv" / "bin" / "python", "-m", "venv", venv], check=True)
        pip = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "ray==2.60.0"], check=True)
        (site,) = venv.glob("lib/python3*/site-packages")
        (engine,) = (ENGINE / "venv").glob("lib/python3*/site-packages")
        (site / "engine.pth").write_text(f"{engine}\n")
        (venv / "complete").touch()
    return venv


@pytest.fixture(scope="module")
def engines():
    with two_engines(f"r{os.getpid()}-") as made:
        yield made


def text(engines, venv: Path, serve: list[str], model: str, args: list[str], env: dict[str, str]) -> str:
    net, made = engines
    ray = str(venv / "bin" / "ray")
    mounts = {**volumes(), str(venv): f"{venv}:ro", str(HERE): "/tests:ro", str(ENGINE / "models"): "/models:ro"}
    size = ["--num-cpus", "1", "--num-gpus", "1", "--disable-usage-stats", "--object-store-memory", "100000000"]
    head = [ray, "start", "--head", "--node-ip-address", "${node.head.address}", "--port", "6379", *size]
    head += ["--include-dashboard=false"]
    worker = [
        ray,
        "start",
        "--address",
        "${node.head.address}:6379",
        "--node-ip-address",
        "${node.worker.address}",
        *size,
    ]
    status = [ray, "status", "--address", "${node.head.address}:6379"]

    def node(name: str, address: str, rank: int, steps: list[dict[str, object]]) -> dict[str, object]:
        own = {"VLLM_HOST_IP": address, "RAY_ADDRESS": "10.78.0.1:6379"}
        return {
            "reach": {"namespace": f"{net}{name}"},
            "address": address,
            "ranks": [rank],
            "env": own if name == "head" else {"VLLM_HOST_IP": address},
            "container": {"docker_host": made[name].url},
            "steps": steps,
        }

    patience = {"within": "5m"}
    nodes = {
        "head": node(
            "head", "10.78.0.1", 0, [{"exec": head, **patience}, {"exec": status, "until": condition(), **patience}]
        ),
        "worker": node(
            "worker",
            "10.78.0.2",
            1,
            [{"exec": status, "until": condition("worker"), **patience}, {"exec": worker, **patience}],
        ),
    }
    container = {
        "image": made["head"].image,
        "network": "host",
        "shm_size": "1g",
        "volumes": mounts,
        "command": [str(venv / "bin" / "python"), "-c", "import time; time.sleep(36000)"],
        "exec_command": serve,
    }
    waived = [{"check": c, "reason": "a CPU"} for c in ("graphs", "autotune", "backend")]
    return json.dumps(  # JSON is YAML
        {
            "schema": 1,
            "name": "pair",
            "engine": {
                "kind": "vllm",
                "model": model,
                "args": args,
                "env": {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": "/tmp/cache", **env},
            },
            "launch": {"container": container, "host": "0.0.0.0", "port": 8000},  # noqa: S104 - inside a namespace
            "nodes": nodes,
            "deadlines": {"ready": "20m", "stop": "15s", "release": "30s"},
            "restarts": [{"kind": "fresh-container"}],
            "waive": waived,
        }
    )


@LONG
@needs_namespaces
def test_the_real_engine_refuses_ray_on_a_cpu_and_the_gate_says_so(engines, tmp_path):
    venv = need_ray()
    serve = [str(venv / "bin" / "python"), str(ENGINE / "venv" / "bin" / "vllm"), "serve"]
    args = ["--tensor-parallel-size", "2", "--distributed-executor-backend", "ray", "--max-model-len", "1024"]
    done = gate(tmp_path, engines[0], text=text(engines, venv, serve, "/models/facts", args, {}), timeout=1500)
    assert done.returncode == 1, done.stdout
    failure = record(tmp_path)["failure"]
    assert failure["node"] == "head"
    assert failure["kind"] == "unsupported-backend"
    assert "current platform cpu does not support ray" in done.stdout


@LONG
@needs_namespaces
def test_a_stand_in_behind_the_real_cluster_is_accepted_and_restarted(engines, tmp_path):
    venv = need_ray()
    serve = [str(venv / "bin" / "python"), "/tests/fake_engine.py", "serve"]
    env = {"FAKE_ENGINE": json.dumps({"log": "/tests/data/nodes/head-warm.log", "kv_tokens": 524288})}
    done = gate(tmp_path, engines[0], text=text(engines, venv, serve, "models/dense", [], env), timeout=1500)
    assert done.returncode == 0, done.stdout
    assert all(left["released"] for left in record(tmp_path, "restart-1")["cleanup"])
    for made in engines[1].values():
        assert made.docker("ps", "-aq") == ""
