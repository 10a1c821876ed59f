"""The host under the engine: page size, kernel, CPU, memory, /dev/shm; and whether it is the host that is pinned."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_startup.profile.model import Host
from pytest_startup.record import JSON, Evidence, Fact

GIB = 2**30
#: A file in /dev/shm of this size and age is reported: nothing that runs now still fills it, and it holds memory.
STALE_BYTES = GIB
STALE_SECONDS = 600.0
#: Key of ``host`` → the fact that shows it. (``gpu_count`` is counted.)
PINNED = {"page_size": "host.page_size", "kernel": "host.kernel", "driver": "gpu.driver", "gpu": "gpu.name"}
PROC = Path("/proc")
SHM = Path("/dev/shm")  # noqa: S108 - only listed


def host_facts(proc: Path = PROC, shm: Path = SHM, seconds: float | None = None) -> list[Fact]:
    """``host.page_size`` (B), ``host.kernel``, ``host.architecture``, ``host.cpu``, ``host.cpus``, ``host.name_hash``,
    ``host.memory_total`` and ``host.memory_available`` (GiB), ``host.shm_free`` (GiB), ``host.shm_stale`` (GiB, one per
    large old file). What can't be read has no fact."""
    name = hashlib.sha256(platform.node().encode()).hexdigest()[:12]
    facts = [
        _fact("host.page_size", os.sysconf("SC_PAGE_SIZE"), "sysconf SC_PAGE_SIZE", "B"),
        _fact("host.kernel", platform.release(), "uname -r"),
        _fact("host.architecture", platform.machine(), "uname -m"),
        _fact("host.name_hash", name, "uname -n, hashed"),
        _fact("host.cpus", len(os.sched_getaffinity(0)), "sched_getaffinity"),
    ]
    cpu = _cpu(proc)
    if cpu:
        facts.append(_fact("host.cpu", cpu, "/proc/cpuinfo"))
    return [*facts, *memory_facts(proc, seconds=seconds), *shm_facts(shm)]


def memory_facts(proc: Path = PROC, at: str | None = None, seconds: float | None = None) -> list[Fact]:
    """``host.memory_total``, ``host.memory_available`` (GiB) from /proc/meminfo; detail ``at`` if given."""
    found = meminfo(proc)
    detail: dict[str, JSON] = {"at": at} if at else {}
    return [
        _fact(name, round(found[key] / GIB, 3), "/proc/meminfo", "GiB", seconds, **detail)
        for name, key in (("host.memory_total", "MemTotal"), ("host.memory_available", "MemAvailable"))
        if key in found
    ]


def meminfo(proc: Path = PROC) -> dict[str, int]:
    """/proc/meminfo in bytes; empty if it can't be read."""
    found = {}
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        key, _, rest = line.partition(":")
        parts = rest.split()
        if parts and parts[0].isdigit():
            found[key] = int(parts[0]) * (1024 if parts[1:] == ["kB"] else 1)
    return found


def cpu_stalled(proc: Path = PROC) -> float | None:
    """Seconds, since boot, in which some task waited for a CPU (/proc/pressure/cpu, Linux 4.20 on); None: not told."""
    try:
        first = (proc / "pressure" / "cpu").read_text().splitlines()[0]
        return int(first.rpartition("total=")[2]) / 1e6
    except (OSError, IndexError, ValueError):
        return None


def pressure_facts(before: float | None, after: float | None, wall: float, seconds: float | None = None) -> list[Fact]:
    """``host.cpu_pressure`` (percent of ``wall`` seconds in which some task waited for a CPU), from two readings of
    ``cpu_stalled`` round a workload: why a rate is noisy, or lower than it should be."""
    if before is None or after is None or wall <= 0 or after < before:
        return []
    percent = round(min(100.0, (after - before) / wall * 100), 1)
    return [_fact("host.cpu_pressure", percent, "/proc/pressure/cpu", "%", seconds, at="workload")]


def shm_facts(shm: Path = SHM, now: float | None = None) -> list[Fact]:
    """Free space of /dev/shm, and its large files that nobody has changed for ten minutes (detail path, owner, age)."""
    try:
        space = os.statvfs(shm)
        entries = sorted(shm.iterdir())
    except OSError:
        return []
    facts = [_fact("host.shm_free", round(space.f_bavail * space.f_frsize / GIB, 3), str(shm), "GiB")]
    for entry in entries:
        try:
            info = entry.lstat()
        except OSError:
            continue
        size = info.st_blocks * 512  # what it really holds: these files are often sparse
        age = (time.time() if now is None else now) - max(info.st_mtime, info.st_ctime)
        if size >= STALE_BYTES and age >= STALE_SECONDS:
            facts.append(
                _fact(
                    "host.shm_stale",
                    round(size / GIB, 3),
                    str(shm),
                    "GiB",
                    path=str(entry),
                    owner=info.st_uid,
                    age_seconds=round(age),
                )
            )
    return facts


def shm_fact(free: int, total: int, seconds: float) -> Fact:
    """``host.shm_free`` (GiB) at its ``lowest``, detail ``bytes``."""
    text = f"{free / 2**20:.1f} of {total / 2**20:.1f} MiB were free in /dev/shm"
    detail: dict[str, JSON] = {"at": "lowest", "bytes": free}
    evidence = Evidence("host", str(SHM), text, seconds=round(seconds, 3))
    return Fact("host.shm_free", round(free / GIB, 3), evidence, unit="GiB", detail=detail)


def host_problems(host: Host, facts: Sequence[Fact]) -> list[str]:
    """Why this is not the host that the profile pins: one reason per key, each with expected and observed.

    A pinned property that can't be seen is a reason too.
    """
    problems = []
    for key, name in PINNED.items():
        problems += _differs(host, key, [f for f in facts if f.name == name])
    if host.gpu_count is not None:
        count = len({str(f.detail.get("gpu")) for f in facts if f.name == "gpu.name"})
        if count != host.gpu_count:
            problems.append(f"host.gpu_count: expected {host.gpu_count}, observed {count}")
    return problems


def _differs(host: Host, key: str, seen: Sequence[Fact]) -> list[str]:
    expected = getattr(host, key)
    if expected is None:
        return []
    if not seen:
        return [f"host.{key}: expected {expected}, but it can't be seen on this host"]
    wrong = dict.fromkeys(f"{f.value} ({f.evidence.where})" for f in seen if not host.fits(key, f.value))
    return [f"host.{key}: expected {expected}, observed {text}" for text in wrong]


def _cpu(proc: Path) -> str | None:
    """The CPU's name; on Arm, which prints none, its implementer and part."""
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        return None
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    if "model name" in found:
        return found["model name"]
    parts = [f"{k} {found[k]}" for k in ("CPU implementer", "CPU part") if k in found]
    return ", ".join(parts) or None


def _fact(
    name: str, value: JSON, where: str, unit: str | None = None, seconds: float | None = None, **detail: JSON
) -> Fact:
    shown = f"{name} {value}" + (f" {unit}" if unit else "")
    return Fact(name, value, Evidence("host", where, shown, seconds=seconds), unit=unit, detail=detail)
