"""What ``pytest-startup cache`` says of a folder, and of two: as data for ``--json`` and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pytest_startup.ledger.book import build as build_ledger
from pytest_startup.ledger.case import key_index
from pytest_startup.ledger.model import Ledger
from pytest_startup.ledger.moves import factors
from pytest_startup.observe.autotune_records import RecordFile
from pytest_startup.observe.cache_diff import diff
from pytest_startup.observe.cache_facts import record_files
from pytest_startup.observe.caches import Snapshot
from pytest_startup.observe.compile_layout import TIERS, classify
from pytest_startup.profile.expect import ExpectArtifacts, ExpectAutotune
from pytest_startup.ranks import Coordinates, Worker
from pytest_startup.record import JSON, Evidence, StartRecord

SCHEMA = 1
SHOWN = 12


@dataclass(frozen=True)
class Folder:
    """One folder read: its snapshot, its record files, its ledger."""

    shot: Snapshot
    files: tuple[RecordFile, ...]
    ledger: Ledger


def look(shot: Snapshot, ranks: int | None = None, records: int | None = None) -> Folder:
    """The ledger of a folder alone, without any log. ``ranks``/``records``: what is expected, if it is."""
    record = as_record(shot)
    files = tuple(record_files(list(shot.facts), shot.tree))
    team = infer_team(shot, files, ranks)
    book = build_ledger(record, ExpectAutotune(ranks, records), ExpectArtifacts(), warm=False, team=team)
    return Folder(shot, files, book)


def as_record(shot: Snapshot) -> StartRecord:
    """A record that holds nothing but the folder, as it would be before a start."""
    return StartRecord("", "cache", "none", "none", "", facts=shot.facts, caches_before=(shot.tree,))


def infer_team(shot: Snapshot, files: Iterable[RecordFile], expected: int | None = None) -> tuple[Worker, ...]:
    """The ranks that folder names, file names and keys speak of; at least ``expected``; at least one."""
    seen: set[tuple[int, int]] = {(0, r) for r in range(expected or 1)}
    for file in shot.tree.files:
        at = classify(file.path)
        if at.rank is not None:
            seen.add((at.dp or 0, at.rank))
    for held in files:
        owner = held.place.owner
        number = owner.rank if owner.rank is not None else owner.tp
        if number is not None:
            seen.add((owner.dp or 0 if owner.rank is not None else 0, number))
        for record in held.records:
            sizes = (record.ranks.tp_size or 1) * (record.ranks.ep_size or 1)
            index = key_index(record, sizes)
            if index is not None and not any(d for d, _ in seen):
                seen.update((0, r) for r in (index, *range(min(max(sizes, 1), 4096))))
    several = any(d for d, _ in seen)
    return tuple(
        Worker(f"DP{d}_TP{r}" if several else f"rank {r}", Coordinates(dp=d if several else None, tp=r, rank=r), r)
        for d, r in sorted(seen)
    )


def to_json(folder: Folder) -> dict[str, JSON]:
    """The folder as data; keys are stable, ``schema`` counts."""
    tree, book = folder.shot.tree, folder.ledger
    return {
        "schema": SCHEMA,
        "folder": tree.path,
        "exists": tree.exists,
        "tiers": {t: dict(v) for t, v in tiers(folder).items()},
        "record_files": [_file(f) for f in folder.files],
        "rows": [_plain(r) for r in book.rows],
        "findings": [_plain(f) for f in book.findings],
        "unknowns": [_plain(u) for u in book.unknowns],
    }


def tiers(folder: Folder) -> dict[str, dict[str, JSON]]:
    """Files and bytes per tier, in the order of ``TIERS``; tiers without files are left out."""
    found: dict[str, dict[str, JSON]] = {}
    records = {f.path for f in folder.files}
    for file in folder.shot.tree.files:
        in_records = file.path in records or any(file.path.startswith(f"{p}/") for p in records)
        tier = "autotune" if in_records else classify(file.path).tier
        entry = found.setdefault(tier, {"files": 0, "bytes": 0})
        entry["files"] = int(str(entry["files"])) + 1
        entry["bytes"] = int(str(entry["bytes"])) + file.size
    return {t: found[t] for t in TIERS if t in found}


def difference(one: Folder, other: Folder) -> dict[str, JSON]:
    """What the second folder has, lacks or has otherwise, down to single tuning records and key factors."""
    change = diff(one.shot.tree, other.shot.tree)
    here, there = _records(one.files), _records(other.files)
    return {
        "folder": other.shot.tree.path,
        "only_there": list[JSON](change.new),
        "only_here": list[JSON](change.gone),
        "changed": list[JSON](change.changed),
        "same": len(change.same),
        "rewritten": len(change.rewritten),
        "records": {
            "only_there": list[JSON](sorted(f"{f}: {k}" for f, k in there.keys() - here.keys())),
            "only_here": list[JSON](sorted(f"{f}: {k}" for f, k in here.keys() - there.keys())),
            "other_tactic": [
                f"{f}: {k}: {here[f, k]} → {there[f, k]}"
                for f, k in sorted(here.keys() & there.keys())
                if here[f, k] != there[f, k]
            ],
        },
        "metadata": _metadata(one.files, other.files),
        "factors": list[JSON](factors(as_record(one.shot), as_record(other.shot))),
    }


def differs(change: dict[str, JSON]) -> bool:
    """Has a compared file any record that is not the same in both?"""
    return bool(change["only_there"] or change["only_here"] or change["changed"])


def text(folder: Folder) -> Iterator[str]:
    """The folder for a human, line by line."""
    tree, book = folder.shot.tree, folder.ledger
    if not tree.exists:
        yield f"{tree.path}: no such folder"
        return
    total = sum(f.size for f in tree.files)
    yield f"{tree.path}: {len(tree.files):,} files, {_bytes(total)}"
    for tier, entry in tiers(folder).items():
        yield f"  {tier:<10} {int(str(entry['files'])):>8,} files {_bytes(int(str(entry['bytes']))):>12}"
    for file in folder.files:
        yield from _file_text(file)
    rows = [r for r in book.rows if r.found or r.expected or r.missed]
    if rows:
        yield ""
        yield f"{'rank':<12} {'tier':<10} {'expected':>8} {'found':>7} {'own':>6}  missing"
        for row in rows:
            numbers = f"{_cell(row.expected):>8} {_cell(row.found):>7} {_cell(row.own):>6}"
            yield f"{row.rank:<12} {row.tier:<10} {numbers}  {', '.join(row.missed)}".rstrip()
    if book.findings:
        yield ""
    for finding in book.findings:
        yield f"FOUND {finding.kind}: {finding.summary}"
        yield f"  expected  {finding.expected}"
        yield from (f"  observed  {o}" for o in finding.observed[:SHOWN])
        yield from (f"  evidence  {e.place()}  {e.text[:160]}".rstrip() for e in finding.evidence[:3])
        yield from (f"  helps     {h}" for h in finding.helps)
    for unknown in book.unknowns:
        rank = f" ({unknown.rank})" if unknown.rank else ""
        yield f"UNKNOWN{rank}: {unknown.what}: {unknown.reason}"


def difference_text(other: Folder, change: dict[str, JSON]) -> Iterator[str]:
    """The difference for a human, line by line."""
    if not differs(change):
        yield f"{other.shot.tree.path}: the same {change['same']} files"
        return
    yield f"against {other.shot.tree.path}: {change['same']} files are the same"
    for name, title in (("only_there", "only there"), ("only_here", "only here"), ("changed", "changed")):
        yield from _listed(title, change[name])
    records = change["records"]
    if isinstance(records, dict):
        for name, title in (("only_there", "record there"), ("only_here", "record here"), ("other_tactic", "tactic")):
            yield from _listed(title, records[name])
    yield from _listed("metadata", change["metadata"])
    yield from _listed("factor", change["factors"])


def _listed(title: str, items: JSON) -> Iterator[str]:
    many = items if isinstance(items, list) else []
    for item in many[:SHOWN]:
        yield f"  {title:<12} {item}"
    if len(many) > SHOWN:
        yield f"  {title:<12} and {len(many) - SHOWN} more"


def _file_text(file: RecordFile) -> Iterator[str]:
    said = file.metadata or {}
    facts = [f"{len(file.records)} records", f"of {file.place.owner.label()}"]
    facts += [f"{k} {said[k]}" for k in ("flashinfer_version", "cuda_version", "gpu") if k in said]
    facts.append(f"_generation {file.generation}" if file.format == "v1" else "managed store")
    yield f"  records    {file.path}: {file.damage or ', '.join(facts)}"


def _file(file: RecordFile) -> JSON:
    place = file.place
    return {
        "path": file.path,
        "format": file.format,
        "owner": place.owner.label(),
        "library": place.library,
        "arch": place.arch,
        "key_hash": place.key_hash,
        "metadata": None if file.metadata is None else dict(file.metadata),
        "generation": file.generation,
        "damage": file.damage,
        "marks": list[JSON](file.marks),
        "records": [
            {
                "op": r.parsed.op if r.parsed else None,
                "bucket": r.parsed.bucket if r.parsed else None,
                "tp_rank": r.ranks.tp_rank,
                "ep_rank": r.ranks.ep_rank,
                "runner": r.runner,
                "tactic": r.tactic,
                "key": r.key,
            }
            for r in file.records
        ],
    }


def _records(files: Sequence[RecordFile]) -> dict[tuple[str, str], JSON]:
    return {(f.path, r.key): r.tactic for f in files for r in f.records}


def _metadata(one: Sequence[RecordFile], other: Sequence[RecordFile]) -> list[JSON]:
    there = {f.path: f.metadata or {} for f in other}
    found: list[JSON] = []
    for file in one:
        if file.path in there:
            left, right = file.metadata or {}, there[file.path]
            for k in sorted(left.keys() | right.keys()):
                if left.get(k) != right.get(k):
                    found.append(f"{file.path}: {k}: {left.get(k)} → {right.get(k)}")
    return found


def _plain(value: Any) -> JSON:
    """A row, finding or unknown as JSON; None and empty members are left out."""
    out: dict[str, JSON] = {}
    for f in fields(value):
        v = getattr(value, f.name)
        if f.name == "evidence":
            v = [_evidence(e) for e in v]
        if v is not None and v != () and v != []:
            out[f.name] = list(v) if isinstance(v, tuple) else v
    return out


def _evidence(e: Evidence) -> JSON:
    return {"where": e.where, "text": e.text} if e.text else {"where": e.where}


def _cell(number: int | None) -> str:
    return "-" if number is None else str(number)


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
