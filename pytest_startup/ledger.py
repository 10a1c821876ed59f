"""The rank ledger of one start: per rank and tier what was expected, found, loaded, hit, tuned, saved, missed, written.

Pure: it reads a start record (facts and cache trees) and never a file, so a saved night can be judged again.
What it finds wrong is in ``Ledger.findings``, what no evidence can show in ``Ledger.unknowns``, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_startup.profile.model import ExpectArtifacts, ExpectAutotune
from pytest_startup.ranks import Worker
from pytest_startup.record import Evidence, StartRecord

#: Every kind of finding; docs/ledger.md says what each rests on.
KINDS = (
    "rank-missing",
    "rank-incomplete",
    "rank-surplus",
    "records-copied",
    "foreign-rank",
    "file-damaged",
    "file-edited",
    "file-layout",
    "metadata-wildcard",
    "metadata-wrong",
    "foreign-arch",
    "older-key-format",
    "key-malformed",
    "runner-mismatch",
    "tactic-malformed",
    "sizes-wrong",
    "changed-between-starts",
    "path-moved",
    "key-hash-changed",
    "tuned-again",
    "not-hit",
    "refused",
    "saved-again",
    "ranks-diverge",
    "never-used",
    "artifact-missing",
    "artifact-damaged",
    "artifact-copied",
    "artifact-refused",
    "not-loaded",
    "recompiled",
    "written-when-warm",
)


@dataclass(frozen=True)
class Row:
    """One rank in one tier. Numbers count records (tier ``autotune``) or files; None: no evidence either way.

    ``found``: in the caches before this start, own ones and those that no rank owns; ``own`` only own ones (None where
    the keys or names of this version hold no rank). ``loaded``: as the log says, before this rank tuned anything.
    ``hit``/``tuned``/``missed`` are op names. ``written``: new or changed records or files in the caches after it.
    ``provenance``: where a recorded start shows this rank tuning them; None: nothing recorded shows it.
    """

    rank: str
    tier: str
    node: str | None = None
    expected: int | None = None
    found: int | None = None
    own: int | None = None
    loaded: int | None = None
    hit: tuple[str, ...] = ()
    tuned: tuple[str, ...] = ()
    saved: int | None = None
    missed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    written: int | None = None
    provenance: str | None = None
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class LedgerFinding:
    """Something wrong, with the records or lines that show it. ``kind`` is one of ``KINDS``; ``rank`` None: all."""

    kind: str
    tier: str
    summary: str
    expected: str
    observed: tuple[str, ...]
    rank: str | None = None
    evidence: tuple[Evidence, ...] = ()
    helps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unknown:
    """Something that this engine, version or evidence can't show, and why. ``rank`` None: all ranks."""

    tier: str
    what: str
    reason: str
    rank: str | None = None


@dataclass(frozen=True)
class Ledger:
    """All rows of a start, sorted by tier and rank; findings in the order of their weight.

    ``exercised`` maps a tier to whether anything of it was loaded, hit, tuned or compiled in this start, as the log
    says; a tier that is missing there was neither used nor watched.
    """

    workers: tuple[Worker, ...]
    rows: tuple[Row, ...]
    findings: tuple[LedgerFinding, ...] = ()
    unknowns: tuple[Unknown, ...] = ()
    exercised: Mapping[str, bool] = field(default_factory=dict)

    def tier(self, name: str) -> list[Row]:
        return [r for r in self.rows if r.tier == name]

    def of(self, *tiers: str) -> list[LedgerFinding]:
        return [f for f in self.findings if f.tier in tiers]


@dataclass(frozen=True)
class Part:
    """One tier's share of the ledger."""

    rows: tuple[Row, ...] = ()
    findings: tuple[LedgerFinding, ...] = ()
    unknowns: tuple[Unknown, ...] = ()
    exercised: Mapping[str, bool] = field(default_factory=dict)


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
    from pytest_startup import ledger_artifacts, ledger_autotune
    from pytest_startup.ledger_case import team_of
    from pytest_startup.ledger_moves import moves

    if warm is None:
        warm = reference is not None and "wiped:" not in record.population
    expected = (autotune.ranks if autotune else None) or (artifacts.ranks if artifacts else None)
    crew = tuple(team) if team else team_of(record, reference, expected)
    tuning = ledger_autotune.build(record, autotune or ExpectAutotune(), reference, warm, crew, autotune is not None)
    compiled = ledger_artifacts.build(record, artifacts or ExpectArtifacts(), warm, crew)
    order = {kind: n for n, kind in enumerate(KINDS)}
    found = (*tuning.findings, *compiled.findings, *moves(record, reference, warm))
    findings = sorted(found, key=lambda f: (f.tier != "autotune", order[f.kind]))
    return Ledger(
        workers=crew,
        rows=tuning.rows + compiled.rows,
        findings=tuple(findings),
        unknowns=tuning.unknowns + compiled.unknowns,
        exercised={**tuning.exercised, **compiled.exercised},
    )
