"""What changed between two starts of one profile: caches that moved, hashes that changed, files edited meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_startup.ledger.model import LedgerFinding
from pytest_startup.observe.autotune_records import is_record_file, store_of
from pytest_startup.observe.cache_diff import diff
from pytest_startup.observe.compile_layout import RANK_TIERS, classify, factor_diff, hash_of
from pytest_startup.record import CacheTree, Evidence, Fact, StartRecord

#: Facts that name a cache's place in the log.
_PLACES = ("compile.cache_dir", "compile.cache_loaded", "compile.cache_written", "autotune.loaded", "autotune.saved")
QUOTED = 4
DIRECTLY_AFTER = ("reference", "restart-1")


def moves(record: StartRecord, reference: StartRecord | None, warm: bool) -> Iterator[LedgerFinding]:
    """Findings against the start before; none where there is none, or where a cache was wiped on purpose."""
    if reference is None or not warm:
        return
    yield from _hash_changed(record, reference)
    yield from _path_moved(record, reference)
    if (reference.name, record.name) == DIRECTLY_AFTER:
        yield from _changed_between(record, reference)


def places(record: StartRecord) -> dict[tuple[str, str], dict[str, Fact]]:
    """(tier, kind of hash) → hash → first line that names it."""
    found: dict[tuple[str, str], dict[str, Fact]] = {}
    for fact in record.named(*_PLACES):
        text = f"{fact.detail.get('path', '')} {fact.value} {fact.evidence.text}"
        for word in text.split():
            key = hash_of(word.rstrip(".,;:'\")"))
            if key:
                tier = "autotune" if fact.name.startswith("autotune") else "aot" if len(key) == 64 else "compile"
                found.setdefault((tier, str(len(key))), {}).setdefault(key, fact)
    return found


def _hash_changed(record: StartRecord, reference: StartRecord) -> Iterator[LedgerFinding]:
    old = places(reference)
    for (tier, digits), now in places(record).items():
        known = old.get((tier, digits), {})
        for key, fact in now.items():
            if not known or key in known:
                continue
            why = factors(reference, record)
            yield LedgerFinding(
                "key-hash-changed",
                tier,
                f"key hash changed: this start used {key[:10]}…, {reference.name} {next(iter(known))[:10]}…",
                f"the hash directory of {reference.name}",
                tuple(why[:QUOTED]) or ("no cache_key_factors.json of both starts tells why",),
                fact.rank,
                (fact.evidence, next(iter(known.values())).evidence),
                ("what lies in the old directory is never hit again, and the folder only grows",),
            )


def factors(reference: StartRecord, record: StartRecord) -> list[str]:
    """The key factors that differ between two starts; empty when they are equal or not both known."""
    old = {_module(f): f.value for f in reference.named("compile.key_factors")}
    new = {_module(f): f for f in record.named("compile.key_factors")}
    found: list[str] = []
    for where, fact in new.items():
        before = old.get(where)
        if isinstance(before, Mapping) and isinstance(fact.value, Mapping):
            found += [d for d in factor_diff(before, fact.value) if d not in found]
    return found


def _module(fact: Fact) -> tuple[str, int | None, str | None]:
    at = classify(str(fact.detail.get("path")))
    return at.tier, at.rank, at.module


def _path_moved(record: StartRecord, reference: StartRecord) -> Iterator[LedgerFinding]:
    old = {t.name: t for t in reference.caches_after}
    for tree in record.caches_before:
        before = old.get(tree.name)
        if before is None or before.node != tree.node:
            continue
        moved = before.path != tree.path and diff(before, tree)
        if moved or (before.files and not tree.files):
            state = "is not there" if not tree.exists else f"holds {len(tree.files)} files"
            yield LedgerFinding(
                "path-moved",
                _main_tier(before),
                f"cache {tree.name} was at {before.path} with {len(before.files)} files; {tree.path} {state}",
                "the folder of the start before, with its files",
                (f"{tree.path} {state}",),
                None,
                (Evidence("cache", tree.name, f"{before.path} → {tree.path}", node=tree.node),),
                ("a volume that is not mounted, or another cache root, gives a cold start",),
            )


def _main_tier(tree: CacheTree) -> str:
    return "autotune" if any(is_record_file(f.path) for f in tree.files) else "aot"


def _changed_between(record: StartRecord, reference: StartRecord) -> Iterator[LedgerFinding]:
    """Files that neither start wrote: changed, gone or added while no engine ran."""
    old = {(t.name, t.node): t for t in reference.caches_after}
    for tree in record.caches_before:
        before = old.get((tree.name, tree.node))
        if before is None or not tree.files:
            continue
        change = diff(before, tree)
        tiers: dict[str, list[str]] = {}
        for verb, paths in (("changed", change.changed), ("gone", change.gone), ("new", change.new)):
            for path in paths:
                tier = _tier(path)
                if tier is not None:
                    tiers.setdefault(tier, []).append(f"{verb}: {path}")
        for tier, texts in tiers.items():
            yield _meddled(tree, reference, record, tier, texts)


def _tier(path: str) -> str | None:
    if is_record_file(path) or store_of(path):
        return "autotune"
    at = classify(path)
    return at.tier if at.kept and at.tier in RANK_TIERS else None


def _meddled(
    tree: CacheTree, reference: StartRecord, record: StartRecord, tier: str, texts: Sequence[str]
) -> LedgerFinding:
    return LedgerFinding(
        "changed-between-starts",
        tier,
        f"{len(texts)} files of cache {tree.name} are not as {reference.name} left them",
        f"the files as they were at the end of {reference.name}",
        tuple(texts[:QUOTED]),
        None,
        tuple(Evidence("cache", f"{tree.name}/{t.partition(': ')[2]}", t, node=tree.node) for t in texts[:QUOTED]),
        (f"something else wrote there before {record.name} began",),
    )
