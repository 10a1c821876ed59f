"""Facts of an engine's processes: the peak of their memory, those that ended, what the kernel killed for memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytest_startup.launch.exits import told
from pytest_startup.launch.memory import Peak
from pytest_startup.record import JSON, Evidence, Fact


def watch_facts(
    node: str,
    peak: Peak | None,
    lost: Iterable[Sequence[Any]],
    killed: tuple[int, str],
    redact: Callable[[str], str],
    group_peak: int | None = None,
) -> list[Fact]:
    """``host.memory_peak``, ``container.memory_peak``, ``process.ended`` and ``host.oom_kill``.

    ``lost``: as of ``process.watch``; ``killed``: how many processes the out-of-memory killer has ended since launch,
    and of what (``this host``); ``group_peak``: bytes of the container's control group.
    """
    out = []
    if peak is not None:
        text = f"highest {peak.measure.upper()} sum of {peak.processes} processes, sampled every 0.5 s or more"
        where = "/proc/*/smaps_rollup" if peak.measure == "pss" else "/proc/*/statm"
        evidence = Evidence("host", where, text, node=node, seconds=round(peak.seconds, 3))
        detail: dict[str, JSON] = {"measure": peak.measure, "processes": peak.processes}
        size = round(peak.size / 2**30, 3)
        out.append(Fact("host.memory_peak", size, evidence, unit="GiB", node=node, detail=detail))
    if group_peak is not None:
        text = (
            "the most that the container's control group has used, file cache (the checkpoint as it is read) included"
        )
        evidence = Evidence("host", "memory.peak of the control group", text, node=node)
        out.append(Fact("container.memory_peak", round(group_peak / 2**30, 3), evidence, unit="GiB", node=node))
    for pid, name, seconds, status in lost:
        how = "ended" if status is None else told(status)
        text = f"pid {pid} {how} while the engine ran (helpers do that, ranks must not)"
        evidence = Evidence("process", f"/proc/{pid}", text, node=node, seconds=seconds)
        told_as: dict[str, JSON] = {"pid": pid} if status is None else {"pid": pid, "status": status}
        out.append(Fact("process.ended", redact(name), evidence, node=node, detail=told_as))
    if killed[0] > 0:
        text = f"the kernel's out-of-memory killer ended {killed[0]} processes of {killed[1]} since launch"
        out.append(Fact("host.oom_kill", killed[0], Evidence("host", "/proc/vmstat", text, node=node), node=node))
    return out


def oom_kills() -> int:
    """Processes that this host's kernel killed for want of memory since boot; 0 where it does not count them."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
