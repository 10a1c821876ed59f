"""What observers are given of a running engine: the logs that are being written, and who listens on its port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeLog:
    """A log that is being written: the raw bytes (complete, as received) and the receive time of each line.

    ``lines`` is a TSV ``line<TAB>seconds`` (line counts LF from 1, seconds since launch with 3 decimals, at the moment
    when the first byte of the line arrived), appended in step with the log.
    """

    node: str
    path: Path
    lines: Path

    @property
    def where(self) -> str:
        """``head/engine.log``: its place in the folder of the start, as in ``Evidence.where``."""
        return f"{self.node}/{self.path.name}"


def only_node(logs: Sequence[NodeLog]) -> str | None:
    """The node of a start with one log; None where there are several, and each line says whose it is."""
    return logs[0].node if len(logs) == 1 else None


@dataclass(frozen=True)
class Listening:
    """``who``: ``ours``, ``foreign`` or ``unknown`` (nothing seen there, or not allowed to look). ``text`` says why."""

    who: str
    text: str
