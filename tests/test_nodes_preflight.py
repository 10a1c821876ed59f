"""What the nodes say of themselves, judged: each alone, and against each other. Pure: nothing is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers_nodes import LOGS, needs_namespaces
from helpers_profile import read

from pytest_startup.launch.nodes.gpus import parse_csv
from pytest_startup.launch.nodes.inspect import file_system, manifest
from pytest_startup.launch.nodes.peers import deaf
from pytest_startup.launch.nodes.rendezvous import Stand, missing
from pytest_startup.preflight_nodes import Seen, judge, own_files

TEXT = """\
schema: 1
name: pair
engine: {kind: vllm, model: org/model, revision: fc694b54fb0174e0913e6adf86691ef85a4ead47, args: [ARGS]}
launch: {process: {command: [vllm, serve]}, port: 8000}
host: {page_size: 65536, kernel: 6.17.13-*, driver: "580.*", gpu: GB10, gpu_count: 1}
nodes:
  head: {address: 192.0.2.1, gpus: [0], checkpoint: [/model]}
  worker: {address: 192.0.2.2, gpus: [0], checkpoint: [/model]}
restarts: [{kind: process}]
"""
GIB = 2**30


def node(**changes: Any) -> dict[str, Any]:
    same = {"files": 14, "shards": 11, "size": 133 * GIB, "hash": "a" * 64}
    return {
        "page_size": 65536,
        "kernel": "6.17.13-rocket64k",
        "memory": {"MemAvailable": 100 * GIB},
        "shm_free": 60 * GIB,
        "shm_stale": [],
        "address": None,
        "ports": {},
        "locks": {},
        "kept": [],
        "checkpoint": {"/model": {**same, "revision": "fc694b54fb0174e0913e6adf86691ef85a4ead47"}},
        "file_systems": {"/model": "ext4", "/cache": "ext4"},
        "caches": {"compile": "/cache"},
        "files": {},
        "docker": None,
        "sources": [],
        "command": "/usr/bin/vllm",
        "cwd": True,
        "gpu": gpu(),
        **changes,
    }


def gpu(**changes: Any) -> dict[str, Any]:
    device = ["0", "GPU-1", "NVIDIA GB10", "580.95.05", None, None, None]
    return {"devices": [device], "processes": [], "error": None, **changes}


def said(worker: dict[str, Any], head: dict[str, Any] | None = None, args: str = "", clock: float = 0.0) -> list[str]:
    profile = read(TEXT.replace("ARGS", args))
    return judge(profile, {"head": Seen(head or node()), "worker": Seen(worker, clock, 0.05)})


def test_two_good_nodes():
    assert said(node()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"page_size": 4096}, "node worker: page size 4096, expected 65536 (host.page_size)"),
        ({"page_size": 4096}, "p.yaml:6: page size differs: head 65536, worker 4096"),
        ({"kernel": "6.8.0"}, "node worker: kernel 6.8.0, expected 6.17.13-* (host.kernel)"),
        ({"address": "no interface of this node has it"}, "192.0.2.2: no interface of this node has it"),
        ({"ports": {"8000": "pid 7: nginx"}}, "node worker: port 8000 is already taken by pid 7: nginx"),
        ({"locks": {"gpu 0": "run x"}}, "node worker: gpu 0 is in use by run x"),
        ({"cwd": False}, "node worker: the working folder is not there"),
        ({"command": None}, "node worker: the command is not there or may not be executed"),
        ({"checkpoint": {"/model": {"missing": True}}}, "node worker: /model is not there"),
        (
            {"checkpoint": {"/model": {"shards": 10, "hash": "a" * 64, "revision": None}}},
            "p.yaml:6: checkpoint shards differs: head 11, worker 10",
        ),
        (
            {"checkpoint": {"/model": {"shards": 11, "hash": "b" * 64, "revision": None}}},
            f"checkpoint manifest (names, sizes, small files) differs: head {'a' * 12}, worker {'b' * 12}",
        ),
        (
            {"checkpoint": {"/model": {"shards": 11, "hash": "a" * 64, "revision": "0" * 40}}},
            f"node worker: revision {'0' * 40}, expected fc694b54fb0174e0913e6adf86691ef85a4ead47",
        ),
        (
            {"file_systems": {"/model": "ext4", "/cache": "tmpfs"}},
            "file system of cache compile differs: head ext4, worker tmpfs",
        ),
        (
            {"gpu": gpu(devices=[["0", "GPU-1", "NVIDIA GB10", "580.95.05", None, "128000", "2061"]])},
            "node worker: GPU 0: 2061 MiB are in use, and no process is seen (a process in another container,",
        ),
        ({"file_systems": {"/model": "nfs4"}}, "file system of the checkpoint differs: head ext4, worker nfs4"),
        (
            {"shm_stale": [["/dev/shm/old", 400.0]]},
            "node worker: /dev/shm/old in /dev/shm holds 400.0 GiB and nobody has changed it for ten minutes",
        ),
        ({"gpu": gpu(error="no nvidia-smi", devices=[])}, "node worker: GPUs can't be seen: no nvidia-smi"),
        (
            {"gpu": gpu(devices=[["0", "GPU-1", "NVIDIA H200", "570.1", None, None, None]])},
            "node worker: GPU 0 is NVIDIA H200, expected GB10 (host.gpu)",
        ),
        (
            {"gpu": gpu(devices=[["0", "GPU-1", "NVIDIA GB10", "570.1", None, None, None]])},
            "p.yaml:6: GPU driver differs: head 580.95.05, worker 570.1",
        ),
        ({"gpu": gpu(devices=[])}, "node worker: 0 GPUs, expected 1 (host.gpu_count)"),
        ({"gpu": gpu(devices=[])}, "node worker: there is no GPU 0"),
        (
            {"gpu": gpu(devices=[["0", "GPU-1", "NVIDIA GB10", "580.95.05", "Enabled", None, None]])},
            "node worker: GPU 0 is in MIG mode; expected a MIG device's UUID, or MIG off",
        ),
        (
            {"gpu": gpu(processes=[["GPU-1", "4711", "2048", "python train.py"]])},
            "node worker: GPU 0: compute process 4711 of others, 2048 MiB: python train.py",
        ),
        (
            {"gpu": gpu(processes=[["GPU-1", "4711", None, "python train.py"]])},  # unified memory: not supported
            "node worker: GPU 0: compute process 4711 of others: python train.py",
        ),
    ],
)
def test_reasons(changes, expected):
    found = said(node(**changes))
    assert any(expected in text for text in found), found


def test_processes_of_a_gpu_that_is_not_ours_are_no_reason():
    assert said(node(gpu=gpu(processes=[["GPU-9", "4711", "2048", "python train.py"]]))) == []


def test_engines_times_offload_size_against_free_memory():
    args = "--kv-offloading-size, '400', --data-parallel-size-local=4"
    found = said(node(memory={"MemAvailable": 1700 * GIB}), node(memory={"MemAvailable": 1500 * GIB}), args)
    assert found == [
        "p.yaml:7: node head: host memory: 4 engines with --kv-offloading-size 400 need 1600 GiB, 1500.0 GiB are free "
        "(a leftover container, or a stale file in /dev/shm?)"
    ]


def test_clocks():
    assert said(node(), clock=1.9) == []
    (text,) = said(node(), clock=-7.25)
    assert "the clock of worker is 7.2 s behind ours, measured to within 0.05 s; at most 2 s" in text


def test_images_and_overlay_files():
    body = TEXT.replace("ARGS", "")
    files = f"[{{host: a.py, path: /a.py, sha256: '{'2' * 64}'}}]"
    container = f"{{container: {{image: 'sha256:{'1' * 64}', network: host, files: {files}}}, port: 8000}}"
    body = body.replace("{process: {command: [vllm, serve]}, port: 8000}", container)
    profile = read(body.replace("{kind: process}", "{kind: fresh-container}"))
    good = {
        "docker": {"error": None, "image": "sha256:1", "taken": None},
        "files": {"/nowhere/profiles/a.py": "2" * 64},
    }
    seen = {"head": Seen(node(**good)), "worker": Seen(node(**good))}
    assert judge(profile, seen) == []
    changed = {**good, "docker": {"error": None, "image": "sha256:9", "taken": "x, Up 2 days"}}
    changed["files"] = {"/nowhere/profiles/a.py": "3" * 64}
    found = judge(profile, {**seen, "worker": Seen(node(**changed))})
    assert any("image id differs: head sha256:1, worker sha256:9" in text for text in found)
    assert any(
        "node worker: the name is taken by a container (x, Up 2 days); it was not touched" in text for text in found
    )
    assert any(
        "node worker: overlay file /nowhere/profiles/a.py: sha256 333333333333…, expected 2222" in t for t in found
    )
    dead = {**good, "docker": {"error": "Cannot connect to the Docker daemon", "image": None, "taken": None}}
    found = judge(profile, {**seen, "worker": Seen(node(**dead))})
    assert any("node worker: its Docker daemon can't be asked: Cannot connect" in text for text in found)


def test_a_manifest_sees_names_sizes_and_small_files(tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model-00001.safetensors").write_bytes(b"x" * 100)
    (model / "config.json").write_text("{}")
    first = manifest(model)
    assert (first["files"], first["shards"], first["size"]) == (2, 1, 102)
    (model / ".cache").mkdir()
    (model / ".cache" / "lock").write_text("")
    assert manifest(model) == first  # a downloader's own
    (model / "config.json").write_text("[]")
    assert manifest(model)["hash"] != first["hash"]
    assert manifest(tmp_path / "nowhere") == {"missing": True}
    assert file_system(str(tmp_path / "not" / "there"))


def test_what_nvidia_smi_does_not_support_is_unknown():
    rows = parse_csv("0, GPU-1, NVIDIA GB10, 580.95.05, [N/A], [Not Supported], [Not Supported]\n\n")
    assert rows == [["0", "GPU-1", "NVIDIA GB10", "580.95.05", None, None, None]]


def stand(text: str, at: float = 1.0) -> Stand:
    made = Stand()
    for byte in range(0, len(text), 7):  # any chunks
        made.feed(text.encode()[byte : byte + 7], at)
    return made


WAITS = "world_size=2 rank={} local_rank=0 distributed_init_method=tcp://192.0.2.{}:29600 backend=nccl\n"


def test_rendezvous():
    met = "rank 0 in world size 2 is assigned as DP rank 0\n"
    head, worker = WAITS.format(0, 1), WAITS.format(1, 1)
    both = ["head", "worker"]
    assert missing({"head": stand(head), "worker": stand("")}, both, 5.0, 10.0) is None  # not yet
    late = missing({"head": stand(head), "worker": stand("INFO\n")}, both, 20.0, 10.0)
    assert late is not None
    assert late.nodes == ("worker",)
    assert (
        "worker has not come to the rendezvous (it has printed 1 lines); head waits for the others since 1 s"
        in late.text
    )
    never = missing({"head": stand(head), "worker": stand("")}, ["head"], 20.0, 10.0)
    assert never is not None
    assert "it has not been started" in never.text
    assert missing({"head": stand(head + met), "worker": stand(worker + met)}, both, 2000.0, 10.0) is None
    apart = missing({"head": stand(head), "worker": stand(WAITS.format(1, 9))}, both, 20.0, 10.0)
    assert apart is not None
    assert "all nodes wait, at different addresses" in apart.text
    same = missing({"head": stand(head), "worker": stand(worker)}, both, 20.0, 10.0)
    assert same is not None
    assert "none reaches the other: a wrong port, or a network cut" in same.text


def test_a_full_shm_unless_containers_have_their_own():
    (found,) = said(node(shm_free=3 << 20))
    assert "node worker: 3.0 MiB are free in /dev/shm, and ranks talk through it; expected 64 MiB or more" in found
    container = f"{{container: {{image: 'sha256:{'1' * 64}', network: host IPC}}, port: 8000}}"
    docker = {"error": None, "image": "sha256:1", "taken": None}
    for ipc, reasons in (("", 0), (", ipc: host", 1)):
        body = TEXT.replace("ARGS", "").replace("{process: {command: [vllm, serve]}, port: 8000}", container)
        profile = read(body.replace(" IPC", ipc).replace("{kind: process}", "{kind: fresh-container}"))
        assert len(judge(profile, {"worker": Seen(node(shm_free=0, docker=docker))})) == reasons


@needs_namespaces
def test_a_shm_that_is_really_full_is_seen_on_its_node():
    """A tmpfs of 1 MiB, filled, in a mount namespace of the test's own."""
    program = (
        "import json, sys; from pytest_startup.launch.nodes.inspect import inspect; "
        "open('/dev/shm/all', 'wb').write(b'x' * (1 << 20)); "
        "print(json.dumps(inspect(json.loads(sys.argv[1]))))"
    )
    asked: dict[str, Any] = dict.fromkeys(("ports", "locks", "gpus", "checkpoint", "files", "sources"), ())
    asked |= {
        "caches": {},
        "address": "127.0.0.1",
        "command": "sh",
        "cwd": "/",
        "path": None,
        "docker": None,
        "look_at_gpus": False,
    }
    small = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"]
    run = ["unshare", "--mount", "--", "sh", "-c", '"$@" && exec "$0" -c "$PROGRAM" "$ASKED"', sys.executable, *small]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PROGRAM": program, "ASKED": json.dumps(asked)}
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["shm_free"] == 0


def test_a_node_that_never_hears_another_is_deaf_and_not_cut_off():
    told, heard = ("introduced", 5.0, {}), ("heard", 6.0, {"node": "worker"})
    assert not deaf([], 100.0)  # told of nobody
    assert not deaf([told], 14.0)  # not yet
    assert deaf([told], 16.0)
    assert not deaf([told, heard], 100.0)
    assert deaf([told, heard, ("introduced", 50.0, {})], 100.0)  # the other one was restarted since


def test_overlay_files_that_will_be_sent_are_looked_at_here(tmp_path):
    patch = tmp_path / "a.py"
    body = TEXT.replace("ARGS", "")
    files = f"[{{host: {patch}, path: /a.py, sha256: '{'2' * 64}'}}]"
    container = f"{{container: {{image: 'sha256:{'1' * 64}', network: host, files: {files}}}, port: 8000}}"
    body = body.replace("{process: {command: [vllm, serve]}, port: 8000}", container)
    profile = read(body.replace("{kind: process}", "{kind: fresh-container}"))
    assert own_files(profile) == [f"p.yaml:4: overlay file {patch} can't be read"]
    patch.write_text("changed")
    (found,) = own_files(profile)
    assert f"p.yaml:4: overlay file {patch}: sha256 d67e2e944994…, expected 222222222222…" in found


@pytest.mark.parametrize(
    ("case", "nodes", "expected"),
    [
        ("never", ("worker",), "worker has not come to the rendezvous (it has not been started); head waits for"),
        ("wrong-worker", ("worker",), "worker can't connect to 10.78.0.77:29603 (wrong address or port?)"),
        ("wrong-head", ("head",), "head can't connect to 10.78.0.77:29600 (wrong address or port?)"),
    ],
)
def test_whom_a_real_pair_waits_for(case, nodes, expected):
    """What vLLM 0.31 printed over two nodes; the node that is at fault may be the one that says nothing."""
    logs = {n: LOGS / "rendezvous" / f"{case}.{n}.log" for n in ("head", "worker")}
    there = {n: path for n, path in logs.items() if path.exists()}
    stands = {n: Stand() for n in logs}
    for n, path in there.items():
        stands[n].feed(path.read_bytes(), 5.0)
    found = missing(stands, list(there), 400.0, 300.0)
    assert found is not None
    assert found.nodes == nodes
    assert expected in found.text
    assert missing(stands, list(there), 200.0, 300.0) is None  # not yet


def test_a_real_pair_that_has_met_waits_for_nobody():
    stands = {n: Stand() for n in ("head", "worker")}
    for n, made in stands.items():
        made.feed((LOGS / f"{n}-warm.log").read_bytes(), 5.0)
    assert missing(stands, list(stands), 4000.0, 300.0) is None
