"""Proof on a node that nobody computes on its GPUs after a stop: asked of ``nvidia-smi`` there, a stand-in here."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest
from helpers_launch import isolate
from helpers_nodes import needs_namespaces, network, pair, plan

from pytest_startup.launch.nodes.docker import gpus_of
from pytest_startup.launch.nodes.gpus import computing, released
from pytest_startup.launch.nodes.launcher import NodesLauncher
from pytest_startup.preflight_nodes import Seen, judge
from pytest_startup.profile.model import ContainerLaunch

#: Two GPUs; what it says of processes stands in the file ``apps``, and of 7 there ends at the second look.
SMI = """\
#!{python}
import pathlib, sys
here = pathlib.Path(__file__).parent
if sys.argv[1].startswith("--query-gpu"):
    print("0, GPU-a, NVIDIA GB10, 580.1, [N/A], [N/A], [N/A]\\n1, GPU-b, NVIDIA GB10, 580.1, [N/A], [N/A], [N/A]")
else:
    said = (here / "apps").read_text()
    print(said)
    (here / "apps").write_text(said.replace("GPU-a, 7, 100", ""))
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    isolate(tmp_path, monkeypatch)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI.format(python=sys.executable))
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def says(*rows: str) -> None:
        (folder / "apps").write_text("\n".join(rows))

    says()
    return says


def test_a_process_that_was_not_there_before_holds_the_gpu(smi):
    smi("GPU-a, 2147483647, 512", "GPU-b, 9, 100")
    assert released({"gpus": ["0"], "before": [], "within": 0.0}) == ["GPU 0: 512 MiB held by pid 2147483647: ?"]
    assert released({"gpus": ["0"], "before": ["2147483647"], "within": 0.0}) == []  # of others, as before
    assert released({"gpus": ["GPU-a"], "before": [], "within": 0.0}) != []
    assert len(released({"gpus": ["all"], "before": [], "within": 0.0}) or []) == 2


def test_it_is_waited_for(smi):
    smi("GPU-a, 7, 100")
    assert released({"gpus": ["0"], "before": [], "within": 30.0}) == []


def test_unified_memory_has_no_figure_and_still_a_holder(smi):
    smi("GPU-a, 2147483647, [N/A]")
    assert computing({"gpus": ["0"]}) == [["2147483647", "GPU 0: held by pid 2147483647: ?"]]


def test_where_nvidia_smi_can_not_be_asked_nothing_is_claimed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert computing({"gpus": ["0"]}) is None
    assert released({"gpus": ["0"], "before": [], "within": 0.0}) is None


@needs_namespaces
@pytest.mark.parametrize("left", [False, True])
def test_a_stop_proves_it_per_node(smi, tmp_path, left):
    with network(f"u{os.getpid()}-") as net:
        profile = pair(tmp_path, net, deadlines="{stop: 15s, release: 0.1s}", worker_keys="    gpus: [1]")
        launcher = NodesLauncher()
        try:
            running = launcher.start(plan(profile, tmp_path))
            if left:
                smi("GPU-b, 2147483647, 512")
            found = [(one.node, one.what, one.released) for one in running.stop() if one.kind == "gpu-memory"]
        finally:
            launcher.close()
    text = "GPU 1: 512 MiB held by pid 2147483647: ?" if left else "GPU 1"
    assert found == [("worker", text, not left)]


def test_gpus_of_all_containers_are_looked_at_too(tmp_path):
    made = pair(tmp_path, "x-")
    container = ContainerLaunch("sha256:1", network="host", gpus=("all",))
    made = replace(made, launch=replace(made.launch, process=None, container=container))
    assert {gpus_of(made, node) for node in made.nodes} == {("all",)}
    device = ["0", "GPU-1", "NVIDIA GB10", "580.1", None, None, None]
    gpu = {"devices": [device], "processes": [["GPU-1", "4711", None, "python train.py"]], "error": None}
    from test_nodes_preflight import node

    docker = {"error": None, "image": "sha256:1", "taken": None}
    found = judge(made, {"worker": Seen(node(gpu=gpu, checkpoint={}, file_systems={}, docker=docker))})
    assert any("node worker: GPU 0: compute process 4711 of others: python train.py" in text for text in found)
