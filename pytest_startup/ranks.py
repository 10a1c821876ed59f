"""Rank names of logs, files and record keys brought together: ``TP1_EP1``, ``rank_1_0``, ``ep_rank=1`` are one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields

_PART = re.compile(r"(DP|PP|TP|EP|PCP|DCP|rank)[_=\s]?(\d+)", re.IGNORECASE)

#: What the processes of an engine call themselves: ``VLLM::EngineCore``, ``VLLM::Worker_TP1`` (0.10 on; the first word
#: is ``VLLM_PROCESS_NAME_PREFIX``), ``sglang::scheduler_TP0``. Helpers of compilers and imports come and go, and have
#: no such title; nor has a rank before it knows its number.
TITLE = re.compile(
    r"(?i)(?:(?:vllm|sglang)::[a-z]+|[\w.-]+::(?:EngineCore|Worker|APIServer|DPCoordinator)(?![a-z]))(?:_(?P<rank>\S+))?"
)


@dataclass(frozen=True)
class Coordinates:
    """What a name says of a worker; None: not said. ``rank``: its number, in its DP engine if ``dp`` is known."""

    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    ep: int | None = None
    rank: int | None = None

    def agrees(self, other: Coordinates) -> bool:
        """Does nothing that both say contradict? Two names with nothing in common don't agree."""
        said = [(a, b) for f in fields(self) if None not in (a := getattr(self, f.name), b := getattr(other, f.name))]
        return bool(said) and all(a == b for a, b in said)


@dataclass(frozen=True)
class Worker:
    """One rank of the engine as the ledger lists it. ``index`` is its number inside its DP engine."""

    name: str
    at: Coordinates
    index: int
    node: str | None = None
    seen: bool = True


def parse_rank(name: str) -> Coordinates:
    """``DP0_TP1_EP1`` or ``rank=3`` taken apart; parts that are no coordinates are skipped."""
    found: dict[str, int] = {}
    for kind, number in _PART.findall(name):
        found.setdefault(kind.lower(), int(number))
    return Coordinates(**{k: v for k, v in found.items() if k in ("dp", "pp", "tp", "ep", "rank")})


def called(name: str) -> str:
    """``rank TP1_EP1``, ``rank 1``: a worker in a sentence."""
    return name if name.startswith("rank ") else f"rank {name}"


def workers(names: Iterable[tuple[str, str | None]], expected: int | None = None) -> tuple[Worker, ...]:
    """The workers behind the (rank name, node) pairs that evidence gives, sorted; at least ``expected`` of them.

    A name that says less than another one (``DP0`` beside ``DP0_TP1``) is an engine core, not a worker. Workers that
    are expected, but that nothing names, are called like the others, with ``seen`` False. Without a name there is one.
    """
    nodes: dict[str, str | None] = {}
    for name, node in names:
        if nodes.get(name) is None:
            nodes[name] = node
    parsed = {n: parse_rank(n) for n in nodes if parse_rank(n) != Coordinates()}
    full = {n: at for n, at in parsed.items() if not any(_narrower(other, at) for other in parsed.values())}
    tp_size = 1 + max((at.tp or 0 for at in full.values()), default=0)
    found = sorted(
        (Worker(n, at, _index(at, tp_size), nodes[n]) for n, at in full.items()),
        key=lambda w: (w.at.dp or 0, w.index, w.name),
    )
    if not found and expected in (None, 1):
        return (Worker("rank 0", Coordinates(rank=0), 0),)
    taken = {w.index for w in found}
    free = (i for i in range(expected or 0) if i not in taken)
    missing = [Worker(_like(found, i), Coordinates(tp=i, rank=i), i, seen=False) for i in free]
    return tuple(found + missing[: max(0, (expected or 0) - len(found))])


def _like(found: Iterable[Worker], index: int) -> str:
    """``TP1_EP1`` beside ``TP0_EP0``; ``rank 1`` where the other names have no such pattern."""
    for worker in found:
        kinds = re.findall(r"(TP|EP)\d+", worker.name)
        if kinds and worker.name == "_".join(f"{k}{worker.index}" for k in kinds):
            return "_".join(f"{k}{index}" for k in kinds)
    return f"rank {index}"


def of_folder(all_workers: Iterable[Worker], rank: int, dp: int = 0) -> Worker | None:
    """The worker of a ``rank_<rank>_<dp>`` folder or a ``…_dp<dp>_rank<rank>`` file."""
    return next((w for w in all_workers if w.index == rank and (w.at.dp or 0) == dp), None)


def _index(at: Coordinates, tp_size: int) -> int:
    if at.tp is not None or at.pp is not None:
        return (at.pp or 0) * tp_size + (at.tp or 0)
    if at.rank is not None:
        return at.rank
    return at.ep if at.ep is not None and at.dp is None else 0


def _narrower(other: Coordinates, at: Coordinates) -> bool:
    """Does ``other`` say all that ``at`` says, and more?"""
    pairs = [(getattr(at, f.name), getattr(other, f.name)) for f in fields(at)]
    return at != other and all(mine is None or mine == theirs for mine, theirs in pairs)
