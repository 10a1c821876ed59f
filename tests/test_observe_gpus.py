"""GPUs by NVML: what is not told stays unknown."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from helpers_nvml import GIB, Device, FakeNvml, Process

from pytest_startup.observe.gpus import DRIVER_HELP, Gpu, Nvml, identity_facts, memory_facts, other_processes
from pytest_startup.observe.sampler import MemorySampler
from pytest_startup.record import Fact

GB10 = Device(name="NVIDIA GB10", uuid="GPU-gb10", total=None, used=None, processes=[Process(5, 3 * GIB)])


def values(facts: list[Fact]) -> list[tuple[str, object]]:
    return [(f.name, f.value) for f in facts]


def test_identity() -> None:
    nvml = Nvml(module=FakeNvml(Device(mig=(0, 0)), Device(name=b"NVIDIA GH200 480GB", uuid=b"GPU-2")))
    facts = identity_facts(nvml)
    assert values(facts) == [
        ("gpu.driver", "580.65.06"),
        ("gpu.name", "NVIDIA H200"),
        ("gpu.uuid", "GPU-1"),
        ("gpu.mig", "disabled"),
        ("gpu.memory_total", 141.0),
        ("gpu.name", "NVIDIA GH200 480GB"),
        ("gpu.uuid", "GPU-2"),
        ("gpu.memory_total", 141.0),
    ]
    assert {f.detail.get("gpu") for f in facts[1:5]} == {0}
    assert facts[1].evidence.where == "NVML GPU 0"
    assert facts[1].evidence.source == "gpu"


def test_no_nvml_is_a_reason_and_no_fact() -> None:
    nvml = Nvml(module=FakeNvml(absent=True))
    assert nvml.reason == "no NVML: NVML Shared Library Not Found"
    assert nvml.gpus() == ()
    assert nvml.problems() == (f"{nvml.reason}; {DRIVER_HELP}",)
    assert identity_facts(nvml) == []
    nvml.close()


def test_the_real_module_without_a_driver_is_no_error() -> None:
    with Nvml() as nvml:
        assert nvml.reason is None or nvml.reason.startswith("no NVML: ")


def test_memory_not_supported_is_never_zero() -> None:
    (gpu,) = Nvml(module=FakeNvml(GB10)).gpus()
    assert (gpu.used, gpu.total, gpu.unknown) == (None, None, "not supported")
    facts = memory_facts([gpu], "peak", 3.0)
    assert values(facts) == [("gpu.memory_unknown", "not supported"), ("gpu.process_memory", 3.0)]
    assert facts[1].detail == {"at": "peak", "gpu": 0, "pid": 5}


def test_memory_per_process_tells_ours_from_others() -> None:
    device = Device(used=80 * GIB, processes=[Process(7, 79 * GIB), Process(8, None)])
    gpus = Nvml(module=FakeNvml(device)).gpus()
    facts = memory_facts(gpus, "before", 0.0, ours={7})
    assert values(facts) == [("gpu.memory_used", 80.0), ("gpu.process_memory", 79.0)]
    assert facts[1].detail["ours"] is True
    assert other_processes(gpus, ours={7}) == ["GPU 0 (NVIDIA H200): compute process 8 of others"]
    assert other_processes(gpus)[0] == "GPU 0 (NVIDIA H200): compute process 7 of others, 79.0 GiB"


def test_processes_not_supported_is_not_the_same_as_none() -> None:
    (gpu,) = Nvml(module=FakeNvml(Device(processes=None))).gpus()
    assert gpu.processes is None
    (gpu,) = Nvml(module=FakeNvml(Device(processes=[]))).gpus()
    assert gpu.processes == ()


def test_selection_by_index_and_uuid() -> None:
    module = FakeNvml(Device(uuid="GPU-a"), Device(uuid="GPU-b"), Device(uuid="GPU-c"))
    nvml = Nvml(["2", "GPU-b"], module=module)
    assert [(g.index, g.uuid) for g in nvml.gpus()] == [(2, "GPU-c"), (1, "GPU-b")]
    assert nvml.problems() == ()
    nvml = Nvml(["7", "GPU-x"], module=module)
    assert nvml.gpus() == ()
    assert nvml.problems() == ("GPU 7: Invalid Argument", "GPU GPU-x: Not Found")


def test_close_is_done_once() -> None:
    module = FakeNvml(Device())
    with Nvml(module=module) as nvml:
        assert module.open == 1
    nvml.close()
    assert module.open == 0


def test_the_sampler_finds_the_peak_between_before_and_after(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 3145728 kB\n")
    module = FakeNvml(Device(used=1 * GIB))
    sampler = MemorySampler(Nvml(module=module), time.monotonic(), interval=0.005, proc=tmp_path)
    module.devices[0].used = 90 * GIB
    (tmp_path / "meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n")
    sampler.start()
    _until(lambda: any(f.detail.get("at") == "lowest" for f in sampler.facts(after=False)))
    module.devices[0].used = 2 * GIB
    (tmp_path / "meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
    sampler.stop()
    assert [(f.name, f.value, f.detail["at"]) for f in sampler.facts()] == [
        ("gpu.memory_used", 1.0, "before"),
        ("host.memory_available", 3.0, "before"),
        ("gpu.memory_used", 90.0, "peak"),
        ("host.memory_available", 1.0, "lowest"),
        ("gpu.memory_used", 2.0, "after"),
        ("host.memory_available", 2.0, "after"),
    ]


def test_the_sampler_without_figures_says_unknown(tmp_path: Path) -> None:
    sampler = MemorySampler(Nvml(module=FakeNvml(GB10)), time.monotonic(), proc=tmp_path)
    names = {f.name for f in sampler.facts()}
    assert names == {"gpu.memory_unknown", "gpu.process_memory"}


def test_a_driver_that_hangs_does_not_hold_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_startup.observe.sampler.HANGS", 0.05)
    nvml = Nvml(module=FakeNvml(Device(used=GIB)))
    asked, release = threading.Event(), threading.Event()

    def hang() -> tuple[Gpu, ...]:
        asked.set()
        release.wait(10)
        return ()

    sampler = MemorySampler(nvml, time.monotonic(), proc=tmp_path)
    monkeypatch.setattr(nvml, "gpus", hang)
    sampler.start()
    assert asked.wait(5)
    sampler.stop()
    began = time.monotonic()
    assert [f.detail["at"] for f in sampler.facts()] == ["before"]
    assert time.monotonic() - began < 1.0
    release.set()


def _until(condition: object, limit: float = 5.0) -> None:
    end = time.monotonic() + limit
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "condition not met"
        threading.Event().wait(0.002)
