"""Starts that restart only some nodes: which were left up, and what a record holds that is theirs.

A node that was left up did not start, so its log shows nothing of this start. The launcher states it (fact
``node.left_up``: the start in which the process that goes on was launched).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pytest_startup.record import Fact, StartRecord

FACT = "node.left_up"


def left_up(record: StartRecord) -> dict[str, Fact]:
    """Node → the launcher's word that it was left up; empty for a start of all nodes."""
    return {f.node: f for f in record.named(FACT) if f.node}


def ranks_of(record: StartRecord, nodes: Collection[str]) -> int | None:
    """How many ranks these nodes hold by the profile; None: it does not say so of each."""
    held = {f.node: len(f.value) for f in record.named("node.ranks") if isinstance(f.value, list) and f.node}
    return sum(held[n] for n in nodes) if all(n in held for n in nodes) else None


def without(record: StartRecord, nodes: Collection[str]) -> StartRecord:
    """``record`` without what the logs of these nodes say: what is compared with a start in which they were left up."""
    if not nodes:
        return record
    facts = tuple(f for f in record.facts if not _logged(f, nodes))
    return replace(record, facts=facts, phases=tuple(s for s in record.phases if s.node not in nodes))


def with_words_of(start: StartRecord, earlier: StartRecord) -> StartRecord:
    """``start``, and what the nodes that it left up said in ``earlier``, where their processes were launched in it."""
    nodes = [n for n, f in left_up(start).items() if f.value == earlier.name]
    facts = tuple(f for f in earlier.facts if _logged(f, nodes))
    return replace(start, facts=(*start.facts, *facts))


def _logged(fact: Fact, nodes: Collection[str]) -> bool:
    return fact.evidence.source == "log" and (fact.node or fact.evidence.node) in nodes
