"""Facts of the host, and reasons when it is not the one that is pinned."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from pytest_startup.observe.host import (
    cpu_stalled,
    host_facts,
    host_problems,
    meminfo,
    pressure_facts,
    shm_facts,
)
from pytest_startup.profile.model import Host
from pytest_startup.record import Evidence, Fact


def fact(name: str, value: object, **detail: object) -> Fact:
    return Fact(name, value, Evidence("host", "there", ""), detail=detail)  # type: ignore[arg-type]


PAIR = [
    fact("host.page_size", 65536),
    fact("host.kernel", "6.17.13-rocket64k"),
    fact("gpu.driver", "580.65.06"),
    fact("gpu.name", "NVIDIA GB10", gpu=0),
    fact("gpu.name", "NVIDIA GB10", gpu=1),
]


def test_facts_of_this_host() -> None:
    facts = {f.name: f for f in host_facts()}
    page = int(subprocess.run(["getconf", "PAGESIZE"], capture_output=True, check=True, text=True).stdout)
    assert facts["host.page_size"].value == page
    assert facts["host.kernel"].value == platform.release()
    assert facts["host.memory_available"].unit == "GiB"
    assert 0 < facts["host.memory_available"].value <= facts["host.memory_total"].value  # type: ignore[operator]
    assert platform.node() not in str(facts["host.name_hash"])
    assert all(f.evidence.source == "host" and f.evidence.where for f in facts.values())


def test_what_cannot_be_read_has_no_fact(tmp_path: Path) -> None:
    names = {f.name for f in host_facts(proc=tmp_path, shm=tmp_path / "none")}
    assert not names & {"host.memory_available", "host.memory_total", "host.cpu", "host.shm_free"}
    assert meminfo(tmp_path) == {}


def test_cpu_of_an_arm_host(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n")
    (cpu,) = [f for f in host_facts(proc=tmp_path, shm=tmp_path) if f.name == "host.cpu"]
    assert cpu.value == "CPU implementer 0x41, CPU part 0xd4f"


def test_large_old_files_in_shm_are_named_and_sparse_or_young_ones_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_startup.observe.host.STALE_BYTES", 8192)
    (tmp_path / "old.bin").write_bytes(b"x" * 20000)
    with (tmp_path / "sparse.bin").open("wb") as file:
        file.truncate(10**9)
    (tmp_path / "small").write_bytes(b"x")
    later = (tmp_path / "old.bin").stat().st_ctime + 700
    stale = [f for f in shm_facts(tmp_path, now=later) if f.name == "host.shm_stale"]
    assert [f.detail["path"] for f in stale] == [str(tmp_path / "old.bin")]
    assert stale[0].detail["owner"] == os.getuid()
    assert stale[0].detail["age_seconds"] == 700
    assert not [f for f in shm_facts(tmp_path, now=later - 200) if f.name == "host.shm_stale"]


@pytest.mark.parametrize(
    ("host", "problems"),
    [
        (Host(), []),
        (Host(page_size=65536, kernel="6.17.*-rocket64k", driver="580.*", gpu="GB10", gpu_count=2), []),
        (Host(gpu="nvidia gb10"), []),
        (Host(page_size=4096), ["host.page_size: expected 4096, observed 65536 (there)"]),
        (Host(kernel="6.8.*"), ["host.kernel: expected 6.8.*, observed 6.17.13-rocket64k (there)"]),
        (Host(driver="570.*"), ["host.driver: expected 570.*, observed 580.65.06 (there)"]),
        (Host(gpu="H200"), ["host.gpu: expected H200, observed NVIDIA GB10 (there)"]),
        (Host(gpu_count=1), ["host.gpu_count: expected 1, observed 2"]),
        (
            Host(page_size=4096, driver="570.*", gpu_count=4),
            [
                "host.page_size: expected 4096, observed 65536 (there)",
                "host.driver: expected 570.*, observed 580.65.06 (there)",
                "host.gpu_count: expected 4, observed 2",
            ],
        ),
    ],
)
def test_problems(host: Host, problems: list[str]) -> None:
    assert host_problems(host, PAIR) == problems


def test_what_is_pinned_and_cannot_be_seen_is_a_problem() -> None:
    assert host_problems(Host(driver="580.*", gpu="H200", gpu_count=1), []) == [
        "host.driver: expected 580.*, but it can't be seen on this host",
        "host.gpu: expected H200, but it can't be seen on this host",
        "host.gpu_count: expected 1, observed 0",
    ]


def test_cpu_pressure_of_a_window(tmp_path: Path) -> None:
    assert cpu_stalled(tmp_path) is None
    (tmp_path / "pressure").mkdir()
    file = tmp_path / "pressure" / "cpu"
    file.write_text("some avg10=1.00 avg60=1.00 avg300=1.00 total=2500000\nfull avg10=0.00 total=7\n")
    assert cpu_stalled(tmp_path) == 2.5
    (busy,) = pressure_facts(2.5, 7.5, 20.0, 31.0)
    assert (busy.name, busy.value, busy.unit, busy.evidence.seconds) == ("host.cpu_pressure", 25.0, "%", 31.0)
    assert pressure_facts(2.5, 99.0, 20.0)[0].value == 100.0
    for before, after, wall in [(None, 1.0, 1.0), (1.0, None, 1.0), (2.0, 1.0, 1.0), (1.0, 2.0, 0.0)]:
        assert pressure_facts(before, after, wall) == []
    file.write_text("garbage\n")
    assert cpu_stalled(tmp_path) is None
