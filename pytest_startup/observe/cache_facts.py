"""Facts of a cache's readable files: parsed tuning records and compile-key factors, compact enough for a record.

A fact is kept once per content: the ledger joins it to a tree by path and hash, so a saved record can be judged again
without the cache. Names, all of source ``cache``:

| fact | value | detail |
|---|---|---|
| ``autotune.records`` | what ``pack`` gives of one file, or of one v2 store | ``cache``, ``path``, ``sha256`` |
| ``compile.key_factors`` | ``{part: hash or {factor: text}}`` of ``cache_key_factors.json`` | the same |
| ``cache.unreadable`` | path | ``cache``, ``reason`` |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pytest_startup.observe import compile_layout
from pytest_startup.observe.autotune_records import (
    RecordFile,
    TuningRecord,
    holds_records,
    is_record_file,
    parse_store,
    parse_v1,
    store_of,
)
from pytest_startup.record import JSON, CacheFile, CacheTree, Evidence, Fact


def wanted(path: str, kind: str = "other") -> bool:
    """Must the content of this file be kept, to be parsed?"""
    return is_record_file(path, kind) or compile_layout.is_key_factors(path)


def content_facts(tree: CacheTree, contents: Mapping[str, bytes], kind: str = "other") -> tuple[Fact, ...]:
    """Facts of the kept files of one tree, in the order of their paths."""
    files = tree.by_path()
    stores: dict[str, dict[str, bytes]] = {}
    facts: list[Fact] = []
    for path in sorted(contents):
        store = store_of(path)
        if store:
            stores.setdefault(store, {})[path] = contents[path]
        elif compile_layout.is_key_factors(path):
            factors = compile_layout.parse_key_factors(contents[path])
            facts.append(_fact(tree, "compile.key_factors", factors, path, files[path].sha256))
        elif is_record_file(path, kind) and holds_records(file := parse_v1(path, contents[path])):
            facts.append(_fact(tree, "autotune.records", pack(file), path, files[path].sha256))
    for store, inside in sorted(stores.items()):
        digest = store_digest([files[p] for p in inside])
        facts.append(_fact(tree, "autotune.records", pack(parse_store(store, inside)), store, digest))
    return tuple(facts)


def store_digest(files: list[CacheFile]) -> str:
    """One hash for the files of a v2 store."""
    text = "".join(f"{f.path}\0{f.sha256}\n" for f in sorted(files, key=lambda f: f.path))
    return hashlib.sha256(text.encode()).hexdigest()


def record_files(facts: list[Fact], tree: CacheTree) -> list[RecordFile]:
    """The record files of one tree, from the facts of its start record: joined by cache, node, path and hash."""
    files = tree.by_path()
    found: dict[str, RecordFile] = {}
    for fact in facts:
        path, digest = str(fact.detail.get("path")), fact.detail.get("sha256")
        if fact.name != "autotune.records" or fact.detail.get("cache") != tree.name or fact.node != tree.node:
            continue
        inside = [f for f in tree.files if store_of(f.path) == path] if path not in files else []
        current = store_digest(inside) if inside else (files[path].sha256 if path in files else None)
        if current is not None and current == digest and isinstance(fact.value, dict):
            found[path] = unpack(path, fact.value)
    return [found[path] for path in sorted(found)]


def pack(file: RecordFile) -> dict[str, JSON]:
    """The compact, lossless form: records that differ in the token bucket only share one template.

    ``groups``: ``[[text before the bucket, text behind it, runner, rest, {bucket: tactic}], …]``.
    """
    groups: dict[tuple[str, str, str, str], tuple[list[JSON], dict[str, JSON]]] = {}
    for record in file.records:
        before, bucket, behind = _split(record.key)
        shape = (before, behind, record.runner, repr(record.rest))
        _, tactics = groups.setdefault(shape, ([before, behind, record.runner, list(record.rest)], {}))
        tactics[bucket] = record.tactic
    out: dict[str, JSON] = {"format": file.format, "generation": file.generation, "records": len(file.records)}
    if file.metadata is not None:
        out["metadata"] = dict(file.metadata)
    if file.damage:
        out["damage"] = file.damage
    if file.marks:
        out["marks"] = list(file.marks)
    if file.namespaces:
        out["namespaces"] = dict(file.namespaces)
    out["groups"] = [[*head, tactics] for head, tactics in groups.values()]
    return out


def unpack(path: str, value: Mapping[str, JSON]) -> RecordFile:
    """Inverse of ``pack``; records come back sorted by key. Raises KeyError, TypeError, ValueError for other values."""
    records: list[TuningRecord] = []
    groups = value["groups"]
    if not isinstance(groups, list):
        raise TypeError("groups is not a list")
    for group in groups:
        if not isinstance(group, list):
            raise TypeError("a group is not a list")
        before, behind, runner, rest, tactics = group
        if not isinstance(rest, list) or not isinstance(tactics, dict):
            raise TypeError("a group is not [text, text, runner, list, object]")
        for bucket, tactic in tactics.items():
            records.append(TuningRecord(f"{before}{bucket}{behind}", str(runner), tactic, tuple(rest)))
    metadata, marks, spaces = value.get("metadata"), value.get("marks"), value.get("namespaces")
    damage = value.get("damage")
    return RecordFile(
        path,
        str(value["format"]),
        metadata={k: str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else None,
        records=tuple(sorted(records, key=lambda r: r.key)),
        generation=str(value["generation"]),
        damage=None if damage is None else str(damage),
        marks=tuple(str(m) for m in marks) if isinstance(marks, list) else (),
        namespaces={k: int(str(v)) for k, v in spaces.items()} if isinstance(spaces, dict) else {},
    )


def _split(key: str) -> tuple[str, str, str]:
    """The key text around its token bucket (the first number of the profile); all of it where there is none."""
    at = key.find("((")
    end = at + 2
    while at >= 0 and end < len(key) and key[end].isdigit():
        end += 1
    return (key[: at + 2], key[at + 2 : end], key[end:]) if at >= 0 and end > at + 2 else (key, "", "")


def _fact(tree: CacheTree, name: str, value: JSON, path: str, digest: str | None) -> Fact:
    return Fact(
        name=name,
        value=value,
        evidence=Evidence("cache", f"{tree.name}/{path}", node=tree.node),
        node=tree.node,
        detail={"cache": tree.name, "path": path, "sha256": digest},
    )
