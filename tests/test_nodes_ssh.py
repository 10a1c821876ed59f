"""A node over a real sshd: the operator's own ssh, its end and its silence noticed, nothing left behind over there."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from helpers_launch import gone, until
from helpers_nodes import Sshd, inside, link, needs_namespaces, network, pair, plan

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.nodes.launcher import NodesLauncher
from pytest_startup.launch.nodes.ssh import SshMaster

pytestmark = [
    pytest.mark.usefixtures("isolated"),
    needs_namespaces,
    pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="no sshd (openssh-server)"),
]


@pytest.fixture(scope="module")
def net():
    with network(f"s{os.getpid()}-") as name, inside(name):
        yield name


@pytest.fixture
def sshd(net, tmp_path):
    made = Sshd(tmp_path, net, "worker", "10.78.0.2")
    yield made
    made.close()


@pytest.fixture
def launcher():
    made = NodesLauncher()
    yield made
    made.close()


def over_ssh(folder, net, sshd, **more):
    more.setdefault("worker_reach", f"{{ssh: 10.78.0.2, config: {sshd.config}}}")
    return pair(folder, net, **more)


def pid(running, node: str) -> int:
    return next(f.value for f in running.facts() if f.name == "process.pid" and f.node == node)


def logged(running, text: str) -> None:
    path = next(log.path for log in running.logs if log.node == "worker")
    until(lambda: running.wait_exit(0.02) or text in path.read_text(errors="replace"), text)
    assert running.exited() is None, running.exited()


def test_start_logs_facts_and_stop_over_ssh(net, sshd, launcher, tmp_path):
    profile = over_ssh(tmp_path, net, sshd)
    assert launcher.preflight(profile) == []
    running = launcher.start(plan(profile, tmp_path))
    logged(running, "Explicitly set")
    engine = pid(running, "worker")
    offset = next(f for f in running.facts() if f.name == "node.clock_offset" and f.node == "worker")
    assert abs(offset.value) < 0.1  # one machine has one clock
    left = running.stop()
    assert all(one.released for one in left), left
    assert {one.node for one in left} == {"head", "worker"}
    assert gone(engine)


def test_a_killed_sshd_is_a_lost_node_and_the_engine_there_ends_by_itself(net, sshd, launcher, tmp_path):
    running = launcher.start(plan(over_ssh(tmp_path, net, sshd), tmp_path))
    logged(running, "Explicitly set")
    engine = pid(running, "worker")
    begin = time.monotonic()
    sshd.kill()
    ended = running.wait_exit(1.0)
    assert ended is not None
    assert time.monotonic() - begin < 1.0
    assert (ended.node, ended.reason) == ("worker", "node-lost")
    until(lambda: gone(engine), "the engine on the lost node has ended", 10.0)
    left = running.stop()
    lost = [one for one in left if not one.released]
    assert [one.kind for one in lost] == ["node"], left
    assert "node worker can't be reached" in lost[0].what


def test_a_silent_partition_is_told_within_five_seconds(net, sshd, launcher, tmp_path):
    deadlines = "{ready: 60s, stop: 12s, release: 2s}"
    running = launcher.start(plan(over_ssh(tmp_path, net, sshd, deadlines=deadlines), tmp_path))
    logged(running, "Explicitly set")
    engine = pid(running, "worker")
    begin = time.monotonic()
    link(net, "down")
    try:
        ended = running.wait_exit(5.0)
        assert ended is not None
        assert time.monotonic() - begin <= 5.0
        assert (ended.node, ended.reason) == ("worker", "node-lost")
        until(lambda: gone(engine), "its lease over, the node has ended its engine", 20.0)
    finally:
        link(net, "up")
    left = running.stop()
    assert all(one.released for one in left), left  # it answers again: what is gone there could be proved


def test_what_a_dead_run_left_on_a_node_is_removed_by_the_next_one(net, sshd, launcher, tmp_path):
    """The keeper there is killed together with the link: nobody is left to end the engine but the next run."""
    said: list[str] = []
    first, second = launcher, NodesLauncher(said.append)
    child = {"setsid": True, "ignore_term": True, "pid_file": str(tmp_path / "child.pid")}
    profile = over_ssh(tmp_path, net, sshd, worker={"children": [child]})
    running = first.start(plan(profile, tmp_path))
    logged(running, "Explicitly set")
    orphan = int(until(lambda: (tmp_path / "child.pid").exists() and (tmp_path / "child.pid").read_text(), "its pid"))
    engine = pid(running, "worker")
    keeper = int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])
    until(lambda: registered(orphan), "the child is in the registry")
    os.kill(keeper, 9)
    sshd.kill()
    assert [one.kind for one in running.stop() if not one.released] == ["node"]
    first.close()
    assert not gone(orphan)
    again = Sshd(tmp_path / "again", net, "worker", "10.78.0.2") if (tmp_path / "again").mkdir() is None else sshd
    try:
        reach = f"{{ssh: 10.78.0.2, config: {again.config}}}"
        later = second.start(plan(pair(tmp_path, net, worker_reach=reach), tmp_path, "later"))
        assert gone(orphan)
        assert any(f"pid {orphan}" in text and "removed" in text for text in said), said
        later.stop()
    finally:
        second.close()
        again.close()


def registered(process: int) -> bool:
    folder = Path(f"/tmp/pytest-startup-{os.getuid()}")

    def text(path: Path) -> str:
        try:
            return path.read_text()
        except FileNotFoundError:  # a run of somebody else has ended
            return ""

    return any(f'"pid": {process},' in text(path) for path in folder.glob("*.json"))


def test_what_ssh_says_is_passed_on(net, sshd, launcher, tmp_path):
    sshd.known_hosts.write_text("")
    (reason,) = launcher.preflight(over_ssh(tmp_path, net, sshd))
    assert "node worker (ssh 10.78.0.2) can't be reached: ssh 10.78.0.2:" in reason
    assert "Host key verification failed" in reason
    with pytest.raises(LaunchError, match="Host key verification failed"):
        launcher.start(plan(over_ssh(tmp_path, net, sshd), tmp_path))


def test_words_with_spaces_and_quotes_survive_the_login_shell(sshd):
    master = SshMaster("10.78.0.2", sshd.config)
    try:
        master.open()
        words = ["printf", "%s|", "a b", "it's", '"x"', "$HOME", "`id`", "a\nb", "*"]
        done = subprocess.run(
            master.command(words), capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
        assert done.stdout == "".join(f"{w}|" for w in words[2:])
    finally:
        master.close()


def test_the_host_of_a_docker_context_is_a_target(sshd):
    master = SshMaster("ssh://root@10.78.0.2:22", sshd.config)
    try:
        master.open()
        done = subprocess.run(
            master.command(["echo", "there"]), capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
        assert done.stdout == "there\n"
    finally:
        master.close()
