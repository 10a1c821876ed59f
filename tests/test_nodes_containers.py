"""A container per node, of two daemons: by the node's own docker command, in the foreground or idle with steps."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from helpers_docker import TestEngine
from helpers_launch import until
from helpers_nodes import Sshd, gate, inside, needs_namespaces, plan, record, two_engines

from pytest_startup.launch.nodes import member
from pytest_startup.launch.nodes.launcher import NodesLauncher
from pytest_startup.profile.load import load

pytestmark = [needs_namespaces, pytest.mark.usefixtures("isolated")]
PYTHON = str(Path(sys.executable).resolve())
TESTS = Path(__file__).parent
NODES = ("head", "worker")
HEAD_LOG = "/tests/data/nodes/head-warm.log"


@pytest.fixture(scope="module")
def engines():
    with two_engines(f"c{os.getpid()}-") as made:
        yield made


@pytest.fixture
def launcher():
    made = NodesLauncher()
    yield made
    made.close()


def profile(
    folder: Path,
    engines,
    container: str,
    worker_keys: str = "",
    head_keys: str = "",
    image: str | None = None,
    worker_how: dict | None = None,
    head_how: dict | None = None,
    worker_reach: str | None = None,
):
    net, made = engines
    how = {
        "head": json.dumps(head_how or {"log": HEAD_LOG}),
        "worker": json.dumps(worker_how or {"log": "/tests/data/nodes/worker-warm.log", "hang": "end"}),
    }
    text = f"""\
schema: 1
name: pair
engine: {{kind: vllm, model: models/dense}}
launch:
  container:
    image: {image or made["head"].image}
    network: host
    volumes: {{{TESTS}: /tests:ro}}
{container}
  host: 0.0.0.0
  port: 8000
nodes:
  head:
    reach: {{namespace: {net}head}}
    address: 10.78.0.1
    args: [--node-rank, "0"]
    env: {{FAKE_ENGINE: {json.dumps(how["head"])}}}
    container: {{docker_host: "{made["head"].url}"}}
{head_keys}
  worker:
    reach: {worker_reach or f"{{namespace: {net}worker}}"}
    address: 10.78.0.2
    args: [--node-rank, "1", --headless]
    env: {{FAKE_ENGINE: {json.dumps(how["worker"])}}}
    container: {{docker_host: "{made["worker"].url}"}}
{worker_keys}
deadlines: {{stop: 12s, release: 10s}}
restarts: [{{kind: fresh-container}}]
"""
    path = folder / "pair.yaml"
    path.write_text(text)
    return load(path, {})


PLAIN = f"    command: [{PYTHON}, /tests/fake_engine.py, serve]"
IDLE = f"""\
    command: [{PYTHON}, -c, "import time; time.sleep(3600)"]
    exec_command: [{PYTHON}, /tests/fake_engine.py, serve]"""


def logged(running, node: str, text: str) -> None:
    path = next(log.path for log in running.logs if log.node == node)
    until(lambda: running.wait_exit(0.02) or text in path.read_text(errors="replace"), f"{text!r} on {node}", 40.0)
    assert running.exited() is None, running.exited()


def containers(engine: TestEngine) -> list[str]:
    return engine.docker("ps", "-aq", "--filter", "label=org.pytest-startup.node-run").split()


def test_a_container_per_node(engines, launcher, tmp_path):
    made = profile(tmp_path, engines, PLAIN)
    assert launcher.preflight(made) == []
    running = launcher.start(plan(made, tmp_path))
    logged(running, "head", "Application startup complete.")
    logged(running, "worker", "Explicitly set")
    for node in NODES:
        (one,) = containers(engines[1][node])
        seen = engines[1][node].inspect(one)
        assert seen["Name"] == f"/pytest-startup-pair-{node}"
        assert seen["HostConfig"]["NetworkMode"] == "host"
    left = running.stop()
    assert all(one.released for one in left), left
    assert {one.node for one in left if one.kind == "container"} == set(NODES)
    assert [containers(engines[1][n]) for n in NODES] == [[], []]
    assert "Application shutdown complete." in (tmp_path / "reference" / "head" / "engine.log").read_text()  # TERM came


def facts(running, name: str) -> dict[str, list]:
    out: dict[str, list] = {}
    for fact in running.facts():
        if fact.name == name:
            out.setdefault(fact.node, []).append(fact)
    return out


def test_who_runs_on_each_node(engines, launcher, tmp_path):
    """Image, overlay file as the container sees it, memory and listener are of the container, on both nodes."""
    patch = tmp_path / "loader.py"
    patch.write_text("patched = True\n")
    digest = hashlib.sha256(patch.read_bytes()).hexdigest()
    files = f"{PLAIN}\n    files: [{{host: {patch}, path: /opt/loader.py, sha256: {digest}}}]"
    made = profile(tmp_path, engines, files)
    running = launcher.start(plan(made, tmp_path))
    logged(running, "head", "Application startup complete.")
    until(lambda: set(facts(running, "file.sha256")) == set(NODES), "the containers were looked at")
    until(lambda: set(facts(running, "host.memory_peak")) == set(NODES), "and their memory")

    def least(node: str) -> list[int]:
        seen = facts(running, "host.shm_free").get(node, ())
        return [f.detail["bytes"] for f in seen if f.detail.get("at") == "lowest"]

    until(lambda: all(map(least, NODES)), "and their /dev/shm")
    for node in NODES:
        (image,) = facts(running, "container.image")[node]
        assert image.value == engines[1][node].image
        (seen,) = facts(running, "file.sha256")[node]
        assert (seen.value, seen.detail["path"]) == (digest, "/opt/loader.py")
        assert max(least(node)) <= 64 << 20  # its own, as docker makes it: not that of the host
        (peak,) = facts(running, "host.memory_peak")[node]
        assert peak.value > 0.005  # a Python with a server, GiB
    assert running.owner().who == "ours"
    assert all(one.released for one in running.stop())


def test_a_rank_that_dies_in_a_container_is_named(engines, launcher, tmp_path):
    child = {"name": "VLLM::Worker_TP1", "pid_file": "/tmp/rank.pid"}
    how = {"log": "/tests/data/nodes/worker-warm.log", "hang": "end", "children": [child]}
    made = profile(tmp_path, engines, PLAIN, worker_how=how)
    running = launcher.start(plan(made, tmp_path))
    logged(running, "worker", "Explicitly set")
    worker = engines[1]["worker"]
    until(lambda: "worker" in facts(running, "host.memory_peak"), "its processes are watched")
    settle = time.monotonic() + 3.0  # a process counts as long-lived after 2 s
    assert running.wait_exit(settle - time.monotonic()) is None
    worker.docker("exec", "pytest-startup-pair-worker", "sh", "-c", "kill -9 $(cat /tmp/rank.pid)")
    ended = running.wait_exit(3.0)
    assert ended is not None
    assert ended.node == "worker"
    assert "VLLM::Worker_TP1" in ended.text
    assert all(one.released for one in running.stop())


def test_overlay_files_over_ssh_are_sent_compared_and_mounted(engines, launcher, tmp_path):
    net, made = engines
    patch = tmp_path / "loader.py"
    patch.write_text("patched = True\n")
    digest = hashlib.sha256(patch.read_bytes()).hexdigest()
    files = f"{PLAIN}\n    files: [{{host: {patch}, path: /opt/loader.py, sha256: {digest}}}]"
    with inside(net):
        sshd = Sshd(tmp_path, net, "worker", "10.78.0.2")
        try:
            reach = f"{{ssh: 10.78.0.2, config: {sshd.config}}}"
            built = profile(tmp_path, engines, files, worker_reach=reach)
            assert launcher.preflight(built) == []
            running = launcher.start(plan(built, tmp_path))
            logged(running, "worker", "Explicitly set")
            (one,) = containers(made["worker"])
            (mount,) = [m for m in made["worker"].inspect(one)["Mounts"] if m["Destination"] == "/opt/loader.py"]
            assert mount["Source"] != str(patch)  # it was sent
            assert not mount["RW"]
            until(lambda: "worker" in facts(running, "file.sha256"), "the worker's container was looked at")
            assert facts(running, "file.sha256")["worker"][0].value == digest
            assert all(left.released for left in running.stop())
            launcher.close()
        finally:
            sshd.close()


def test_a_killed_container_is_named_at_once_while_nobody_asks(engines, launcher, tmp_path):
    running = launcher.start(plan(profile(tmp_path, engines, PLAIN), tmp_path))
    logged(running, "worker", "Explicitly set")
    worker = engines[1]["worker"]
    begin = time.monotonic()
    worker.docker("kill", "pytest-startup-pair-worker")
    ended = running.wait_exit(2.0)
    assert ended is not None
    assert time.monotonic() - begin < 2.0
    assert (ended.node, ended.code, ended.reason) == ("worker", 137, "killed")
    assert "was killed by SIGKILL (exit code 137)" in ended.text
    assert all(one.released for one in running.stop())
    assert [containers(engines[1][n]) for n in NODES] == [[], []]


def test_idle_containers_steps_and_the_engine_by_exec(engines, launcher, tmp_path, monkeypatch):
    monkeypatch.setattr(member, "STARTS_WITHIN", 0.0)  # what steps may take is theirs: Ray took 66 s on a loaded host
    ask = "import urllib.request as u; print(u.urlopen('http://10.78.0.1:6379').read().decode())"
    serve = (
        "import http.server as h, os, sys; os.fork() and sys.exit(); os.setsid(); "
        "[os.dup2(os.open('/dev/null', os.O_RDWR), i) for i in range(3)]; "
        "os.chdir('/tmp'); open('index.html', 'w').write('2.0 GPU'); "
        "h.ThreadingHTTPServer(('0.0.0.0', 6379), h.SimpleHTTPRequestHandler).serve_forever()"
    )
    head = f"""\
    steps:
      - {{exec: [{PYTHON}, -c, {json.dumps(serve)}]}}
      - {{exec: [{PYTHON}, -c, {json.dumps(ask)}], until: '2\\.0 GPU', within: 20s}}
"""
    worker = f"""\
    steps:
      - {{exec: [{PYTHON}, -c, {json.dumps(ask)}], until: '2\\.0 GPU', within: 20s}}
"""
    made = profile(tmp_path, engines, IDLE, worker, head)
    running = launcher.start(plan(made, tmp_path))
    logged(running, "head", "Application startup complete.")
    until(lambda: "head" in facts(running, "container.image"), "the container was looked at")
    begin = time.monotonic()
    assert all(one.released for one in running.stop())
    assert time.monotonic() - begin < 60
    assert [containers(engines[1][n]) for n in NODES] == [[], []]
    assert "Application shutdown complete." in (tmp_path / "reference" / "head" / "engine.log").read_text()  # TERM came


def test_a_step_that_fails_names_node_and_words_and_leaves_nothing(engines, launcher, tmp_path):
    refusal = "import sys; print('ValueError: current platform cpu does not support ray.'); sys.exit(1)"
    head = f"    steps: [{{exec: [{PYTHON}, -c, {json.dumps(refusal)}]}}]"
    running = launcher.start(plan(profile(tmp_path, engines, IDLE, head_keys=head), tmp_path))
    ended = running.wait_exit(30.0)
    assert ended is not None
    assert (ended.node, ended.reason) == ("head", "step-failed")
    assert "current platform cpu does not support ray" in ended.text
    left = running.stop()
    assert "head" in {one.node for one in left}  # what is proved is said, though its keeper has removed it already
    assert all(one.released for one in left), left
    assert [containers(engines[1][n]) for n in NODES] == [[], []]


def test_preflight_of_containers(engines, launcher, tmp_path):
    worker = engines[1]["worker"]
    worker.docker("create", "--name", "pytest-startup-pair-worker", worker.image, PYTHON)
    try:
        reasons = launcher.preflight(profile(tmp_path, engines, PLAIN))
        assert len(reasons) == 1
        assert "node worker: the name is taken by a container" in reasons[0]
    finally:
        worker.docker("rm", "pytest-startup-pair-worker")
    other = "sha256:" + "1" * 64
    reasons = launcher.preflight(profile(tmp_path, engines, PLAIN, image=other))
    assert [f"node {n}: there is no image {other}" in r for n, r in zip(NODES, reasons, strict=True)] == [True, True]


def test_the_gate_accepts_a_pair_of_containers_by_what_runs_on_each_node(engines, tmp_path):
    net, _ = engines
    patch = tmp_path / "loader.py"
    patch.write_text("patched = True\n")
    digest = hashlib.sha256(patch.read_bytes()).hexdigest()
    files = f"{PLAIN}\n    files: [{{host: {patch}, path: /opt/loader.py, sha256: {digest}}}]"
    waits = "    start_when: {node: worker, log: 'Explicitly set', within: 60s}"
    profile(tmp_path, engines, files, head_keys=waits, head_how={"log": HEAD_LOG, "kv_tokens": 524288})
    rows = "".join(f"  - {{check: {c}, reason: a CPU}}\n" for c in ("graphs", "autotune", "backend"))
    body = (tmp_path / "pair.yaml").read_text() + f"waive:\n{rows}"
    done = gate(tmp_path, net, "-v", text=body, timeout=240)
    assert done.returncode == 0, done.stdout
    assert "ACCEPTED" in done.stdout
    seen = record(tmp_path, "restart-1")
    for name in ("container.image", "file.sha256", "host.memory_peak", "container.memory_peak"):
        assert {f["node"] for f in seen["facts"] if f["fact"] == name} == set(NODES), name
    assert all(left["released"] for left in seen["cleanup"])


def test_a_killed_daemon_is_an_end_with_a_name(engines, launcher, tmp_path):
    """The last one: its daemon does not come back. The container runs on, and that is said."""
    running = launcher.start(plan(profile(tmp_path, engines, PLAIN), tmp_path))
    logged(running, "worker", "Explicitly set")
    os.kill(engines[1]["worker"].pid, signal.SIGKILL)
    ended = running.wait_exit(3.0)
    assert ended is not None
    assert (ended.node, ended.reason) == ("worker", "daemon-lost")
    assert "the container engine of node worker went away " in ended.text
    assert "Cannot connect to the Docker daemon" in ended.text
    left = [one for one in running.stop() if not one.released]
    assert [(one.kind, one.node) for one in left] == [("container", "worker")]
    assert "daemon" in left[0].what
