"""NVML through the driver's own library, for a Python without packages: what ``observe.gpus`` uses of nvidia-ml-py.

A node has no package of ours, so the C functions are called by ctypes, under the names that nvidia-ml-py gives them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

_LIBRARY = "libnvidia-ml.so.1"
_NOT_FOUND = 13  # NVML_ERROR_FUNCTION_NOT_FOUND
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_NO_FIGURE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
_TEXT = 96


class NVMLError(Exception):
    """``value``: NVML's own number of the error."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class _Memory(ctypes.Structure):
    _fields_: ClassVar = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]


class _Process(ctypes.Structure):
    """``nvmlProcessInfo_t`` of the functions ``_v2`` and ``_v3``."""

    _fields_: ClassVar = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


@dataclass(frozen=True)
class Running:
    """A compute process; ``usedGpuMemory`` in bytes, None where NVML does not say."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815 - nvidia-ml-py's name


class Library:
    """Stands in for the module ``pynvml``. Every function raises NVMLError; the first one is ``nvmlInit``."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3

    def __init__(self) -> None:
        self._library: Any = None

    def nvmlInit(self) -> None:  # noqa: N802 - here and below nvidia-ml-py's names
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise NVMLError(12, str(error)) from None
        self._call("nvmlInit_v2")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._call("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self._text("nvmlSystemGetDriverVersion")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._number("nvmlDeviceGetCount_v2")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> ctypes.c_void_p:  # noqa: N802
        return self._device("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> ctypes.c_void_p:  # noqa: N802
        return self._device("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()))

    def nvmlDeviceGetIndex(self, device: ctypes.c_void_p) -> int:  # noqa: N802
        return self._number("nvmlDeviceGetIndex", device)

    def nvmlDeviceGetName(self, device: ctypes.c_void_p) -> str:  # noqa: N802
        return self._text("nvmlDeviceGetName", device)

    def nvmlDeviceGetUUID(self, device: ctypes.c_void_p) -> str:  # noqa: N802
        return self._text("nvmlDeviceGetUUID", device)

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p) -> _Memory:  # noqa: N802
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return memory

    def nvmlDeviceGetMigMode(self, device: ctypes.c_void_p) -> tuple[int, int]:  # noqa: N802
        now, later = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvmlDeviceGetMigMode", device, ctypes.byref(now), ctypes.byref(later))
        return now.value, later.value

    def nvmlDeviceGetComputeRunningProcesses(self, device: ctypes.c_void_p) -> list[Running]:  # noqa: N802
        room = 16
        while True:
            count, rows = ctypes.c_uint(room), (_Process * room)()
            try:
                self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), rows)
            except NVMLError as error:
                if error.value != _TOO_SMALL or count.value < room:
                    raise
                room = 2 * count.value  # more may have come since
                continue
            found = rows[: count.value]
            return [Running(int(r.pid), None if r.used == _NO_FIGURE else int(r.used)) for r in found]

    def _number(self, name: str, *args: object) -> int:
        number = ctypes.c_uint()
        self._call(name, *args, ctypes.byref(number))
        return number.value

    def _text(self, name: str, *args: object) -> str:
        buffer = ctypes.create_string_buffer(_TEXT)
        self._call(name, *args, buffer, ctypes.c_uint(_TEXT))
        return buffer.value.decode("utf-8", "replace")

    def _device(self, name: str, which: object) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call(name, which, ctypes.byref(handle))
        return handle

    def _call(self, name: str, *args: object) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise NVMLError(_NOT_FOUND, f"this driver has no {name}")
        code = int(function(*args))
        if code != 0:
            tell = self._library.nvmlErrorString
            tell.restype = ctypes.c_char_p
            raise NVMLError(code, (tell(code) or b"").decode("utf-8", "replace") or f"NVML error {code}")
