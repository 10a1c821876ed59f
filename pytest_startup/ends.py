"""An engine's end as a failure: its launcher may know a cause that no log of the engine can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_startup.record import Failure

if TYPE_CHECKING:
    from pytest_startup.launch.base import Exit

#: ``Exit.reason`` → kind of failure, where the launcher knows better than the log. All other ends are ``ended``: a
#: cause that the log names counts.
KNOWN = {"oom-killed": "out-of-host-memory", "container-gone": "killed", "daemon-lost": "daemon-lost"}


def failure_of(ended: Exit, when: str, phase: str, after: float | None, rank: str | None = None) -> Failure:
    """``when``: ``before it was ready``, ``while it served``."""
    from pytest_startup.engines.failure_help import advice

    kind = KNOWN.get(ended.reason, "ended")
    code = "" if ended.code is None else f" (exit code {ended.code})"
    helps, no_help = advice(kind, phase) if kind != "ended" else ((), ())
    return Failure(
        phase=phase,
        kind=kind,
        summary=f"the engine ended {when}{code}: {ended.text}",
        rank=rank,
        node=ended.node,
        after_seconds=after,
        helps=helps,
        no_help=no_help,
    )
