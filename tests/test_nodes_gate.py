"""The gate over two nodes from outside, stand-in engine: what is judged, which nodes are named, what is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time

import pytest
from helpers_launch import FAKE
from helpers_nodes import LOGS, Gate, gate, link, needs_namespaces, network, pair_text, record

pytestmark = [needs_namespaces, pytest.mark.usefixtures("isolated")]
HEAD = {"kv_tokens": 524288}
#: The real head serves only when the worker is ready; the stand-in knows nothing of it.
HEAD_WAITS = "    start_when: {node: worker, log: 'Explicitly set', within: 30s}"
#: What a CPU engine does not show.
WAIVED = """\
waive:
  - {check: graphs, reason: no graphs on a CPU}
  - {check: autotune, reason: nothing is tuned on a CPU}
  - {check: backend, reason: the CPU backend prints none}
"""


@pytest.fixture(scope="module")
def net():
    with network(f"g{os.getpid()}-") as name:
        yield name


def text(net: str, **more) -> str:
    head, worker = {**HEAD, **more.pop("head", {})}, more.pop("worker", {})
    more.setdefault("rest", WAIVED)
    return pair_text(net, head, worker, head_keys=HEAD_WAITS, **more)


def test_a_restart_of_a_pair_is_accepted_with_evidence_of_both_nodes(net, tmp_path):
    done = gate(tmp_path, net, text=text(net))
    assert done.returncode == 0, done.stdout
    assert "ACCEPTED" in done.stdout
    for start in ("reference", "restart-1"):
        seen = record(tmp_path, start)
        by_node: dict[str, set[str]] = {}
        for fact in seen["facts"]:
            by_node.setdefault(fact.get("node"), set()).add(fact["fact"])
        for node in ("head", "worker"):
            assert {"weights.read", "host.page_size", "process.argv", "host.memory_peak"} <= by_node[node], by_node[
                node
            ]
        owner = next(f for f in seen["facts"] if f["fact"] == "endpoint.owner")
        assert re.match(r"node head: port 8000 is held by pid \d+ of the engine", owner["value"])
        assert {(left["kind"], left["node"]) for left in seen["cleanup"]} >= {
            ("pid", "head"),
            ("pid", "worker"),
            ("port", "head"),
        }
        assert all(left["released"] for left in seen["cleanup"])


#: Runs an engine, from its second start on with an argument more.
SCRIPT = """\
#!/bin/sh
test -e "$0.ran" && set -- "$@" --enforce-eager
touch "$0.ran"
"$@" &
child=$!
trap 'kill $child' TERM
wait $child
wait $child
"""


@pytest.mark.parametrize("node", ["head", "worker"])
def test_a_script_on_one_node_that_launches_another_engine_after_the_restart(net, tmp_path, node):
    script = tmp_path / "serve.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    command = f"    command: [{script}, {sys.executable}, {FAKE}, serve]"
    keys = {"worker_keys": command} if node == "worker" else {}
    body = text(net, **keys)
    if node == "head":
        body = body.replace(HEAD_WAITS, f"{HEAD_WAITS}\n{command}")
    done = gate(tmp_path, net, text=body)
    assert done.returncode == 1, done.stdout
    assert "the running engine has other options than on the reference start: --enforce-eager" in done.stdout
    (seen,) = [
        f for f in record(tmp_path, "restart-1")["facts"] if (f["fact"], f.get("node")) == ("process.argv", node)
    ]
    assert seen["value"][-1] == "--enforce-eager"
    assert seen["where"].startswith("/proc/")


def test_a_cut_while_serving_ends_the_workload_and_names_the_node(net, tmp_path):
    rest = "expect: {throughput: {concurrency: [1], output_tokens: 900, repeats: 7}}\n" + WAIVED
    with Gate(tmp_path, net, "-v", text=text(net, head={"token_seconds": 0.05}, rest=rest)) as run:
        run.said("ready after")
        time.sleep(1.5)  # they have heard each other: what is tested is a silence, and that takes time
        begin = time.monotonic()
        try:
            link(net, "down")
            run.said("reference::ready FAILED", 30.0)
            assert time.monotonic() - begin < 5.0 + 13.0  # told within 5 s; the rest is the stop
        finally:
            link(net, "up")
        out = run.end(60)
    assert "node worker is cut off from the other nodes" in out
    seen = record(tmp_path)
    failure = seen["failure"]
    assert (failure["kind"], failure["node"], failure["phase"]) == ("node-lost", "worker", "serving")
    assert all(left["released"] for left in seen["cleanup"])


def test_a_worker_that_dies_while_serving_is_found_although_health_says_200(net, tmp_path):
    rest = "expect: {throughput: {concurrency: [1], output_tokens: 900, repeats: 7}}\n" + WAIVED
    pid_file = tmp_path / "worker.pid"
    worker = {"dump": str(tmp_path / "dump.json")}
    with Gate(tmp_path, net, text=text(net, head={"token_seconds": 0.05}, worker=worker, rest=rest)) as run:
        run.said("ready after")
        env = json.loads((tmp_path / "dump.json").read_text())["env"]
        assert env["PYTEST_STARTUP_RUN"].endswith(".worker")
        victims = [p for p in os.listdir("/proc") if p.isdecimal() and marked(p, env["PYTEST_STARTUP_RUN"])]
        assert len(victims) == 1
        pid_file.write_text(victims[0])
        os.kill(int(victims[0]), signal.SIGKILL)
        out = run.end(60)
    failure = record(tmp_path)["failure"]
    assert failure["node"] == "worker"
    assert "on node worker" in failure["summary"]
    assert "was killed by SIGKILL" in out


def marked(pid: str, run: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"PYTEST_STARTUP_RUN={run}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def test_a_worker_that_dies_while_loading(net, tmp_path):
    worker = {"log": str(LOGS / "worker-warm.log"), "kill": {"at": "Starting to load model", "signal": "SIGKILL"}}
    body = pair_text(net, {**HEAD, "hang": "world_size=2 rank=0"}, worker, rest=WAIVED)
    done = gate(tmp_path, net, text=body)
    assert done.returncode == 1
    failure = record(tmp_path)["failure"]
    assert failure["node"] == "worker"
    assert "killed by SIGKILL" in failure["summary"]


def test_the_head_alone_then_the_worker_alone(net, tmp_path):
    """The worker is silent after its restart: that is red, while a node that was left up is not judged."""
    restarts = "[{kind: process, nodes: [head]}, {kind: process, nodes: [worker]}]"
    starts = [{"log": str(LOGS / "worker-warm.log"), "hang": "end"}, {"hang": "start"}]
    body = text(net, restarts=restarts, worker_keys=f"    caches: {{}}\n    cwd: {tmp_path}")
    body = body.replace(
        "env: {FAKE_ENGINE: " + json.dumps(json.dumps(starts[0])),
        "env: {FAKE_ENGINE_COUNT: count, FAKE_ENGINE: " + json.dumps(json.dumps(starts)),
    )
    done = gate(tmp_path, net, "-v", text=body)
    first, second, third = (record(tmp_path, s) for s in ("reference", "restart-1", "restart-2"))

    def pid(seen, node):
        return next(f["value"] for f in seen["facts"] if f["fact"] == "process.pid" and f["node"] == node)

    assert pid(first, "worker") == pid(second, "worker") != pid(third, "worker")
    assert pid(first, "head") != pid(second, "head") == pid(third, "head")
    assert {left["node"] for left in first["cleanup"]} == {"head"}
    assert {left["node"] for left in second["cleanup"]} == {"worker"}
    assert {left["node"] for left in third["cleanup"]} == {"head", "worker"}
    assert (second["population"], third["population"]) == ("process+only:head", "process+only:worker")
    assert second["ready"]
    assert third["ready"]
    for check in ("identity", "artifacts", "kv", "memory", "cleanup"):
        assert f"restart-1::{check} PASSED" in done.stdout
    assert "left up   restart-1: worker since reference: not started, so nothing of it is judged" in done.stdout
    assert "left up   restart-2: head since restart-1" in done.stdout
    assert done.returncode == 1
    assert "restart-2::artifacts FAILED" in done.stdout
    assert "restart-2::identity FAILED" in done.stdout
    assert "no line of this start is of rank TP1" in done.stdout


def test_preflight_names_all_that_is_wrong_on_all_nodes(net, tmp_path):
    rest = WAIVED + "host: {page_size: 65536, kernel: 6.17.13-rocket64k}"
    body = text(net, rest=rest, worker_keys="    checkpoint: [/nowhere/model]\n    cwd: /nowhere")
    done = gate(tmp_path, net, "--startup-preflight", text=body)
    assert done.returncode == 1
    for node in ("head", "worker"):
        assert f"node {node}: page size 4096, expected 65536 (host.page_size)" in done.stdout
        assert f"node {node}: kernel {os.uname().release}, expected 6.17.13-rocket64k (host.kernel)" in done.stdout
    assert "node worker: /nowhere/model is not there" in done.stdout
    assert "node worker: the working folder is not there" in done.stdout
    assert not (tmp_path / ".startup").exists()


def test_a_run_outside_the_namespaces_sends_nothing(tmp_path):
    (tmp_path / "pair.yaml").write_text(pair_text("nowhere-", rest=WAIVED))
    done = gate(tmp_path, "nowhere-")
    assert done.returncode != 0  # nsenter itself says so
    assert "nowhere-ctl" in done.stderr
