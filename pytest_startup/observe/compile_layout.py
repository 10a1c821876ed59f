"""What a file of a compile cache is: tier, key hash, rank, module; and why two key hashes differ.

Layouts (vLLM 0.8 to 0.32; the watched folder may be any of the parents)::

    torch_compile_cache/<10 hex>/rank_<rank>_<dp>/<backbone | eagle_head | encoder…>/artifact_compile_range_…
    torch_compile_cache/torch_aot_compile/<64 hex>/rank_<rank>_<dp>/model
    torch_compile_cache/torch_aot_compile/<64 hex>/inductor_cache/…
    cached_ops/<name>/<name>.so          FlashInfer JIT        <52 base32>/<kernel>.cubin   Triton
    cache/kernel.<name>.<hash>/…         DeepGEMM

The rank in a folder name counts inside one data-parallel engine. Nothing is unpickled or executed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from pytest_startup.record import JSON
from pytest_startup.redact import may_name_secret

#: What a file is part of. ``aot`` and ``compile`` are per rank; the others are shared by all ranks of a node.
TIERS = ("autotune", "aot", "compile", "inductor", "triton", "deep-gemm", "jit", "plan", "other")
RANK_TIERS = ("aot", "compile")

KEY_FACTORS = "cache_key_factors.json"
_AOT = re.compile(r"(?:^|/)(?P<key>[0-9a-f]{64})/rank_(?P<rank>\d+)_(?P<dp>\d+)/(?P<rest>.+)")
_COMPILE = re.compile(r"(?:^|/)(?P<key>[0-9a-f]{10})/rank_(?P<rank>\d+)_(?P<dp>\d+)/(?P<module>[^/]+)/(?P<rest>.+)")
_LOOSE_RANK = re.compile(r"(?:^|/)rank_(?P<rank>\d+)_(?P<dp>\d+)/(?:(?P<module>[^/]+)/)?[^/]+$")
_SHARED = (
    ("triton", re.compile(r"(?:^|/)[A-Z2-7]{52}/[^/]+$|(?:^|/)triton(?:_cache)?/")),
    ("inductor", re.compile(r"(?:^|/)(?:inductor_cache|torchinductor[^/]*|aotautograd|fxgraph)/")),
    ("deep-gemm", re.compile(r"(?:^|/)deep_gemm/|(?:^|/)kernel\.[\w.-]+\.[0-9a-f]{16,}/")),
    ("jit", re.compile(r"(?:^|/)(?:cached_ops|generated)/|(?:^|/)flashinfer_jit\.log$|(?:^|/)flashinfer/\d")),
    ("plan", re.compile(r"(?:^|/)startup_plan_[0-9a-f]+\.json$|(?:^|/)modelinfos/")),
)
_KIND_TIER = {"autotune": "autotune", "compile": "compile", "triton": "triton", "inductor": "inductor", "jit": "jit"}
_NO_ARTIFACT = re.compile(r"\.lock$|(?:^|/)locks/|\.log$|/\.ninja_(?:log|deps)$|\.tmp$|(?:^|/)tmp/|(?:^|/)\.[^/]*\.tmp")


@dataclass(frozen=True)
class Artifact:
    """One file's place. ``key``: hash directory. ``rank``/``dp`` None: shared. ``module``: backbone, eagle_head …

    ``kept`` False: a lock, log or temporary file, which is written on every start and proves nothing.
    """

    path: str
    tier: str
    key: str | None = None
    rank: int | None = None
    dp: int | None = None
    module: str | None = None
    kept: bool = True

    def slot(self) -> str:
        """The path without hash, rank and inner names: what must exist once per rank (``backbone``, ``model``)."""
        name = PurePosixPath(self.path).name
        return f"{self.module}/{name}" if self.module else name


@lru_cache(maxsize=1 << 17)
def classify(path: str, kind: str = "other") -> Artifact:
    """Classify a path relative to its cache; ``kind`` is that of the cache, used where the path says nothing."""
    kept = not _NO_ARTIFACT.search(path)
    if match := _AOT.search(path):
        return Artifact(path, "aot", match["key"], int(match["rank"]), int(match["dp"]), None, kept)
    if match := _COMPILE.search(path):
        return Artifact(path, "compile", match["key"], int(match["rank"]), int(match["dp"]), match["module"], kept)
    for tier, pattern in _SHARED:
        if pattern.search(path):
            key = re.search(r"(?:^|/)([0-9a-f]{64})/", path)
            return Artifact(path, tier, key[1] if key else None, kept=kept)
    if match := _LOOSE_RANK.search(path):
        tier = "aot" if path.endswith("/model") else "compile"
        return Artifact(path, tier, None, int(match["rank"]), int(match["dp"]), match["module"], kept)
    return Artifact(path, _KIND_TIER.get(kind, "other"), kept=kept)


def loaded_place(text: str) -> Artifact | None:
    """The artifact that a log line names (``… from path <root>/<64 hex>/rank_1_0/model``); None if it names none."""
    for word in text.replace(",", " ").split():
        place = classify(word.strip("'\"`"))
        if place.rank is not None:
            return place
    return None


def hash_of(text: str) -> str | None:
    """The last key hash (10 or 64 hex digits) in a path: what must not move between two starts."""
    found = re.findall(r"(?:^|/)([0-9a-f]{64}|[0-9a-f]{10})(?=/|$)", text.strip())
    return found[-1] if found else None


def is_key_factors(path: str) -> bool:
    """Is this the file in which vLLM says what a key hash was made of?"""
    return path.rpartition("/")[2] == KEY_FACTORS


def parse_key_factors(data: bytes) -> JSON:
    """``{code_hash, compiler_hash, config_hash, env: {name: value}}``; values of secret-looking names are hashed.

    A damaged file gives ``{"damage": why}``.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return {"damage": "empty" if not data.strip() else "not JSON"}
    if not isinstance(value, dict):
        return {"damage": "not a JSON object"}
    return {str(part): _masked(str(part), inside) for part, inside in value.items()}


def factor_diff(one: Mapping[str, JSON], other: Mapping[str, JSON], at: str = "") -> list[str]:
    """The factors that differ, one text each: ``env.VLLM_X: 'a' → 'b'``; equal factors give an empty list."""
    found: list[str] = []
    for name in sorted(one.keys() | other.keys()):
        left, right = one.get(name, "(absent)"), other.get(name, "(absent)")
        where = f"{at}.{name}" if at else name
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += factor_diff(left, right, where)
        elif left != right:
            found.append(f"{where}: {_short(left)} → {_short(right)}")
    return found


def _masked(name: str, value: JSON) -> JSON:
    if isinstance(value, dict):
        return {k: _masked(k, v) for k, v in value.items()}
    if value not in (None, "", False, True) and may_name_secret(name) and not name.endswith("_hash"):
        return "sha256:" + hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
    return value


def _short(value: JSON) -> str:
    text = value if isinstance(value, str) and value.startswith("(") else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"
