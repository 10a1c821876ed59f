"""Profiles over several nodes: what a right one becomes, and the messages of those that must be refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_profile import errors, read

from pytest_startup.profile import model as m
from pytest_startup.profile import nodes as n
from pytest_startup.profile.validate import profile_schema
from pytest_startup.profile.yamltree import parse

FULL = (Path(__file__).parent / "data" / "profile_nodes.yaml").read_text()
BASE = """\
schema: 1
name: pair
engine: {kind: vllm, model: org/model}
launch: {process: {command: [vllm, serve]}, port: 8000}
restarts: [{kind: process}]
nodes:
  head: {address: 192.0.2.1}
  worker: {address: 192.0.2.2}
"""


def test_every_key_of_a_node():
    profile = read(FULL, {"HF_TOKEN": "a-secret-value"})
    head, worker = profile.nodes
    assert head == n.Node(
        name="head",
        address="192.0.2.10",
        reach=n.Reach("ssh", "root@head.example", Path("/nowhere/profiles/ssh_config")),
        api=True,
        args=("--node-rank", "0"),
        env={"VLLM_HOST_IP": "192.0.2.10"},
        command=("other", "serve"),
        cwd=Path("/srv"),
        gpus=("0", "1"),
        ports=(29501, 6379),
        ranks=(0, 1),
        checkpoint=(Path("/srv/model"),),
        caches=(m.CacheFolder("compile-cache", Path("/srv/cache"), "compile"),),
        python="python3.12",
        container=n.NodeContainer("engine-head", {"/srv/cache": "/cache"}, "unix:///run/docker.sock"),
        steps=(
            n.Step(("ray", "start", "--head")),
            n.Step(("ray", "status", "--address", "192.0.2.10:6379"), "4.0 GPU", 180.0),
        ),
    )
    assert (worker.api, worker.reach, worker.start_when) == (
        False,
        n.Reach("namespace", "nodes-worker"),
        n.StartWhen("head", port=6379, within=90.0),
    )
    assert profile.engine.args[-1] == "192.0.2.10"
    assert profile.secrets == {"a-secret-value"}  # addresses are none
    assert [r.population for r in profile.restarts] == [
        "fresh-container+wiped:compile-cache",
        "fresh-container+only:worker",
    ]
    assert profile.deadlines.peers == 120.0


def test_the_example_uses_every_key():
    def keys(part, at: str):
        for key, inner in part.get("properties", {}).items():
            yield f"{at}.{key}"
            yield from keys(inner, f"{at}.{key}")
        for inner in (part.get("items"), *part.get("anyOf", ())):
            if isinstance(inner, dict):
                yield from keys(inner, at)

    def used(data, at: str):
        for key, inner in data.items() if isinstance(data, dict) else ():
            yield f"{at}.{key}"
            yield from used(inner, f"{at}.{key}")
        for inner in data if isinstance(data, list) else ():
            yield from used(inner, at)

    found = {key for node in parse(FULL.encode()).data["nodes"].values() for key in used(node, "")}
    either_or = {".start_when.log", ".reach.context"}  # a port or a line; one way to a node
    assert set(keys(profile_schema()["$defs"]["node"], "")) - found == either_or


def test_a_docker_context_is_a_way_to_a_node():
    body = BASE.replace("192.0.2.2}", "192.0.2.2, reach: {context: gb10-b}}")
    assert read(body).nodes[1].reach == n.Reach("context", "gb10-b")
    ways = "p.yaml:8: nodes.worker.reach: expected local, {ssh: TARGET}, {context: NAME} or {namespace: NAME}"
    assert ways in errors(body.replace("gb10-b}", "gb10-b, ssh: x}"))


def test_same_container_is_refused_with_nodes():
    container = f"{{container: {{image: 'sha256:{'1' * 64}', network: host}}, port: 8000}}"
    body = BASE.replace("{process: {command: [vllm, serve]}, port: 8000}", container)
    expected = (
        "p.yaml:5: restarts.0.kind: with nodes every container is a fresh one: a stop removes it; expected "
        "fresh-container (caches stay in volumes)"
    )
    assert expected in errors(body.replace("{kind: process}", "{kind: same-container}"))


def test_the_first_node_serves_unless_another_one_says_so():
    assert [node.api for node in read(BASE).nodes] == [True, False]
    other = BASE.replace("{address: 192.0.2.2}", "{address: 192.0.2.2, api: true}")
    assert [node.api for node in read(other).nodes] == [False, True]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "  worker: {address: 192.0.2.2}\n",
            "",
            "p.yaml:6: nodes: only one node; expected two or more, or no nodes at all",
        ),
        (
            "port: 8000",
            "port: auto",
            "p.yaml:4: launch.port: with nodes the port of the API must be given (it is chosen on another host); "
            "expected launch.port: 8000",
        ),
        (
            "port: 8000",
            "port: 8000, gpus: [0]",
            "p.yaml:4: launch.gpus: with nodes each has GPUs of its own; expected them in nodes.NAME.gpus",
        ),
        (
            "192.0.2.2",
            "192.0.2.1",
            "p.yaml:8: nodes.worker.address: 192.0.2.1 is also the address of head; expected its own",
        ),
        (
            "192.0.2.2",
            '"::"',
            "p.yaml:8: nodes.worker.address: :: is every address; expected the one that others use",
        ),
        (
            "192.0.2.2}",
            "192.0.2.2, reach: {ssh: -oProxyCommand=x}}",
            "p.yaml:8: nodes.worker.reach.ssh: -oProxyCommand=x would be an option of ssh; expected [USER@]HOST",
        ),
        (
            "192.0.2.2}",
            "192.0.2.2, reach: {namespace: ../x}}",
            "p.yaml:8: nodes.worker.reach.namespace: '../x' is no name of a namespace (see: ip netns list)",
        ),
        (
            "192.0.2.2}",
            "192.0.2.2, reach: {ssh: b}, cwd: sub}",
            "p.yaml:8: nodes.worker.cwd: sub is relative, and the node has no folder of this profile; expected an "
            "absolute path",
        ),
        (
            "192.0.2.2}",
            "192.0.2.2, start_when: {node: haed, port: 1}}",
            "p.yaml:8: nodes.worker.start_when.node: no node haed; did you mean head?",
        ),
        (
            "192.0.2.2}",
            "192.0.2.2, start_when: {node: head}}",
            "p.yaml:8: nodes.worker.start_when: expected exactly one of log and port",
        ),
        (
            "192.0.2.2}",
            "192.0.2.2, ranks: [1], args: ['${node.haed.address}']}",
            "p.yaml:8: nodes.worker.args.0: no value for ${node.haed.address}; did you mean ${node.head.address}?",
        ),
        (
            "192.0.2.2}",
            "192.0.2.2, steps: [{exec: [a]}]}",
            "p.yaml:8: nodes.worker.steps: only with launch.container, which the nodes have in common",
        ),
        (
            "[{kind: process}]",
            "[{kind: process, nodes: [wroker]}]",
            "p.yaml:5: restarts.0.nodes.0: no node wroker; did you mean worker?",
        ),
        (
            "restarts:",
            "deadlines: {stop: 10s}\nrestarts:",
            "p.yaml:5: deadlines.stop: 10 s is too short: a headless node takes 11 s to end after TERM; "
            "expected at least 12s",
        ),
    ],
)
def test_messages(old, new, expected):
    assert expected in errors(BASE.replace(old, new))


def test_nodes_that_wait_for_each_other():
    body = BASE.replace("192.0.2.1}", "192.0.2.1, start_when: {node: worker, port: 1}}")
    body = body.replace("192.0.2.2}", "192.0.2.2, start_when: {node: head, port: 1}}")
    expected = "p.yaml:7: nodes.head.start_when.node: nodes wait for each other: head for worker for head"
    assert expected in errors(body)


def test_containers_use_the_network_of_their_host():
    body = FULL.replace("    network: host\n", "    docker_host: unix:///x\n")
    found = errors(body, {"HF_TOKEN": "a-secret-value"})
    assert any("with nodes the containers use the network of their host; expected network: host" in e for e in found)
    assert any("without docker_host; expected nodes.NAME.container.docker_host" in e for e in found)


def test_nodes_of_a_restart_need_nodes():
    body = "\n".join(BASE.replace("[{kind: process}]", "[{kind: process, nodes: [a]}]").splitlines()[:5])
    assert "p.yaml:5: restarts.0.nodes: the profile has no nodes; expected nodes: {head: …, worker: …}" in errors(body)
