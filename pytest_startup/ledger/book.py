"""Builds the rank ledger of one start: rank × tier, with what is wrong and what can't be shown.

Pure: it reads a start record (facts and cache trees) and never a file, so a saved night can be judged again.
What it finds wrong is in ``Ledger.findings``, what no evidence can show in ``Ledger.unknowns``, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_startup import leftup
from pytest_startup.ledger import artifacts as artifact_tiers
from pytest_startup.ledger import autotune as autotune_tier
from pytest_startup.ledger.case import team_of
from pytest_startup.ledger.model import KINDS, Ledger, Unknown
from pytest_startup.ledger.moves import moves
from pytest_startup.profile.expect import ExpectArtifacts, ExpectAutotune
from pytest_startup.ranks import Worker
from pytest_startup.record import StartRecord


def build(
    record: StartRecord,
    autotune: ExpectAutotune | None = None,
    artifacts: ExpectArtifacts | None = None,
    reference: StartRecord | None = None,
    warm: bool | None = None,
    team: Sequence[Worker] | None = None,
) -> Ledger:
    """The ledger of ``record``.

    ``reference`` is the start before it or the reference start: needed for what moved, changed or vanished between the
    two, and for provenance. ``warm`` says whether the caches had to be used again; by default that is so when there is
    a reference and nothing was wiped for this start (``Restart.warm``). A cold start gives the static findings only.
    ``team``: the workers, where they are known otherwise; by default those that the log and the expectations name.
    """
    if warm is None:
        warm = reference is not None and "wiped:" not in record.population
    expected = (autotune.ranks if autotune else None) or (artifacts.ranks if artifacts else None)
    crew = tuple(team) if team else team_of(record, reference, expected)
    tuning = autotune_tier.build(record, autotune or ExpectAutotune(), reference, warm, crew, autotune is not None)
    compiled = artifact_tiers.build(record, artifacts or ExpectArtifacts(), warm, crew)
    order = {kind: n for n, kind in enumerate(KINDS)}
    found = (*tuning.findings, *compiled.findings, *moves(record, reference, warm))
    findings = sorted(found, key=lambda f: (f.tier != "autotune", order[f.kind]))
    return Ledger(
        workers=crew,
        rows=tuning.rows + compiled.rows,
        findings=tuple(findings),
        unknowns=tuning.unknowns + compiled.unknowns + tuple(_left_up(record)),
        exercised={**tuning.exercised, **compiled.exercised},
    )


def _left_up(record: StartRecord) -> Iterator[Unknown]:
    for node, fact in leftup.left_up(record).items():
        reason = f"node {node} was left up since {fact.value}: it loaded, tuned and compiled nothing in this start"
        yield Unknown("all", f"what the ranks of {node} have", reason)
