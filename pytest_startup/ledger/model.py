"""What a rank ledger is made of: rows per rank and tier, findings, and what no evidence can show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_startup.ranks import Worker
from pytest_startup.record import Evidence

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
        """The rows of one tier."""
        return [r for r in self.rows if r.tier == name]

    def of(self, *tiers: str) -> list[LedgerFinding]:
        """Findings of these tiers."""
        return [f for f in self.findings if f.tier in tiers]


@dataclass(frozen=True)
class Part:
    """One tier's share of the ledger."""

    rows: tuple[Row, ...] = ()
    findings: tuple[LedgerFinding, ...] = ()
    unknowns: tuple[Unknown, ...] = ()
    exercised: Mapping[str, bool] = field(default_factory=dict)
