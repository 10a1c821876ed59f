"""The autotune tier of the ledger: one row per rank, and the findings of files, ranks and log together."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_startup.ledger import findings as ledger_findings
from pytest_startup.ledger import log as ledger_log
from pytest_startup.ledger import versions as ledger_versions
from pytest_startup.ledger.case import Case, Holding, files_of, hold, stage_size, used_files
from pytest_startup.ledger.model import LedgerFinding, Part, Row
from pytest_startup.ledger.records import TIER, WatchedFile, static_findings
from pytest_startup.profile.expect import ExpectAutotune
from pytest_startup.ranks import Worker
from pytest_startup.record import StartRecord


def build(
    record: StartRecord,
    expect: ExpectAutotune,
    reference: StartRecord | None,
    warm: bool,
    team: Sequence[Worker],
    asked: bool,
) -> Part:
    """Rows, findings and unknowns of the tuning records. Empty where nothing was watched, logged or asked for."""
    log = ledger_log.read(record, team)
    watched = bool(record.caches_before or record.caches_after)
    before = files_of(record, record.caches_before)
    after = files_of(record, record.caches_after)
    judged = before if warm or before else after
    if not (asked or judged or after or log.any or any(r.facts for r in log.ranks.values())):
        return Part()
    used = used_files(judged, log)
    case = Case(
        record,
        expect,
        reference,
        warm,
        asked,
        tuple(team),
        log,
        ledger_log.read(reference, team) if reference else None,
        ledger_versions.tuning_of(record),
        judged,
        used,
        tuple(hold(w, team, used) for w in team),
        watched,
    )
    gpu = next((str(f.value) for f in record.named("gpu.name")), None)
    stage = stage_size(team)
    findings: list[LedgerFinding] = []
    for file in judged:
        findings += static_findings(file, gpu, stage if file in used else None)
    findings += ledger_findings.findings(case)
    rows = tuple(_row(case, before, after, h) for h in case.holdings)
    exercised = {TIER: log.any} if watched or log.any or asked else {}
    return Part(rows, tuple(findings), tuple(ledger_findings.unknowns(case)), exercised)


def _row(case: Case, before: Sequence[WatchedFile], after: Sequence[WatchedFile], holding: Holding) -> Row:
    worker = holding.worker
    log = case.log.ranks[worker.name]
    found = hold(worker, case.workers, used_files(before, case.log))
    now = hold(worker, case.workers, used_files(after, case.log))
    knows_rank = any(r.ranks or f.file.place.owner for f in (*before, *after) for r in f.file.records)
    old = {(f.cache, f.file.path, r.key): r.tactic for f, r in (*found.own, *found.free)}
    new = [1 for f, r in (*now.own, *now.free) if old.get((f.cache, f.file.path, r.key), _NOTHING) != r.tactic]
    return Row(
        rank=worker.name,
        tier=TIER,
        node=worker.node,
        expected=case.expect.records_per_rank,
        found=len(found.records) if case.record.caches_before else None,
        own=len(found.own) if knows_rank and case.record.caches_before else None,
        loaded=log.loaded,
        hit=tuple(log.hit),
        tuned=tuple(log.tuned),
        saved=log.new,
        missed=tuple(op for op in ledger_findings.expected_ops(case) if op not in log.hit) if case.warm else (),
        refused=tuple(f.evidence.text for f in log.refused),
        written=len(new) if case.record.caches_after else None,
        provenance=ledger_findings.provenance(case, worker),
        evidence=log.evidence[:6],
    )


#: A value that no tactic equals.
_NOTHING = object()
