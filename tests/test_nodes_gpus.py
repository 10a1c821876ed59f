"""GPUs of nodes: nobody computes on them after a stop (``nvidia-smi``), and how much memory a start took (NVML)."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from helpers_launch import isolate, until
from helpers_nodes import needs_namespaces, network, pair, plan

from pytest_startup.launch.nodes import boot, keeper, nvml
from pytest_startup.launch.nodes.docker import gpus_of
from pytest_startup.launch.nodes.gpus import computing, released
from pytest_startup.launch.nodes.launcher import NodesLauncher, sampled_gpus
from pytest_startup.observe.gpus import Nvml
from pytest_startup.preflight_nodes import Seen, judge
from pytest_startup.profile.expect import Range
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


# Memory, through NVML itself: sampled on the node, by its driver's library.


class Driver:
    """Stands in for the C library: a GPU with memory, one that shares the host's; 40 compute processes on the first."""

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.nvmlErrorString = lambda code: {3: b"Not Supported", 6: b"Not Found"}.get(code)

    def __getattr__(self, name):
        if name in self.answers:
            return self.answers[name]
        if name == "nvmlDeviceGetMigMode":  # an old driver without it
            raise AttributeError(name)
        return lambda *args: DRIVER[name](*args)


def _text(value):
    def function(*args):
        args[-2].value = value

    return lambda *args: function(*args) or 0


def _number(value):
    def function(*args):
        args[-1]._obj.value = value
        return 0

    return function


def _handle(which, handle):
    index = {b"GPU-b": 1}.get(which.value, 9) if isinstance(which, ctypes.c_char_p) else which.value
    handle._obj.value = index + 1
    return 0 if index < 2 else 6


def _memory(device, memory):
    if device.value != 1:
        return 3
    memory._obj.total, memory._obj.used = 141 * GIB, 90 * GIB
    return 0


def _running(device, count, rows):
    room, count._obj.value = count._obj.value, 40
    if room < 40:
        return 7
    for number in range(40):
        rows[number].pid, rows[number].used = 100 + number, (GIB if number else 2**64 - 1)
    return 0 if device.value == 1 else 3


GIB = 2**30
DRIVER = {
    "nvmlInit_v2": lambda: 0,
    "nvmlShutdown": lambda: 0,
    "nvmlSystemGetDriverVersion": _text(b"580.65.06"),
    "nvmlDeviceGetCount_v2": _number(2),
    "nvmlDeviceGetHandleByIndex_v2": _handle,
    "nvmlDeviceGetHandleByUUID": _handle,
    "nvmlDeviceGetIndex": lambda device, index: _number(device.value - 1)(index),
    "nvmlDeviceGetName": _text(b"NVIDIA H200"),
    "nvmlDeviceGetUUID": _text(b"GPU-a"),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetComputeRunningProcesses_v3": _running,
}


def test_the_driver_s_library_says_what_the_package_would(monkeypatch):
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: {"libnvidia-ml.so.1": Driver()}[name])
    with Nvml(None, nvml.Library()) as seen:
        assert (seen.reason, seen.driver) == (None, "580.65.06")
        first, second = seen.gpus()
        assert (first.used, first.total, first.unknown, first.mig) == (90 * GIB, 141 * GIB, None, None)
        assert first.processes is not None
        assert (len(first.processes), first.processes[0].used, first.processes[39].pid) == (40, None, 139)
        assert (second.used, second.unknown) == (None, "not supported")  # never 0
    with Nvml(["GPU-b", "7"], nvml.Library()) as seen:
        assert [gpu.index for gpu in seen.gpus()] == [1]
        assert seen.problems() == ("GPU 7: Not Found",)
    refuses = Driver({"nvmlInit_v2": lambda: 9})
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda _: refuses)
    assert Nvml(None, nvml.Library()).reason == "no NVML: NVML error 9"


@pytest.mark.parametrize(("ours", "theirs"), [("_Memory", "c_nvmlMemory_t"), ("_Process", "c_nvmlProcessInfo_v2_t")])
def test_what_the_library_fills_in_lies_as_the_package_says(ours, theirs):
    def layout(structure):
        places = [getattr(structure, name) for name, _ in structure._fields_]
        return ctypes.sizeof(structure), [(one.offset, one.size) for one in places]

    assert layout(getattr(nvml, ours)) == layout(getattr(pytest.importorskip("pynvml"), theirs))


def test_a_node_without_a_driver_says_why(monkeypatch):
    def none(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nvml.ctypes, "CDLL", none)
    (fact,) = keeper.gpu_facts(Nvml(None, nvml.Library()))
    assert fact.name == "gpu.memory_unknown"
    assert fact.value.startswith("no NVML: libnvidia-ml.so.1: cannot open shared object file")


#: Put in the place of the driver's library on the nodes: how much is in use stands in the file ``used``, in GiB.
FAKE = """
from pathlib import Path
def Library():
    class Now(FakeNvml):
        def nvmlDeviceGetMemoryInfo(self, device):
            if device.used is not None:
                device.used = int(Path({used!r}).read_text()) * GIB
            return super().nvmlDeviceGetMemoryInfo(device)
    return Now(Device("NVIDIA H200", "GPU-a"), Device("NVIDIA GB10", "GPU-b", None, None))
"""


@needs_namespaces
@pytest.mark.usefixtures("smi")
def test_the_peak_of_each_gpu_is_sampled_on_its_node(tmp_path, monkeypatch):
    used = tmp_path / "used"

    def uses(gib):
        (tmp_path / "draft").write_text(gib)
        os.replace(tmp_path / "draft", used)

    uses("1")
    real = boot.payload()
    sources = json.loads(zlib.decompress(real[10:]))
    fake = Path(__file__).with_name("helpers_nvml.py").read_text() + FAKE.format(used=str(used))
    sources["pytest_startup.launch.nodes.nvml"] = (False, fake)
    data = zlib.compress(json.dumps(sources).encode())
    monkeypatch.setattr(boot, "payload", lambda: b"%010d" % len(data) + data)

    def seen(running):
        rows = [f for f in running.facts() if f.name.startswith("gpu.memory_")]
        return {(f.node, f.detail.get("at", ""), f.detail["gpu"]): f.value for f in rows}

    with network(f"m{os.getpid()}-") as net:
        profile = pair(tmp_path, net, head_keys="    gpus: [0]", worker_keys="    gpus: [1]")
        launcher = NodesLauncher()
        try:
            running = launcher.start(plan(profile, tmp_path))
            uses("90")
            until(lambda: seen(running).get(("head", "peak", 0)) == 90.0, "the peak")
            uses("2")
            facts = running.facts()
            found = seen(running)
            running.stop()
            after = {(f.node, f.detail.get("at")) for f in running.facts() if f.name.startswith("gpu.memory_")}
        finally:
            launcher.close()
    assert found == {
        ("head", "", 0): 141.0,  # gpu.memory_total
        ("head", "before", 0): 1.0,
        ("head", "peak", 0): 90.0,
        ("head", "after", 0): 2.0,
        ("worker", "before", 1): "not supported",
        ("worker", "after", 1): "not supported",
    }
    assert ("head", "peak") in after
    assert ("head", "after") not in after  # what is left after a stop is no figure of the start
    assert {(f.node, f.value) for f in facts if f.name == "gpu.name"} == {
        ("head", "NVIDIA H200"),
        ("worker", "NVIDIA GB10"),
    }
    lowest = {f.node: f for f in facts if f.name == "host.memory_available" and f.detail.get("at") == "lowest"}
    assert set(lowest) == {"head", "worker"}  # the only witness of the second one
    assert all(0.0 <= (f.evidence.seconds or 0.0) < 60.0 and f.value > 0 for f in lowest.values())


def test_whose_memory_is_sampled(tmp_path):
    made = pair(tmp_path, "x-", head_keys="    gpus: [0]")
    head, worker = made.nodes
    assert (sampled_gpus(made, head), sampled_gpus(made, worker)) == (["0"], [])
    limited = replace(made, expect=replace(made.expect, memory=replace(made.expect.memory, gpu_peak_gib=Range(max=9))))
    assert (sampled_gpus(limited, head), sampled_gpus(limited, worker)) == (["0"], ["all"])
    pinned = replace(made, host=replace(made.host, gpu_count=1))
    assert sampled_gpus(pinned, worker) == ["all"]
