"""The artifact tiers of the ledger: per rank what was compiled before, loaded, compiled again and newly written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_startup.ledger import artifact_findings
from pytest_startup.ledger.model import Part, Row, Unknown
from pytest_startup.ledger.placed import ALL, QUOTED, Loads, Placed, Written, placed, read_loads, written_paths
from pytest_startup.observe.compile_layout import RANK_TIERS, TIERS, Artifact, classify
from pytest_startup.profile.expect import ExpectArtifacts
from pytest_startup.ranks import Worker, of_folder
from pytest_startup.record import Fact, StartRecord

#: Tiers whose artifacts all ranks of a node share: one row each, for rank ``all``.
SHARED_TIERS = tuple(t for t in TIERS if t not in (*RANK_TIERS, "autotune", "other"))


def build(
    record: StartRecord,
    expect: ExpectArtifacts,
    warm: bool,
    team: Sequence[Worker],
) -> Part:
    """Rows and findings of the compile caches. Empty where none is watched and the log speaks of none."""
    before, after = placed(record.caches_before), placed(record.caches_after)
    loads = read_loads(record, team)
    if not (before or after or loads.loaded or loads.written or loads.refused):
        return Part()
    ranked = [p for p in before if p.at.tier in RANK_TIERS]
    written = written_paths(record)
    rows = [_rank_row(w, t, team, ranked, written, loads) for t in RANK_TIERS for w in team]
    rows = [r for r in rows if r.found or r.written or r.loaded or r.refused]
    there = {p.at.tier for many in (before, after) for p in many}
    rows += [_shared_row(t, before, written, loads) for t in SHARED_TIERS if t in there]
    findings = artifact_findings.always(team, ranked, loads, expect)
    if warm:
        findings += artifact_findings.when_warm(record, team, ranked, written or [], loads, expect)
    used = {t: bool(_facts(loads, t)) for t in (*RANK_TIERS, *SHARED_TIERS)}
    exercised = {t: said for t, said in used.items() if said or t in there}
    return Part(tuple(rows), tuple(findings), tuple(_unknowns(record, team, before, loads)), exercised)


def _rank_row(
    worker: Worker,
    tier: str,
    team: Sequence[Worker],
    before: Sequence[Placed],
    changes: Written | None,
    loads: Loads,
) -> Row:
    mine = [p for p in before if p.at.tier == tier and _is_of(p.at, worker, team)]
    slots = {p.at.slot() for p in before if p.at.tier == tier}
    written = [at for _, at in changes or () if at.tier == tier and _is_of(at, worker, team)]
    lines = loads.loaded.get((tier, worker.name), [])
    again = loads.written.get((tier, worker.name), [])
    refused = loads.refused.get(worker.name, [])
    return Row(
        rank=worker.name,
        tier=tier,
        node=worker.node,
        expected=len(slots) or None,
        found=len(mine),
        own=len(mine),
        loaded=len(lines) if lines else None,
        missed=tuple(sorted(slots - {p.at.slot() for p in mine})),
        tuned=tuple(str(f.value)[:80] for f in again),
        refused=tuple(f.evidence.text for f in refused),
        written=len(written) if changes is not None else None,
        evidence=tuple(f.evidence for f in (*lines, *again, *refused))[:QUOTED],
    )


def _shared_row(tier: str, before: Sequence[Placed], changes: Written | None, loads: Loads) -> Row:
    written = [at for _, at in changes or () if at.tier == tier]
    lines = _facts(loads, tier)
    return Row(
        rank=ALL,
        tier=tier,
        found=sum(1 for p in before if p.at.tier == tier),
        written=len(written) if changes is not None else None,
        evidence=tuple(f.evidence for f in lines[:QUOTED]),
    )


def _facts(loads: Loads, tier: str) -> list[Fact]:
    return [f for into in (loads.loaded, loads.written) for (t, _), facts in into.items() if t == tier for f in facts]


def _is_of(at: Artifact, worker: Worker, team: Sequence[Worker]) -> bool:
    return at.rank is not None and of_folder(team, at.rank, at.dp or 0) == worker


def _unknowns(record: StartRecord, team: Sequence[Worker], before: Sequence[Placed], loads: Loads) -> Iterator[Unknown]:
    for fact in record.named("cache.unreadable"):
        reason = str(fact.detail.get("reason"))
        yield Unknown(classify(str(fact.value)).tier, f"the content of {fact.value}", reason)
    shared = sorted({p.at.tier for p in before if p.at.tier in SHARED_TIERS})
    if shared and len(team) > 1:
        yield Unknown(
            "shared",
            f"which rank uses which file of {', '.join(shared)}",
            "these caches are shared by all ranks of a node and their loads print no line",
        )
    if any(p.at.tier == "compile" for p in before) and not any(t == "compile" for t, _ in loads.loaded):
        yield Unknown(
            "compile",
            "whether each rank loaded its graphs",
            "vLLM prints these lines on local rank 0 only, or none at all",
        )
