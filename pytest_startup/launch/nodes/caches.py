"""Snapshots of cache folders on a node: read there, sent here as JSON, and back, so that only changes are hashed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pytest_startup.observe.caches import Snapshot, snapshot
from pytest_startup.record import CacheFile, CacheTree
from pytest_startup.record_json import fact_from_json, fact_to_json


def look(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """On the node: a snapshot of each of ``caches`` (name, path, kind, ``before`` or None), in order."""
    out = []
    for one in asked["caches"]:
        before = None if one["before"] is None else from_json(one["before"])
        shot = snapshot(one["name"], one["path"], kind=one["kind"], node=asked["node"], before=before)
        out.append(to_json(shot))
    return out


def to_json(shot: Snapshot) -> dict[str, Any]:
    return {
        "tree": asdict(shot.tree),
        "facts": [fact_to_json(fact) for fact in shot.facts],
        "stamps": {path: list(stamp) for path, stamp in shot.stamps.items()},
        "contents": {path: base64.b64encode(data).decode() for path, data in shot.contents.items()},
        "hashed": shot.hashed,
    }


def from_json(data: Mapping[str, Any]) -> Snapshot:
    tree = {**data["tree"], "files": tuple(CacheFile(**file) for file in data["tree"]["files"])}
    return Snapshot(
        CacheTree(**tree),
        tuple(fact_from_json(fact) for fact in data["facts"]),
        {path: (int(s[0]), int(s[1]), int(s[2]), int(s[3])) for path, s in data["stamps"].items()},
        {path: base64.b64decode(text) for path, text in data["contents"].items()},
        int(data["hashed"]),
    )
