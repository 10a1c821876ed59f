"""The artifact tiers of the ledger: per rank what was compiled before, loaded, compiled again and newly written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_startup.ledger.log import worker_of
from pytest_startup.ledger.model import LedgerFinding, Part, Row, Unknown
from pytest_startup.observe.autotune_records import is_record_file
from pytest_startup.observe.cache_diff import diff
from pytest_startup.observe.compile_layout import RANK_TIERS, TIERS, Artifact, classify, loaded_place
from pytest_startup.profile.expect import ExpectArtifacts
from pytest_startup.ranks import Worker, called, of_folder
from pytest_startup.record import CacheFile, CacheTree, Evidence, Fact, StartRecord

#: Tiers whose artifacts all ranks of a node share: one row each, for rank ``all``.
SHARED_TIERS = tuple(t for t in TIERS if t not in (*RANK_TIERS, "autotune", "other"))
ALL = "all"
QUOTED = 4


@dataclass(frozen=True)
class Placed:
    """One artifact file of a tree, with what its path says."""

    tree: CacheTree
    file: CacheFile
    at: Artifact

    def evidence(self, text: str = "") -> Evidence:
        return Evidence("cache", f"{self.tree.name}/{self.file.path}", text, node=self.tree.node)


@dataclass(frozen=True)
class Loads:
    """What the log says of artifacts: loads and writes per (tier, worker name), refusals per worker name."""

    loaded: dict[tuple[str, str], list[Fact]]
    written: dict[tuple[str, str], list[Fact]]
    refused: dict[str, list[Fact]]


#: New or changed artifacts with their trees.
Written = list[tuple[CacheTree, Artifact]]


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
    written = _written_paths(record)
    rows = [_rank_row(w, t, team, ranked, written, loads) for t in RANK_TIERS for w in team]
    rows = [r for r in rows if r.found or r.written or r.loaded or r.refused]
    there = {p.at.tier for many in (before, after) for p in many}
    rows += [_shared_row(t, before, written, loads) for t in SHARED_TIERS if t in there]
    findings = [*_damaged(ranked), *_uneven(team, ranked), *_copied(team, ranked), *_refused(loads, expect)]
    if warm:
        findings += _not_loaded(team, ranked, loads)
        findings += _recompiled(loads, expect)
        findings += _written(record, written or [], expect)
    used = {t: bool(_facts(loads, t)) for t in (*RANK_TIERS, *SHARED_TIERS)}
    exercised = {t: said for t, said in used.items() if said or t in there}
    return Part(tuple(rows), tuple(findings), tuple(_unknowns(record, team, before, loads)), exercised)


def placed(trees: Iterable[CacheTree]) -> list[Placed]:
    """All artifact files of these trees; locks, logs and temporary files are left out."""
    found = []
    for tree in trees:
        for file in tree.files:
            at = classify(file.path)
            if at.kept and at.tier != "autotune" and not is_record_file(file.path):
                found.append(Placed(tree, file, at))
    return found


def read_loads(record: StartRecord, team: Sequence[Worker]) -> Loads:
    """Give the artifact lines of a record to workers: by the ``rank_<r>_<d>`` folder they name, else by who printed."""
    loads = Loads({}, {}, {})
    for fact in record.named("compile.cache_loaded", "compile.cache_written", "artifact.missing"):
        place = loaded_place(f"{fact.detail.get('path', '')} {fact.value} {fact.evidence.text}")
        worker = of_folder(team, place.rank or 0, place.dp or 0) if place and place.rank is not None else None
        worker = worker or worker_of(fact, team)
        name = worker.name if worker else ALL
        tier = place.tier if place else "aot" if "AOT" in fact.evidence.text else "compile"
        if fact.name == "artifact.missing":
            if place or "ompil" in fact.evidence.text or "artifact" in fact.evidence.text.lower():
                loads.refused.setdefault(name, []).append(fact)
        else:
            into = loads.loaded if fact.name == "compile.cache_loaded" else loads.written
            into.setdefault((tier, name), []).append(fact)
    return loads


def _written_paths(record: StartRecord) -> Written | None:
    """Artifacts that are new or changed after this start; None: no tree of both moments."""
    old = {(t.name, t.node): t for t in record.caches_before}
    pairs = [(t, old[t.name, t.node]) for t in record.caches_after if (t.name, t.node) in old]
    if not pairs:
        return None
    found: Written = []
    for tree, before in pairs:
        change = diff(before, tree)
        for path in (*change.new, *change.changed):
            at = classify(path)
            if at.kept and at.tier != "autotune" and not is_record_file(path):
                found.append((tree, at))
    return found


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


def _damaged(before: Sequence[Placed]) -> Iterator[LedgerFinding]:
    """An empty artifact: the loader refuses it. Everything else inside is opaque, and is never opened."""
    for item in before:
        if item.at.tier in RANK_TIERS and item.file.size == 0:
            yield LedgerFinding(
                "artifact-damaged",
                item.at.tier,
                f"{item.file.path} is empty",
                "a compiled artifact",
                ("0 bytes",),
                _folder(item.at),
                (item.evidence("0 bytes"),),
                ("delete it: this rank compiles it again on the next start",),
            )


def _folder(at: Artifact) -> str:
    return f"rank_{at.rank}_{at.dp}"


def _uneven(team: Sequence[Worker], before: Sequence[Placed]) -> Iterator[LedgerFinding]:
    """Inside one hash folder every rank has the same artifacts."""
    folders: dict[tuple[str, str | None, str, str | None], dict[Worker, set[str]]] = {}
    for item in before:
        worker = of_folder(team, item.at.rank, item.at.dp or 0) if item.at.rank is not None else None
        if worker is not None and item.at.tier in RANK_TIERS:
            place = (item.tree.name, item.tree.node if len(team) > 1 else None, item.at.tier, item.at.key)
            folders.setdefault(place, {}).setdefault(worker, set()).add(item.at.slot())
    for (cache, node, tier, key), ranks in folders.items():
        every = set().union(*ranks.values())
        for worker in team:
            if node is not None and worker.node not in (None, node):
                continue
            lacking = sorted(every - ranks.get(worker, set()))
            if lacking:
                yield LedgerFinding(
                    "artifact-missing",
                    tier,
                    f"{called(worker.name)} lacks {lacking[0]}"
                    + (f" and {len(lacking) - 1} more" if lacking[1:] else ""),
                    "the same artifacts for every rank",
                    tuple(f"{w.name}: {len(s)} artifacts" for w, s in ranks.items()),
                    worker.name,
                    (Evidence("cache", f"{cache}/{key}", f"without {', '.join(lacking[:QUOTED])}", node=node),),
                    ("a missing artifact prints no warning: this rank compiles again while the others load",),
                )


def _copied(team: Sequence[Worker], before: Sequence[Placed]) -> Iterator[LedgerFinding]:
    """Equal AOT models of two tensor-parallel ranks: each holds its own rank's code, so one is a copy."""
    seen: dict[tuple[str | None, str | None], Placed] = {}
    tp_size = len({w.at.tp for w in team})
    for item in before:
        if item.at.tier != "aot" or item.file.size == 0 or tp_size < 2 or item.file.sha256 is None:
            continue
        first = seen.setdefault((item.at.key, item.file.sha256), item)
        if first.at.rank != item.at.rank and first.at.slot() == item.at.slot():
            yield LedgerFinding(
                "artifact-copied",
                "aot",
                f"the artifact of {_folder(item.at)} is a copy of {_folder(first.at)}'s",
                "an artifact that this rank compiled",
                (f"both sha256 {item.file.sha256[:16]}…",),
                _folder(item.at),
                (first.evidence(f"sha256 {item.file.sha256}"), item.evidence(f"sha256 {item.file.sha256}")),
                ("code of another rank may load and compute for the wrong shard: delete it",),
            )


def _refused(loads: Loads, expect: ExpectArtifacts) -> Iterator[LedgerFinding]:
    if expect.missing == "any":
        return
    for name, facts in loads.refused.items():
        yield LedgerFinding(
            "artifact-refused",
            "aot",
            f"{'an artifact' if name == ALL else f'an artifact of {called(name)}'} was missing or refused",
            "every artifact found and accepted",
            tuple(f.evidence.text[:200] for f in facts[:QUOTED]),
            None if name == ALL else name,
            tuple(f.evidence for f in facts[:QUOTED]),
            ("wipe this compile cache once and prime it again",),
        )


def _not_loaded(team: Sequence[Worker], before: Sequence[Placed], loads: Loads) -> Iterator[LedgerFinding]:
    """The AOT load line is the one that every rank prints: a rank without it compiled again, silently."""
    loading = {name for tier, name in loads.loaded if tier == "aot"} - {ALL}
    models = [p for p in before if p.at.tier == "aot"]
    if not models and not loading:
        return
    for worker in team:
        if worker.name in loading or (len(team) == 1 and ("aot", ALL) in loads.loaded):
            continue
        others = [f for (t, n), facts in loads.loaded.items() if t == "aot" for f in facts]
        yield LedgerFinding(
            "not-loaded",
            "aot",
            f"{called(worker.name)} loaded no compiled artifact",
            "an AOT artifact loaded on every rank",
            tuple(f"{w.name}: {'loaded' if w.name in loading else 'no load line'}" for w in team),
            worker.name,
            tuple(f.evidence for f in others[:2]) or tuple(p.evidence() for p in models[:2]),
            ("a deleted artifact prints no warning; only the missing load line tells",),
        )


def _recompiled(loads: Loads, expect: ExpectArtifacts) -> Iterator[LedgerFinding]:
    if expect.recompiled == "any" or not loads.written:
        return
    for (tier, name), facts in loads.written.items():
        yield LedgerFinding(
            "recompiled",
            tier,
            f"{'the engine' if name == ALL else f'{called(name)}'} compiled again on a warm start",
            "nothing compiled",
            tuple(f.evidence.text[:200] for f in facts[:QUOTED]),
            None if name == ALL else name,
            tuple(f.evidence for f in facts[:QUOTED]),
        )


#: What Triton measured for a kernel, kept by inductor: no compiled code. vLLM 0.26.0 writes some on the first warm
#: start, into the inductor cache of the AOT artifact (on the cold start that cache lay elsewhere), and none later.
_CHOICE = ".best_config"


def _written(record: StartRecord, paths: Written, expect: ExpectArtifacts) -> Iterator[LedgerFinding]:
    if expect.writes == "any":
        return
    tiers: dict[str, list[tuple[CacheTree, Artifact]]] = {}
    for tree, at in paths:
        if at.tier != "other" and not at.path.endswith(_CHOICE):
            tiers.setdefault(at.tier, []).append((tree, at))
    for tier, written in tiers.items():
        ranks = sorted({_folder(at) for _, at in written if at.rank is not None})
        yield LedgerFinding(
            "written-when-warm",
            tier,
            f"{record.name} wrote {len(written)} files of tier {tier} into a warm cache" + _list(ranks),
            "nothing newly written",
            tuple(at.path for _, at in written[:QUOTED]),
            None,
            tuple(
                Evidence("cache", f"{t.name}/{at.path}", "new or changed", node=t.node) for t, at in written[:QUOTED]
            ),
        )


def _list(ranks: Sequence[str]) -> str:
    return f" ({', '.join(ranks)})" if ranks else ""


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
