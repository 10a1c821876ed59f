"""Samples memory while an engine starts: the peak of each GPU, the least that host and /dev/shm had left."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup.observe import gpus as gpu_facts
from pytest_startup.observe.host import meminfo, memory_facts, shm_fact
from pytest_startup.record import Fact

if TYPE_CHECKING:
    from pytest_startup.observe.gpus import Gpu, Nvml


HANGS = 2.0  # seconds after which a call into the driver is taken not to come back


class MemorySampler:
    """A thread that samples every ``interval`` seconds; make it *before* launch, so that ``before`` means it.

    ``facts()`` gives, per device, ``gpu.memory_used`` at ``before``, ``peak`` and ``after`` (or ``gpu.memory_unknown``
    with the reason), and ``host.memory_available`` at ``before``, ``lowest`` and ``after``. Where GPU and host share
    memory, the latter is the only witness. Once the driver has hung for two seconds it is not asked again.
    ``shm`` tells where the engine's /dev/shm is seen (None: nowhere yet): ``host.shm_free`` at ``lowest``.
    """

    def __init__(
        self,
        nvml: Nvml | None,
        launched_at: float,
        *,
        interval: float = 0.5,
        pids: Callable[[], Collection[int] | None] | None = None,
        proc: Path = Path("/proc"),
        shm: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self._nvml, self._launched_at, self._interval, self._pids, self._proc = nvml, launched_at, interval, pids, proc
        self._lock = threading.Lock()
        self._peaks: dict[int, tuple[Gpu, float]] = {}
        self._lowest: tuple[int, list[Fact]] | None = None
        self._shm = shm
        self._shm_lowest: tuple[int, list[Fact]] | None = None
        self._asked_at: float | None = None
        self._before = self._now("before")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="startup-memory", daemon=True)

    def start(self, launched_at: float | None = None) -> MemorySampler:
        """Begin; ``launched_at`` corrects the time that was given when the sampler was made."""
        if launched_at is not None:
            self._launched_at = launched_at
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the samples. Returns within 2 s even if the driver hangs. Idempotent."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(HANGS)

    def facts(self, after: bool = True) -> list[Fact]:
        """All facts so far. ``after``: measure once more, as the state after the start (or after the stop)."""
        last = self._now("after") if after else []
        with self._lock:
            peaks = [
                fact
                for gpu, seconds in self._peaks.values()
                for fact in gpu_facts.memory_facts([gpu], "peak", seconds, self._pids() if self._pids else None)
            ]
            lowest = [f for one in (self._lowest, self._shm_lowest) if one is not None for f in one[1]]
        return [*self._before, *peaks, *lowest, *last]

    def look_at_shm(self) -> None:
        """One sample of /dev/shm; at once, where a process has just died: what it held may go in a moment."""
        folder = self._shm()
        try:
            space = os.statvfs(folder) if folder is not None else None
        except OSError:  # a container that has ended, or that is not ours to look into
            return
        if space is None:
            return
        free = space.f_bavail * space.f_frsize
        with self._lock:
            if self._shm_lowest is None or free < self._shm_lowest[0]:
                fact = shm_fact(free, space.f_blocks * space.f_frsize, time.monotonic() - self._launched_at)
                self._shm_lowest = (free, [fact])

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._sample()
            self._stopped.wait(self._interval)

    def _sample(self) -> None:
        since = time.monotonic() - self._launched_at
        self._asked_at = time.monotonic()
        gpus = self._nvml.gpus() if self._nvml else ()
        self._asked_at = None
        available = meminfo(self._proc).get("MemAvailable")
        self.look_at_shm()
        with self._lock:
            for gpu in gpus:
                best = self._peaks.get(gpu.index)
                if gpu.used is not None and (best is None or gpu.used > (best[0].used or 0)):
                    self._peaks[gpu.index] = (gpu, since)
            if available is not None and (self._lowest is None or available < self._lowest[0]):
                facts = memory_facts(self._proc, "lowest", since)
                self._lowest = (available, [f for f in facts if f.name == "host.memory_available"])

    def _now(self, at: str) -> list[Fact]:
        since = time.monotonic() - self._launched_at
        asked = self._asked_at
        hangs = asked is not None and time.monotonic() - asked > HANGS
        gpus = self._nvml.gpus() if self._nvml and not hangs else ()
        host = [f for f in memory_facts(self._proc, at, since) if f.name == "host.memory_available"]
        return [*gpu_facts.memory_facts(gpus, at, since, self._pids() if self._pids else None), *host]
