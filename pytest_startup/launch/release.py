"""Proof that a stopped engine has given back what it held: its port, its GPU memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from pytest_startup.launch import ports
from pytest_startup.record import Leftover

#: ``gpu_held(pids, gpus)``: one text per holding that is not released yet (``GPU 0: 2.1 GiB held by pid 7``). ``pids``
#: are all that the engine ever had, ``gpus`` those of the profile. Empty: released, or there is nothing to see.
GpuHeld = Callable[[Collection[int], Sequence[str]], Sequence[str]]

_POLL = 0.05


def port_released(
    host: str, port: int, node: str, begin: float, until: float, ours: Collection[int] | None = None
) -> Leftover:
    """Wait for it until ``until`` (``time.monotonic()``); seconds count from ``begin``.

    ``ours``: pids of ours that still live. Where only processes listen that are none of them, at two looks, nothing is
    waited for: they will not give the port back. None: who is ours can't be told.
    """
    strange = 0
    while True:
        taken = ports.why_taken(host, port)
        seconds = round(time.monotonic() - begin, 3)
        if taken is None:
            return Leftover("port", f"{host}:{port}", True, seconds, node)
        strange = strange + 1 if _strangers(port, ours) else 0
        if time.monotonic() >= until or strange > 1:
            return Leftover("port", f"{host}:{port}, held by {taken}", False, seconds, node)
        time.sleep(_POLL)


def _strangers(port: int, ours: Collection[int] | None) -> bool:
    pids = [one.pid for one in ports.listeners(port)] if ours is not None else []
    return bool(pids) and all(pid is not None and pid not in (ours or ()) for pid in pids)


def gpus_released(
    held_by: GpuHeld | None, pids: Collection[int], gpus: Sequence[str], node: str, begin: float, until: float
) -> list[Leftover]:
    """The same for the memory that ``pids`` had on ``gpus``."""
    if held_by is None or not gpus:
        return []
    while True:
        held = held_by(pids, gpus)
        seconds = round(time.monotonic() - begin, 3)
        if not held:
            return [Leftover("gpu-memory", f"GPU {gpu}", True, seconds, node) for gpu in gpus]
        if time.monotonic() >= until:
            return [Leftover("gpu-memory", text, False, seconds, node) for text in held]
        time.sleep(4 * _POLL)
