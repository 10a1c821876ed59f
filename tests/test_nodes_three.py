"""Three nodes as one engine: nothing is limited to two. Stand-in engine, plain processes in namespaces."""

from __future__ import annotations

import json
import os

import pytest
from helpers_launch import gone, until
from helpers_nodes import LOGS, gate, link, needs_namespaces, network, pair_text, plan, record

from pytest_startup.launch.nodes.launcher import NodesLauncher
from pytest_startup.launch.nodes.peers import SETTLED, SILENCE, cut_off
from pytest_startup.profile.load import load

pytestmark = pytest.mark.usefixtures("isolated")
NODES = ("head", "worker", "third")
WHOLE = {"world_size=2": "world_size=3", "in world size 2": "in world size 3"}
SECOND = {"rank=1": "rank=2", "rank 1 ": "rank 2 ", "rank 1,": "rank 2,", "TP1": "TP2", "rank_1_0": "rank_2_0"}
WAIVED = "waive:\n" + "".join(f"  - {{check: {c}, reason: a CPU}}\n" for c in ("graphs", "autotune", "backend"))


@pytest.mark.parametrize(
    ("misses", "nodes", "age", "expected"),
    [
        ([], NODES, 9.0, None),
        # of two it is never the one that serves, whoever tells first
        ([("head", "worker", 10.0)], NODES[:2], SILENCE, ("worker", ("head",), 10.0)),
        ([("worker", "head", 10.0)], NODES[:2], SILENCE, ("worker", ("head",), 10.0)),
        # the third is cut off: it tells of both others, each of them of it
        ([("third", "worker", 10.0)], NODES, SILENCE, None),
        ([("third", "worker", 10.0), ("third", "head", 10.2)], NODES, SILENCE, ("third", ("head", "worker"), 10.0)),
        ([("worker", "third", 10.0), ("head", "third", 10.4)], NODES, SILENCE, ("third", ("head", "worker"), 10.0)),
        # the head itself
        ([("worker", "head", 10.0), ("third", "head", 10.0)], NODES, SILENCE, ("head", ("worker", "third"), 10.0)),
        # only one cable is cut: nobody else has told of it in time
        ([("worker", "third", 10.0), ("third", "worker", 10.1)], NODES, SILENCE, None),
        ([("worker", "third", 10.0), ("third", "worker", 10.1)], NODES, SETTLED, ("worker", ("third",), 10.0)),
        ([("head", "third", 10.0)], NODES, SETTLED, ("third", ("head",), 10.0)),
    ],
)
def test_which_node_is_cut_off(misses, nodes, age, expected):
    found = cut_off(misses, nodes, "head", 10.0 + age)
    assert (found and (found.node, found.others, found.since)) == expected


@pytest.fixture(scope="module")
def net():
    with network(f"h{os.getpid()}-", *NODES) as name:
        yield name


def text(net: str) -> str:
    """As a pair, and a third node like the worker; each waits for the one that comes after it."""
    how = {"log": str(LOGS / "worker-warm.log"), "hang": "end", "replace": {**WHOLE, **SECOND}}
    third = f"""\
    start_when: {{node: third, log: 'Explicitly set', within: 60s}}
  third:
    reach: {{namespace: {net}third}}
    address: 10.78.0.3
    ranks: [2]
    args: [--node-rank, "${{node.third.rank}}", --master-addr, "${{node.head.address}}", --headless]
    env: {{FAKE_ENGINE: {json.dumps(json.dumps(how))}}}
"""
    body = pair_text(
        net,
        {"kv_tokens": 524288, "replace": WHOLE},
        {"replace": WHOLE},
        head_keys="    start_when: {node: worker, log: 'Explicitly set', within: 60s}",
        worker_keys=third,
        rest=WAIVED,
    )
    return body.replace('--tensor-parallel-size, "2"', '--tensor-parallel-size, "3"')


@needs_namespaces
def test_a_restart_of_three_is_accepted_with_evidence_of_each(net, tmp_path):
    done = gate(tmp_path, net, text=text(net))
    assert done.returncode == 0, done.stdout
    assert "ACCEPTED" in done.stdout
    for start in ("reference", "restart-1"):
        seen = record(tmp_path, start)
        for name in ("weights.read", "host.page_size", "process.argv", "host.memory_peak"):
            assert {f["node"] for f in seen["facts"] if f["fact"] == name} == set(NODES), name
        ranks = {f["node"]: f["value"] for f in seen["facts"] if f["fact"] == "node.ranks"}
        assert ranks == {"head": [0], "worker": [1], "third": [2]}
        argv = next(f["value"] for f in seen["facts"] if f["fact"] == "process.argv" and f["node"] == "third")
        assert argv[-5:] == ["--node-rank", "2", "--master-addr", "10.78.0.1", "--headless"]
        assert {left["node"] for left in seen["cleanup"]} == set(NODES)
        assert all(left["released"] for left in seen["cleanup"])


@needs_namespaces
def test_the_loss_of_the_third_is_named_and_ends_the_others(net, tmp_path):
    path = tmp_path / "pair.yaml"
    path.write_text(text(net))
    launcher = NodesLauncher()
    try:
        running = launcher.start(plan(load(path, {}), tmp_path))
        log = tmp_path / "reference" / "head" / "engine.log"
        until(lambda: running.wait_exit(0.02) or "startup complete" in log.read_text(), "the head serves", 90.0)
        assert running.exited() is None
        pids = {f.node: f.value for f in running.facts() if f.name == "process.pid"}

        def met() -> bool:
            heard = {f.node: f.value for f in running.facts() if f.name == "node.hears"}
            return heard == {n: sorted({*NODES} - {n}) for n in NODES}

        until(met, "each hears the others", 60.0)
        link(net, "down", "third")
        try:
            ended = running.wait_exit(60.0)
        finally:
            link(net, "up", "third")
        assert ended is not None
        assert (ended.node, ended.reason) == ("third", "node-lost")
        assert "node third is cut off from the other nodes" in ended.text
        left = running.stop()
        assert {one.node for one in left} == set(NODES)
        assert all(one.released for one in left), left
        assert all(gone(pid) for pid in pids.values())
    finally:
        launcher.close()
