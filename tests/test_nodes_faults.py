"""Two nodes, stand-in engine: every end of a node, a rank, the network or our sight of it is an end with a name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers_launch import gone, until
from helpers_nodes import LOGS, RENDEZVOUS, link, needs_namespaces, network, pair, plan

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.nodes.launcher import NodesLauncher

pytestmark = [needs_namespaces, pytest.mark.usefixtures("isolated")]
LOADING = "Starting to load model"
WORKER = {"log": str(LOGS / "worker-warm.log")}


@pytest.fixture(scope="module")
def net():
    with network(f"f{os.getpid()}-") as name:
        yield name


@pytest.fixture
def launcher():
    made = NodesLauncher()
    yield made
    made.close()


def pid(running, node: str) -> int:
    return next(f.value for f in running.facts() if f.name == "process.pid" and f.node == node)


def logged(running, node: str, text: str) -> None:
    path = next(log.path for log in running.logs if log.node == node)
    until(lambda: running.wait_exit(0.02) or text in path.read_text(errors="replace"), f"{text!r} on {node}")
    assert running.exited() is None, running.exited()


def up(running) -> None:
    logged(running, "head", "Application startup complete.")
    logged(running, "worker", "Explicitly set")


def end_after(running, act, limit: float):
    """What ``act`` leads to, and that it is noticed within ``limit`` seconds."""
    begin = time.monotonic()
    act()
    ended = running.wait_exit(limit)
    assert ended is not None, f"nothing noticed within {limit} s"
    assert time.monotonic() - begin <= limit
    return ended


def stopped(running) -> dict[str, list]:
    left = running.stop()
    assert all(one.released for one in left), left
    out: dict[str, list] = {}
    for one in left:
        out.setdefault(one.node, []).append(one)
    return out


@pytest.mark.parametrize("victim", ["head", "worker"])
def test_a_killed_node_is_named_at_once_and_the_other_one_is_stopped(net, launcher, tmp_path, victim):
    running = launcher.start(plan(pair(tmp_path, net), tmp_path))
    up(running)
    pids = {n: pid(running, n) for n in ("head", "worker")}
    ended = end_after(running, lambda: os.kill(pids[victim], signal.SIGKILL), 1.0)
    assert (ended.node, ended.code, ended.reason) == (victim, -9, "killed")
    assert f"on node {victim}" in ended.text
    assert "SIGKILL" in ended.text
    assert set(stopped(running)) == {"head", "worker"}
    assert all(gone(p) for p in pids.values())


@pytest.mark.parametrize("victim", ["head", "worker"])
def test_exit_code_0_after_a_term_from_outside_is_an_end(net, launcher, tmp_path, victim):
    running = launcher.start(plan(pair(tmp_path, net), tmp_path))
    up(running)
    target = pid(running, victim)
    ended = end_after(running, lambda: os.kill(target, signal.SIGTERM), 1.0)
    assert (ended.node, ended.code, ended.reason) == (victim, 0, "exited")
    stopped(running)


def test_a_main_process_killed_while_loading(net, launcher, tmp_path):
    worker = {**WORKER, "kill": {"at": LOADING, "signal": "SIGKILL"}}
    running = launcher.start(plan(pair(tmp_path, net, worker=worker), tmp_path))
    ended = running.wait_exit(10.0)
    assert (ended.node, ended.reason) == ("worker", "killed")
    stopped(running)


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGKILL, "killed"), (signal.SIGTERM, "exited")])
def test_a_killed_rank_is_named_although_its_main_process_lives(net, launcher, tmp_path, number, reason):
    pid_file = tmp_path / "rank.pid"
    child = {"name": "VLLM::Worker_TP1", "pid_file": str(pid_file)}
    running = launcher.start(plan(pair(tmp_path, net, worker={**WORKER, "hang": "end", "children": [child]}), tmp_path))
    up(running)
    rank = int(until(lambda: pid_file.exists() and pid_file.read_text(), "the rank's pid"))
    settle = time.monotonic() + 3.0  # a process counts as long-lived after 2 s
    assert running.wait_exit(settle - time.monotonic()) is None
    ended = end_after(running, lambda: os.kill(rank, number), 2.0)
    assert (ended.node, ended.reason) == ("worker", reason)
    assert f"rank process {rank} (VLLM::Worker_TP1" in ended.text
    assert ended.text.endswith(f"of node worker was killed by {number.name}")
    stopped(running)


def test_a_cut_between_the_nodes_is_told_within_five_seconds(net, launcher, tmp_path):
    """The link of this test goes round the cut cable, as a management network would: the nodes themselves tell it."""
    running = launcher.start(plan(pair(tmp_path, net), tmp_path))
    up(running)
    assert running.wait_exit(1.5) is None  # they have heard each other by then
    try:
        ended = end_after(running, lambda: link(net, "down"), 5.0)
    finally:
        link(net, "up")
    assert (ended.node, ended.reason) == ("worker", "node-lost")
    assert "cut off from the other nodes" in ended.text
    assert "10.78.0.2" in ended.text
    stopped(running)


def test_a_cut_shorter_than_the_patience_is_no_end(net, launcher, tmp_path):
    running = launcher.start(plan(pair(tmp_path, net), tmp_path))
    up(running)
    assert running.wait_exit(1.5) is None
    link(net, "down")
    try:
        assert running.wait_exit(1.0) is None
    finally:
        link(net, "up")
    assert running.wait_exit(5.0) is None
    stopped(running)


def test_a_killed_keeper_is_a_lost_node_and_leaves_nothing(net, launcher, tmp_path):
    running = launcher.start(plan(pair(tmp_path, net), tmp_path))
    up(running)
    engine = pid(running, "worker")
    keeper = int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])
    ended = end_after(running, lambda: os.kill(keeper, signal.SIGKILL), 1.0)
    assert (ended.node, ended.reason) == ("worker", "node-lost")
    stopped(running)
    assert gone(engine)


def test_nobody_comes_to_the_rendezvous(net, launcher, tmp_path):
    head = {"log": str(LOGS / "head-warm.log"), "hang": RENDEZVOUS, "ignore_term": "start"}
    worker = {**WORKER, "hang": "start"}
    profile = pair(tmp_path, net, head, worker, deadlines="{stop: 15s, release: 10s, peers: 2s}")
    running = launcher.start(plan(profile, tmp_path))
    ended = running.wait_exit(10.0)
    assert (ended.node, ended.reason) == ("worker", "not-met")
    assert "worker has not come to the rendezvous (it has printed nothing)" in ended.text
    assert "head waits for the others since" in ended.text
    assert "tcp://10.78.0.1:29600" in ended.text
    begin = time.monotonic()
    stopped(running)
    assert time.monotonic() - begin < 8.0  # the head ignores TERM there: it is killed, not waited for


def test_a_wrong_master_address_is_named(net, launcher, tmp_path):
    retry = (
        "[W1129 16:38:57.128766485 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host "
        "10.78.0.77:29603 - retrying (try=0, timeout=1800000ms, delay=632ms): The client socket has failed to connect "
        "to any network address of (10.78.0.77, 29603). The client socket has failed to connect to 77.86.0.0:39862 "
        "(errno: 113 - No route to host)."
    )
    head = {"log": str(LOGS / "head-warm.log"), "hang": RENDEZVOUS}
    worker = {**WORKER, "insert": {"world_size=2 rank=1": retry}, "hang": "assigned as"}
    worker["log"] = str(tmp_path / "worker.log")
    lines = (LOGS / "worker-warm.log").read_text().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(lines) if "assigned as" in line)
    (tmp_path / "worker.log").write_text("".join(lines[:cut]))
    worker["hang"] = "end"
    profile = pair(tmp_path, net, head, worker, deadlines="{stop: 15s, release: 10s, peers: 2s}")
    running = launcher.start(plan(profile, tmp_path))
    ended = running.wait_exit(10.0)
    assert (ended.node, ended.reason) == ("worker", "not-met")
    assert "worker can't connect to 10.78.0.77:29603 (wrong address or port?)" in ended.text
    assert "77.86" not in ended.text  # what torch prints there is garbage
    stopped(running)


def test_a_node_whose_condition_never_holds_is_not_started(net, launcher, tmp_path):
    keys = "    start_when: {node: head, log: 'this is never said', within: 1s}"
    running = launcher.start(plan(pair(tmp_path, net, worker_keys=keys), tmp_path))
    ended = running.wait_exit(10.0)
    assert (ended.node, ended.reason) == ("worker", "not-started")
    assert "a line that matches 'this is never said' in the log of head did not come within 1 s" in ended.text
    assert set(stopped(running)) == {"head"}


@pytest.mark.parametrize("when", ["log: 'Starting vLLM server'", "port: 8000"])
def test_a_node_is_started_when_another_one_is_so_far(net, launcher, tmp_path, when):
    keys = f"    start_when: {{node: head, {when}, within: 20s}}"
    running = launcher.start(plan(pair(tmp_path, net, worker_keys=keys), tmp_path))
    up(running)
    head, worker = (log.lines.read_text().splitlines() for log in running.logs)
    assert float(worker[0].split("\t")[1]) > float(head[-2].split("\t")[1])  # one clock
    stopped(running)


def test_a_start_that_can_not_be_made_leaves_nothing(net, launcher, tmp_path):
    profile = pair(tmp_path, net, worker_keys="    command: [/nowhere/vllm, serve]")
    with pytest.raises(LaunchError, match=r"node worker: command '/nowhere/vllm' not found"):
        launcher.start(plan(profile, tmp_path))
    assert launcher.start(plan(pair(tmp_path, net), tmp_path, "again")).stop()


def test_a_node_that_does_not_outlive_the_stop_of_another_is_named(net, launcher, tmp_path):
    """As vLLM's head, whose engine dies with its worker. Nothing of either is left."""
    first = launcher.start(plan(pair(tmp_path, net), tmp_path))
    up(first)
    head = pid(first, "head")
    first.spare({"head"})
    assert {one.node for one in first.stop()} == {"worker"}
    os.kill(head, signal.SIGKILL)
    until(lambda: first.spared()["head"].ended(), "the end of the head is known")
    again = "again is not started: node head was to be left up and did not outlive the stop of worker: .* SIGKILL"
    with pytest.raises(LaunchError, match=again):
        launcher.start(plan(pair(tmp_path, net), tmp_path, "again"))
    assert gone(head)


def test_a_node_that_was_left_up_is_told_and_its_end_too(net, launcher, tmp_path):
    first = launcher.start(plan(pair(tmp_path, net), tmp_path))
    up(first)
    head = pid(first, "head")
    first.spare({"head"})
    first.stop()
    second = launcher.start(plan(pair(tmp_path, net), tmp_path, "again"))
    (fact,) = [f for f in second.facts() if f.name == "node.left_up"]
    assert (fact.node, fact.value) == ("head", "reference")
    ended = end_after(second, lambda: os.kill(head, signal.SIGKILL), 1.0)
    assert "left up since reference" in ended.text
    assert set(stopped(second)) == {"head", "worker"}


def test_an_interrupt_while_nodes_are_stopped_is_haste_and_the_proof_comes_first(net, launcher, tmp_path):
    never = {"ignore_term": "always"}
    slow = "{ready: 60s, stop: 300s, release: 20s}"
    running = launcher.start(plan(pair(tmp_path, net, never, never, deadlines=slow), tmp_path))
    up(running)
    pids = [pid(running, node) for node in ("head", "worker")]
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        running.stop()
    assert set(stopped(running)) == {"head", "worker"}
    assert all(gone(p) for p in pids)


def test_a_port_that_is_busy_on_the_head_only(net, launcher, tmp_path):
    """The worker has such a listener too, and nobody minds: it is the head's port."""
    listen = (
        "import socket, sys; s = socket.create_server(('0.0.0.0', 29600)); print('up', flush=True); sys.stdin.read()"
    )
    busy = []
    try:
        for node in ("head", "worker"):
            command = ["nsenter", f"--net=/run/netns/{net}{node}", "--", sys.executable, "-c", listen]
            busy.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert busy[-1].stdout is not None
            assert busy[-1].stdout.readline() == b"up\n"
        profile = pair(tmp_path, net)
        (reason,) = launcher.preflight(profile)
        assert f"node head: port 29600 is already taken by pid {busy[0].pid}" in reason
        with pytest.raises(LaunchError, match=f"node head: port 29600 is already taken by pid {busy[0].pid}"):
            launcher.start(plan(profile, tmp_path))
    finally:
        for process in busy:
            process.communicate(timeout=20)


def test_a_missing_namespace_is_an_error_before_anything_is_started(launcher, tmp_path):
    profile = pair(tmp_path, "nowhere-")
    reasons = launcher.preflight(profile)
    assert len(reasons) == 2
    assert "there is no network namespace nowhere-head (/run/netns/nowhere-head)" in reasons[0]
    with pytest.raises(LaunchError, match="there is no network namespace nowhere-head"):
        launcher.start(plan(profile, tmp_path))
