"""``--startup-keep`` over nodes: all stay up when the run is over, are named by the next one, and can be ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from helpers_launch import gone, until
from helpers_nodes import LOGS, Sshd, gate, inside, needs_namespaces, network, pair, pair_text, plan, record

from pytest_startup.launch import registry
from pytest_startup.launch.nodes.launcher import NodesLauncher
from pytest_startup.profile.load import load
from pytest_startup.profile.nodes import clean_command

pytestmark = pytest.mark.usefixtures("isolated")
WAIVED = "waive:\n" + "".join(f"  - {{check: {c}, reason: a CPU}}\n" for c in ("graphs", "autotune", "backend"))
HEAD_WAITS = "    start_when: {node: worker, log: 'Explicitly set', within: 60s}"


@pytest.fixture(scope="module")
def net():
    with network(f"k{os.getpid()}-") as name, inside(name):
        yield name


def clean(*args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pytest_startup.cli", "clean", *args]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)


def pids(folder: Path) -> dict[str, int]:
    seen = record(folder, "restart-1")
    return {f["node"]: f["value"] for f in seen["facts"] if f["fact"] == "process.pid"}


@needs_namespaces
@pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="no sshd (openssh-server)")
def test_all_nodes_stay_up_and_are_ended_on_request(net, tmp_path):
    """The head is of this machine, the worker is reached by ssh, whose connection is gone when the run is over."""
    sshd = Sshd(tmp_path, net, "worker", "10.78.0.2")
    mine: dict[str, int] = {}
    try:
        reach = f"{{ssh: 10.78.0.2, config: {sshd.config}}}"
        head = {"log": str(LOGS / "head-warm.log"), "kv_tokens": 524288}
        text = pair_text(net, head, head_keys=HEAD_WAITS, worker_reach=reach, rest=WAIVED)
        done = gate(tmp_path, net, "--startup-keep", text=text)
        mine = pids(tmp_path)
        assert done.returncode == 1, done.stdout  # no acceptance: what a stop releases was not seen
        assert "pair.yaml::restart-1::cleanup" in done.stdout
        assert "0 failed, 0 not exercised, 1 not observable" in done.stdout
        profile = tmp_path / "pair.yaml"
        assert "left running at http://10.78.0.1:8000 as asked" in done.stdout
        assert "end it with: pytest-startup clean --yes --profile" in done.stdout
        assert not any(gone(pid) for pid in mine.values())
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert direct.open("http://10.78.0.1:8000/health", timeout=10).status == 200

        launcher = NodesLauncher()
        try:
            reasons = launcher.preflight(load(profile, {}))
        finally:
            launcher.close()
        assert any("node head: port 8000 is already taken by" in text for text in reasons), reasons
        (told,) = [text for text in reasons if "still up: process of run" in text]
        assert ": node head: still up: " in told
        assert "left up on purpose: " in told
        assert told.endswith(f"; end it with: pytest-startup clean --yes --profile {profile}")

        seen = clean("--profile", str(profile))
        assert seen.returncode == 1, seen.stdout + seen.stderr
        assert f"  pid {mine['head']}: " in seen.stdout
        far = seen.stdout[seen.stdout.index("node worker: process of run") :]
        assert f"  pid {mine['worker']}: " in far
        assert not any(gone(pid) for pid in mine.values())

        ended = clean("--profile", str(profile), "--yes")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert f"pid {mine['worker']} " in ended.stdout
        assert all(gone(pid) for pid in mine.values())
        assert clean("--profile", str(profile)).stdout == "nothing is left of dead runs\n"
    finally:
        for pid in mine.values():
            if not gone(pid):
                os.kill(pid, 9)
        sshd.close()


@needs_namespaces
def test_a_node_that_has_ended_is_not_kept_and_the_others_are_stopped(net, tmp_path):
    launcher = NodesLauncher()
    try:
        running = launcher.start(plan(pair(tmp_path, net), tmp_path))
        log = tmp_path / "reference" / "head" / "engine.log"
        until(lambda: "startup complete" in log.read_text(), "the head serves", 60.0)
        mine = {f.node: f.value for f in running.facts() if f.name == "process.pid"}
        os.kill(mine["worker"], 9)
        until(lambda: running.exited() is not None, "its end is seen", 30.0)
        assert not running.keep()
        assert all(one.released for one in running.stop())
        assert all(gone(pid) for pid in mine.values())
    finally:
        launcher.close()


def test_how_what_was_left_up_is_ended(tmp_path):
    near = pair(tmp_path, "x-")
    assert clean_command(near) == "pytest-startup clean --yes"
    far = pair(tmp_path, "x-", worker_reach="{ssh: worker.example}")
    assert clean_command(far) == f"pytest-startup clean --yes --profile {tmp_path / 'pair.yaml'}"


def test_clean_with_a_profile_that_helps_nothing(tmp_path):
    pair(tmp_path, "x-")
    done = clean("--profile", str(tmp_path / "pair.yaml"))
    assert done.returncode == 0, done.stdout
    assert "no node of it is behind ssh" in done.stderr
    done = clean("--profile", str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert done.stderr.startswith("pytest-startup clean: ")
    assert "none.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh (openssh-client)")
def test_a_node_that_does_not_answer_is_told(tmp_path):
    (tmp_path / "config").write_text("Host *\n  ProxyCommand false\n")
    pair(tmp_path, "x-", worker_reach=f"{{ssh: worker.example, config: {tmp_path / 'config'}}}")
    done = clean("--profile", str(tmp_path / "pair.yaml"))
    assert done.returncode == 1
    assert "node worker (ssh worker.example) can't be reached" in done.stderr
    assert done.stdout == "nothing is left of dead runs where it could be looked\n"
    assert list(registry.entries(registry.state_folder())) == []
