"""GPUs through NVML: identity, memory per device and process. What NVML does not tell stays unknown, never 0.

Memory has three states: a figure, ``not supported`` (GB10 and other devices that share the host's memory), and ``no
NVML``. ``module`` can be any object with the functions of nvidia-ml-py (``pynvml``), for tests.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_startup.record import JSON, Evidence, Fact

GIB = 2**30
NOT_SUPPORTED = "not supported"


@dataclass(frozen=True)
class GpuProcess:
    """A compute process on a device. ``used`` in bytes, None where NVML does not say. ``pid`` is as the host counts."""

    pid: int
    used: int | None


@dataclass(frozen=True)
class Gpu:
    """One device at one moment. Memory in bytes; None with the reason in ``unknown`` (``not supported`` …).

    ``mig``: enabled, disabled, or None where the device has no such mode. ``processes`` None: NVML did not say.
    """

    index: int
    name: str | None
    uuid: str | None
    used: int | None
    total: int | None
    unknown: str | None
    mig: str | None
    processes: tuple[GpuProcess, ...] | None


#: Behind a ``reason``, where GPUs are asked for.
DRIVER_HELP = "install or load the NVIDIA driver of this host (nvidia-smi says whether it works), or ask for no GPUs"


class Nvml:
    """NVML, opened; ``reason`` says why it can't be used (``no NVML: …``), None if it can. Call ``close()`` at the end.

    ``selected`` names the devices by index or UUID (``0``, ``GPU-…``, ``MIG-…``); None: all of the host.
    """

    def __init__(self, selected: Sequence[str] | None = None, module: Any = None) -> None:
        self.reason: str | None = None
        self.driver: str | None = None
        self._selected = selected
        self._open = False
        try:
            self._nvml = module if module is not None else _pynvml()
            self._nvml.nvmlInit()
            self._open = True
            self.driver = _text(self._nvml.nvmlSystemGetDriverVersion())
        except Exception as e:  # no library, no driver, a driver that is being replaced: all the same to us
            self.reason = f"no NVML: {e}"
            self.close()

    def gpus(self) -> tuple[Gpu, ...]:
        """The selected devices now, in order; empty without NVML. A device that can't be found is left out
        (``problems()`` names it)."""
        return tuple(self._gpu(n, handle) for n, handle, _ in self._handles() if handle is not None)

    def problems(self) -> tuple[str, ...]:
        """Why a selected device can't be seen, one text each; empty if all are there."""
        if self.reason is not None:
            return (f"{self.reason}; {DRIVER_HELP}",)
        return tuple(text for _, _, text in self._handles() if text)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._ask(self._nvml.nvmlShutdown)

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handles(self) -> list[tuple[int, Any, str]]:
        if not self._open:
            return []
        nvml = self._nvml
        if self._selected is None:
            count, _ = self._ask(nvml.nvmlDeviceGetCount)
            names = [str(i) for i in range(count or 0)]
        else:
            names = list(self._selected)
        found = []
        for n, name in enumerate(names):
            if name.isdigit():
                handle, why = self._ask(nvml.nvmlDeviceGetHandleByIndex, int(name))
                found.append((int(name), handle, f"GPU {name}: {why}" if why else ""))
            else:
                handle, why = self._ask(nvml.nvmlDeviceGetHandleByUUID, name)
                index, _ = self._ask(nvml.nvmlDeviceGetIndex, handle) if handle is not None else (None, "")
                found.append((n if index is None else index, handle, f"GPU {name}: {why}" if why else ""))
        return found

    def _gpu(self, index: int, handle: Any) -> Gpu:
        nvml = self._nvml
        memory, why = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        mig, _ = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        rows, _ = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        name, _ = self._ask(nvml.nvmlDeviceGetName, handle)
        uuid, _ = self._ask(nvml.nvmlDeviceGetUUID, handle)
        return Gpu(
            index=index,
            name=_text(name),
            uuid=_text(uuid),
            used=None if memory is None else int(memory.used),
            total=None if memory is None else int(memory.total),
            unknown=why or None,
            mig=None if mig is None else ("enabled" if mig[0] else "disabled"),
            processes=None if rows is None else tuple(GpuProcess(int(r.pid), r.usedGpuMemory) for r in rows),
        )

    def _ask(self, function: Callable[..., Any], *args: object) -> tuple[Any, str]:
        """The answer and "", or None and why there is none."""
        try:
            return function(*args), ""
        except self._nvml.NVMLError as e:
            unsupported = getattr(e, "value", None) == self._nvml.NVML_ERROR_NOT_SUPPORTED
            return None, NOT_SUPPORTED if unsupported else str(e)


def identity_facts(nvml: Nvml) -> list[Fact]:
    """``gpu.driver``, and per device ``gpu.name``, ``gpu.uuid``, ``gpu.mig``, ``gpu.memory_total`` (GiB)."""
    facts = [_fact("gpu.driver", nvml.driver, "NVML")] if nvml.driver else []
    for gpu in nvml.gpus():
        where = f"NVML GPU {gpu.index}"
        values: list[tuple[str, JSON, str | None]] = [
            ("gpu.name", gpu.name, None),
            ("gpu.uuid", gpu.uuid, None),
            ("gpu.mig", gpu.mig, None),
            ("gpu.memory_total", None if gpu.total is None else round(gpu.total / GIB, 3), "GiB"),
        ]
        facts += [_fact(n, v, where, unit, gpu=gpu.index) for n, v, unit in values if v is not None]
    return facts


def memory_facts(
    gpus: Sequence[Gpu], at: str, seconds: float | None, ours: Collection[int] | None = None
) -> list[Fact]:
    """Per device ``gpu.memory_used`` (GiB, detail ``at``, ``gpu``), or ``gpu.memory_unknown`` with the reason.

    Per process ``gpu.process_memory`` (GiB, detail ``pid``; ``ours`` if the engine's pids are given) where NVML says.
    """
    facts = []
    for gpu in gpus:
        where = f"NVML GPU {gpu.index}"
        if gpu.used is None:
            facts.append(_fact("gpu.memory_unknown", gpu.unknown, where, None, seconds, at=at, gpu=gpu.index))
        else:
            facts.append(
                _fact("gpu.memory_used", round(gpu.used / GIB, 3), where, "GiB", seconds, at=at, gpu=gpu.index)
            )
        for process in gpu.processes or ():
            if process.used is None:
                continue
            detail: dict[str, JSON] = {"at": at, "gpu": gpu.index, "pid": process.pid}
            if ours is not None:
                detail["ours"] = process.pid in ours
            facts.append(_fact("gpu.process_memory", round(process.used / GIB, 3), where, "GiB", seconds, **detail))
    return facts


def other_processes(gpus: Sequence[Gpu], ours: Collection[int] = ()) -> list[str]:
    """Compute processes on these devices that are not ``ours``, as text: reasons not to start."""
    found = []
    for gpu in gpus:
        for p in gpu.processes or ():
            if p.pid not in ours:
                size = "" if p.used is None else f", {p.used / GIB:.1f} GiB"
                found.append(f"GPU {gpu.index} ({gpu.name}): compute process {p.pid} of others{size}")
    return found


def _fact(
    name: str, value: JSON, where: str, unit: str | None = None, seconds: float | None = None, **detail: JSON
) -> Fact:
    shown = f"{name} {value}" + (f" {unit}" if unit else "")
    return Fact(name, value, Evidence("gpu", where, shown, seconds=seconds), unit=unit, detail=detail)


def _pynvml() -> Any:
    return importlib.import_module("pynvml")  # on use; nvidia-ml-py has no type information


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
