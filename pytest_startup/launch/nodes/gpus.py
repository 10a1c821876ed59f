"""The GPUs of a node as ``nvidia-smi`` there sees them: what they are, who computes on them, and that nobody is left.

What it calls not supported is None, never 0 (a GB10 shares its memory with the host: no figure per process).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pytest_startup.launch.identity import command_line

_SMI_LIMIT = 20.0
_POLL = 0.2


def gpus() -> dict[str, Any]:
    """``devices`` (index, uuid, name, driver, MIG mode, MiB total and used), ``processes`` (uuid, pid, MiB, command).

    ``error`` when it can't be asked.
    """
    devices, error = _smi("--query-gpu=index,uuid,name,driver_version,mig.mode.current,memory.total,memory.used")
    if error is not None:
        return {"error": error, "devices": [], "processes": []}
    running, error = _smi("--query-compute-apps=gpu_uuid,pid,used_memory")
    return {
        "devices": devices,
        "processes": [[*row, command_line(int(row[1])) if row[1] and row[1].isdigit() else "?"] for row in running],
        "error": error,
    }


def computing(asked: Mapping[str, Any]) -> list[list[str]] | None:
    """Who computes on these ``gpus`` (indexes, UUIDs, or ``all``): pid and a text each. None: it can't be asked."""
    seen = gpus()
    if seen["error"] is not None:
        return None
    wanted = {uuid: index for index, uuid, *_ in seen["devices"] if _is_one(index, uuid, asked["gpus"])}
    return [
        [str(pid), f"GPU {wanted[uuid]}: {f'{used} MiB ' if used else ''}held by pid {pid}: {command}"]
        for uuid, pid, used, command in seen["processes"]
        if uuid in wanted
    ]


def released(asked: Mapping[str, Any]) -> list[str] | None:
    """Wait up to ``within`` seconds until nobody computes on ``gpus`` who did not ``before``; who still does.

    The pids of an engine in a container are not known here, so it is the difference that counts.
    """
    begin = time.monotonic()
    while True:
        now = computing(asked)
        held = None if now is None else [text for pid, text in now if pid not in asked["before"]]
        if not held or time.monotonic() - begin >= asked["within"]:
            return held
        time.sleep(_POLL)


def parse_csv(text: str) -> list[list[str | None]]:
    """Rows of cells; ``[N/A]``, ``[Not Supported]`` and the like are None."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [[None if cell.startswith("[") or cell in ("N/A", "") else cell for cell in row] for row in rows]


def _is_one(index: str | None, uuid: str | None, wanted: Sequence[str] | Collection[str]) -> bool:
    return "all" in wanted or index in wanted or uuid in wanted


def _smi(query: str) -> tuple[list[list[str | None]], str | None]:
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],  # noqa: S607 - the node's own, found in its PATH
            capture_output=True,
            text=True,
            timeout=_SMI_LIMIT,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return [], "no nvidia-smi"
    except (OSError, subprocess.SubprocessError) as error:
        return [], f"nvidia-smi: {error}"
    if done.returncode != 0:
        return [], f"nvidia-smi: {(done.stdout or done.stderr).strip()[:200]}"
    return parse_csv(done.stdout), None
