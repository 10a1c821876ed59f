"""A node whose /dev/shm is full: refused before anything is started, and told as the cause when it fills later."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from helpers_nodes import LOGS, RENDEZVOUS, Sshd, gate, inside, needs_namespaces, network, pair, pair_text, record
from helpers_records import fact

from pytest_startup.assemble import explained
from pytest_startup.ends import SHM_FULL, failure_of, with_memory
from pytest_startup.engines.vllm import VllmDialect
from pytest_startup.intake import read_logs
from pytest_startup.launch.base import Exit, NodeLog
from pytest_startup.launch.nodes.launcher import NodesLauncher
from pytest_startup.observe.sampler import MemorySampler
from pytest_startup.profile.expect import ExpectLog
from pytest_startup.record import Failure

pytestmark = pytest.mark.usefixtures("isolated")
needs_sshd = pytest.mark.skipif(
    shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="no sshd (openssh-server)"
)
#: A rank that takes its part of /dev/shm as engines do: first a file of that size, then its pages one by one.
TAKES = """\
import mmap, os
print(open({log!r}).read().split("Filesystem type")[0].rpartition("\\n")[0], flush=True)
handle = os.open("/dev/shm/fake_full", os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.ftruncate(handle, 1 << 30)
memory = mmap.mmap(handle, 1 << 30)
for place in range(0, 1 << 30, 4096):
    memory[place] = 1
"""


@pytest.fixture(scope="module")
def net():
    with network(f"z{os.getpid()}-") as name, inside(name):
        yield name


@pytest.fixture
def sshd(net, tmp_path):
    made = Sshd(tmp_path, net, "worker", "10.78.0.2", shm="80m")
    yield made
    made.close()


@needs_namespaces
@needs_sshd
def test_a_full_dev_shm_is_refused_with_the_node_and_the_figures(net, sshd, tmp_path):
    profile = pair(tmp_path, net, worker_reach=f"{{ssh: 10.78.0.2, config: {sshd.config}}}")
    launcher = NodesLauncher()
    try:
        assert launcher.preflight(profile) == []
        filler = Path(f"/proc/{sshd.process.pid}/root/dev/shm/filler")
        filler.write_bytes(b"x" * (72 << 20))
        (reason,) = launcher.preflight(profile)
    finally:
        launcher.close()
    assert reason.endswith(
        "node worker: 8.0 MiB are free in /dev/shm, and ranks talk through it; expected 64 MiB or more"
    )


@needs_namespaces
@needs_sshd
def test_a_rank_that_the_kernel_ends_for_writing_to_a_full_dev_shm(net, sshd, tmp_path):
    """It fills after the preflight: the node is named, and what was full, not a crash without a reason."""
    takes = tmp_path / "takes.py"
    takes.write_text(TAKES.format(log=str(LOGS / "worker-warm.log")))
    head = {"log": str(LOGS / "head-warm.log"), "hang": RENDEZVOUS}
    keys = f"    command: [{sys.executable}, {takes}]"
    reach = f"{{ssh: 10.78.0.2, config: {sshd.config}}}"
    done = gate(tmp_path, net, text=pair_text(net, head, worker_reach=reach, worker_keys=keys))
    assert done.returncode == 1, done.stdout
    seen = record(tmp_path)
    failure = seen["failure"]
    assert (failure["kind"], failure["node"]) == ("out-of-shared-memory", "worker"), done.stdout
    assert "was killed by SIGBUS" in failure["summary"]
    assert "0.0 of 80.0 MiB were free in /dev/shm" in failure["summary"]
    free = [f for f in seen["facts"] if f["fact"] == "host.shm_free" and f.get("at") == "lowest"]
    assert {f["node"]: f["bytes"] < SHM_FULL for f in free} == {"head": False, "worker": True}
    assert all(left["released"] for left in seen["cleanup"])
    assert any(left["kind"] == "shm" and "fake_full" in left["what"] for left in seen["cleanup"])


def test_an_engine_that_asks_first_says_so_itself(tmp_path):
    """Its own words are the cause, on the node that printed them."""
    said = (
        "WorkerProc failed to start.",
        "Traceback (most recent call last):",
        '  File "/site/vllm/v1/executor/multiproc_executor.py", line 870, in worker_main',
        "    worker = WorkerProc(*args, **kwargs)",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_7_1_0>: No space left on device (28)",
    )
    logs = [NodeLog(n, tmp_path / n / "engine.log", tmp_path / n / "lines.tsv") for n in ("head", "worker")]
    for log in logs:
        log.path.parent.mkdir()
        text = (LOGS / f"{log.node}-warm.log").read_text().partition(" Starting to load")[0].rpartition("\n")[0] + "\n"
        if log.node == "worker":
            text += "".join(f"(Worker_TP1 pid=7) ERROR 11-29 16:28:38 [multiproc_executor.py:900] {x}\n" for x in said)
        log.path.write_text(text)
        log.lines.write_text("".join(f"{n}\t{n / 10:.3f}\n" for n in range(1, text.count("\n") + 1)))
    outside = failure_of(Exit("worker", 1, "exited", "exit code 1"), "before it was ready", "weights", 9.0)
    final = explained(outside, read_logs(logs, VllmDialect(), ExpectLog()), False, logs)
    assert final is not None
    assert (final.kind, final.node, final.rank) == ("out-of-shared-memory", "worker", "TP1")
    assert final.cause is not None
    assert "No space left on device" in final.cause.text
    assert "/dev/shm" in final.helps[0]


def shm(free: int, node: str | None = None):
    return fact("host.shm_free", 0.0, source="host", text="… were free in /dev/shm", node=node, at="lowest", bytes=free)


@pytest.mark.parametrize(
    ("kind", "summary", "facts", "expected"),
    [
        ("crashed", "rank 1 was killed by SIGBUS", [shm(0, "worker")], "out-of-shared-memory"),
        ("process-died", "rank process 7 died", [shm(0, "worker")], "out-of-shared-memory"),
        ("crashed", "VLLM::Worker was killed by SIGBUS", [shm(0)], "out-of-shared-memory"),  # a local engine's
        ("crashed", "rank 1 was killed by SIGBUS", [shm(SHM_FULL, "worker")], "crashed"),  # there was room
        ("crashed", "rank 1 was killed by SIGBUS", [shm(0, "head")], "crashed"),  # of another node
        ("crashed", "rank 1 was killed by SIGBUS", [], "crashed"),
        ("crashed", "rank 1 was killed by SIGSEGV", [shm(0, "worker")], "crashed"),
        ("killed", "rank 1 was killed by SIGKILL", [shm(0, "worker")], "killed"),
        ("ended", "ended with exit code 1", [shm(0, "worker")], "ended"),  # its log says why
        (
            "process-died",
            "rank process 7 died",
            [fact("host.oom_kill", 1, source="host", node="worker"), shm(0, "worker")],
            "out-of-host-memory",
        ),
    ],
)
def test_whose_death_a_full_dev_shm_explains(kind, summary, facts, expected):
    failure = with_memory(Failure("weights", kind, summary, node="worker"), facts)
    assert failure.kind == expected
    assert any("/dev/shm" in text for text in failure.helps) is (
        expected == "out-of-shared-memory" or "SIGBUS" in summary  # it may have been full for a moment only
    )
    assert failure.summary.startswith(summary)
    assert (failure.summary != summary) is (expected != kind)


def test_the_least_that_was_free_is_kept(tmp_path):
    """And a place that can't be looked into (a container that has ended) gives no figure."""
    where: list[Path | None] = [None]
    sampler = MemorySampler(None, 0.0, shm=lambda: where[0])

    def seen():
        return [f for f in sampler.facts(after=False) if f.name == "host.shm_free"]

    sampler.look_at_shm()
    assert seen() == []
    where[0] = tmp_path / "gone"
    sampler.look_at_shm()
    assert seen() == []
    where[0] = tmp_path
    sampler.look_at_shm()
    (first,) = seen()
    assert (first.detail["at"], first.unit) == ("lowest", "GiB")
    assert first.detail["bytes"] > 0
    where[0] = tmp_path / "gone"
    sampler.look_at_shm()
    assert seen() == [first]
