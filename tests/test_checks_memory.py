"""The memory check: limits per rank, peaks, weights as before, foreign memory on the device."""

from __future__ import annotations

import pytest
from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, Outcome, fact, profile, record, reference, says

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.memory import check
from pytest_startup.profile.expect import ExpectMemory, Range
from pytest_startup.record import Fact


def weights(gib: float, rank: str | None = None) -> Fact:
    return fact("weights.memory", gib, rank, line=31, unit="GiB")


def gpu(gib: float, at: str = "peak", index: int = 0, node: str | None = None) -> Fact:
    return fact("gpu.memory_used", gib, source="gpu", node=node, unit="GiB", at=at, gpu=index)


def unknown(why: str, index: int | None = None, node: str | None = None) -> Fact:
    which = {} if index is None else {"gpu": index}
    return fact("gpu.memory_unknown", why, source="gpu", node=node, text=why, at="before", **which)


def host(gib: float, node: str | None = None) -> Fact:
    return fact("host.memory_peak", gib, source="host", node=node, unit="GiB")


def whole(total: float, lowest: float, node: str | None = None) -> tuple[Fact, ...]:
    """Of the whole host: what it has, and the least that was left of it."""
    seen = (("host.memory_total", total, {}), ("host.memory_available", lowest, {"at": "lowest"}))
    return tuple(fact(n, v, source="host", node=node, unit="GiB", **more) for n, v, more in seen)


LIMITED = ExpectMemory(weights_gib_per_rank=Range(max=84))

CASES = {
    "weights within the limit": (LIMITED, (), (weights(83, "TP0"), weights(83, "TP1")), PASSED, ()),
    "one rank over the limit": (
        LIMITED,
        (),
        (weights(83, "TP0"), weights(145.9, "TP1")),
        FAILED,
        ("weights on TP1: 145.9 GiB, at most 84 GiB allowed", "TP0: 83 GiB", "from expect.memory.weights_gib_per_rank"),
    ),
    "weights limited and not stated": (
        LIMITED,
        (),
        (fact("weights.read", 3.0),),
        NOT_OBSERVABLE,
        ("nothing shows weights, a limit is set", "weights.read 3.0"),
    ),
    "weights as on the reference": (ExpectMemory(), (weights(10),), (weights(10.1),), PASSED, ()),
    "weights changed since the reference": (
        ExpectMemory(),
        (weights(10, "TP0"),),
        (weights(10.5, "TP0"),),
        FAILED,
        ("weights take 10.5 GiB on TP0, 10 in the reference start", "expected 10 GiB ± 2 %", "from reference"),
    ),
    "a drafter's weights are compared with the drafter's": (
        ExpectMemory(),
        (weights(10), weights(1)),
        (weights(10), weights(2)),
        FAILED,
        ("weights take 2 GiB",),
    ),
    "a rank that no longer says": (
        ExpectMemory(),
        (weights(10, "TP0"), weights(10, "TP1")),
        (weights(10, "TP0"),),
        NOT_OBSERVABLE,
        ("nothing shows the weights of TP1, which the reference start stated",),
    ),
    "GPU peak over the limit": (
        ExpectMemory(gpu_peak_gib=Range(max=100)),
        (),
        (gpu(90), gpu(101, index=1), gpu(120, at="before")),
        FAILED,
        ("peak GPU memory on GPU 1: 101 GiB, at most 100 GiB allowed",),
    ),
    "GPU peak where NVML gives none": (
        ExpectMemory(gpu_peak_gib=Range(max=100)),
        (),
        (fact("gpu.memory_unknown", "not supported", source="gpu"),),
        NOT_OBSERVABLE,
        ("nothing shows peak GPU memory", "limit the host's peak instead"),
    ),
    "host peak over the limit": (
        ExpectMemory(host_peak_gib=Range(max=60)),
        (),
        (host(61),),
        FAILED,
        ("peak host memory on engine: 61 GiB",),
    ),
    "the whole host where nothing measured the engine's processes": (
        ExpectMemory(host_peak_gib=Range(max=60)),
        (),
        (
            fact("host.memory_total", 128.0, source="host", unit="GiB"),
            fact("host.memory_available", 60.0, source="host", unit="GiB", at="lowest"),
        ),
        FAILED,
        ("peak host memory on engine: 68 GiB",),
    ),
    "host peak within the limit": (ExpectMemory(host_peak_gib=Range(max=60)), (), (host(59),), PASSED, ()),
    "memory in use before the start": (
        ExpectMemory(),
        (gpu(0.6, "before"),),
        (gpu(12.3, "before"),),
        FAILED,
        ("GPU 0 already held 12.3 GiB before this start", "about 0.6 GiB as before the reference start"),
    ),
    "a little more before the start": (ExpectMemory(), (gpu(0.6, "before"),), (gpu(1.0, "before"),), PASSED, ()),
    "the kernel ran out of memory": (
        ExpectMemory(),
        (),
        (
            weights(10),
            fact("host.oom_kill", 2, source="host", text="the out-of-memory killer ended 2 processes"),
            fact("process.ended", "VLLM::Worker", source="process"),
        ),
        FAILED,
        ("the kernel's out-of-memory killer ended 2 processes of this host", "/dev/shm"),
    ),
    "somebody else ran out of memory": (
        ExpectMemory(),
        (),
        (
            weights(10),
            fact("host.oom_kill", 2, source="host", text="the out-of-memory killer ended 2 processes"),
            fact("process.ended", "g++ header.hpp", source="process"),
        ),
        PASSED,
        (),
    ),
    "nothing seen": (ExpectMemory(), (), (), NOT_OBSERVABLE, ("weights.memory in the log",)),
    "every GPU of every node is held to the limit": (
        ExpectMemory(gpu_peak_gib=Range(max=120)),
        (),
        (gpu(110, node="head"), gpu(121, node="worker")),
        FAILED,
        ("peak GPU memory on GPU 0 of worker: 121 GiB, at most 120 GiB allowed", "GPU 0 of head: 110 GiB"),
    ),
    "both nodes within the limit": (
        ExpectMemory(gpu_peak_gib=Range(max=120)),
        (),
        (gpu(110, node="head"), gpu(119, node="worker")),
        PASSED,
        (),
    ),
    "one node without a figure is not within it because the other one is": (
        ExpectMemory(gpu_peak_gib=Range(max=120)),
        (),
        (gpu(110, node="head"), unknown("no NVML: libnvidia-ml.so.1 is not there", node="worker")),
        NOT_OBSERVABLE,
        ("nothing shows peak GPU memory of worker, a limit is set", "no NVML: libnvidia-ml.so.1 is not there"),
    ),
    "no limit asks for no figure": (
        ExpectMemory(),
        (),
        (gpu(110, node="head"), unknown("not supported", node="worker", index=0)),
        PASSED,
        (),
    ),
    "unified memory: what the GPU holds is counted to no process": (
        ExpectMemory(host_peak_gib=Range(max=100)),
        (),
        (
            host(9, node="head"),
            host(8, node="worker"),
            unknown("not supported", node="worker", index=0),
            *whole(128, 12, node="worker"),
            *whole(128, 100, node="head"),
        ),
        FAILED,
        ("peak host memory on worker: 116 GiB, at most 100 GiB allowed", "head: 9 GiB"),
    ),
    "unified memory within the limit": (
        ExpectMemory(host_peak_gib=Range(max=120)),
        (),
        (host(8), unknown("not supported", index=0), *whole(128, 12)),
        PASSED,
        (),
    ),
    "unified memory and no figure at all": (
        ExpectMemory(host_peak_gib=Range(max=120), gpu_peak_gib=Range(max=100)),
        (),
        (unknown("not supported", index=0),),
        NOT_OBSERVABLE,
        ("nothing shows peak GPU memory", "nothing shows peak host memory", "limit the host's peak instead"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(case: tuple[ExpectMemory, tuple[Fact, ...], tuple[Fact, ...], Outcome, tuple[str, ...]]) -> None:
    expect, before, now, outcome, words = case
    old = reference(*before) if before else None
    says(check(profile(expect={"memory": expect}), old, record(*now), None), outcome, *words)


def test_baseline() -> None:
    accepted = Baseline("p", {}, {"process": Population({"weights.gib_max": 10.0})})
    says(check(profile(), None, record(weights(11.0)), accepted), FAILED, "10 in the baseline", "from baseline")
    says(check(profile(), None, record(weights(10.1)), accepted), PASSED)
    says(check(profile(), None, record(host(4.0)), accepted), NOT_OBSERVABLE, "nothing shows the weights, the baseline")


def test_numbers() -> None:
    verdict = check(profile(), None, record(weights(1.0), weights(2.0), gpu(3.0), host(4.0)), None)
    assert verdict.numbers == {"weights GiB": 2.0, "GPU peak GiB": 3.0, "host peak GiB": 4.0}
