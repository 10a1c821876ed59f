"""A stand-in for nvidia-ml-py (``pynvml``): the functions that are used, with the errors of the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB = 2**30


class NVMLError(Exception):
    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


@dataclass
class Memory:
    total: int
    used: int
    free: int


@dataclass
class Process:
    pid: int
    usedGpuMemory: int | None  # noqa: N815 - the real name


@dataclass
class Device:
    name: str | bytes = "NVIDIA H200"
    uuid: str | bytes = "GPU-1"
    total: int | None = 141 * GIB
    used: int | None = 0
    processes: list[Process] | None = field(default_factory=list)
    mig: tuple[int, int] | None = None


class FakeNvml:
    """``devices`` may be changed between calls. ``absent``: nvmlInit fails as without a driver."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3

    def __init__(self, *devices: Device, driver: str | bytes = "580.65.06", absent: bool = False) -> None:
        self.devices, self.driver, self.absent = list(devices), driver, absent
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.absent:
            raise NVMLError(12, "NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:  # noqa: N802
        return self.driver

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        if index >= len(self.devices):
            raise NVMLError(2, "Invalid Argument")
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:  # noqa: N802
        for device in self.devices:
            if device.uuid in (uuid, uuid.encode()):
                return device
        raise NVMLError(6, "Not Found")

    def nvmlDeviceGetIndex(self, device: Device) -> int:  # noqa: N802
        return self.devices.index(device)

    def nvmlDeviceGetName(self, device: Device) -> str | bytes:  # noqa: N802
        return device.name

    def nvmlDeviceGetUUID(self, device: Device) -> str | bytes:  # noqa: N802
        return device.uuid

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Memory:  # noqa: N802
        if device.used is None or device.total is None:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED, "Not Supported")
        return Memory(device.total, device.used, device.total - device.used)

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:  # noqa: N802
        return list(self._supported(device.mig))

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> list[Process]:  # noqa: N802
        return list(self._supported(device.processes))

    def _supported(self, value: Any) -> Any:
        if value is None:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED, "Not Supported")
        return value
