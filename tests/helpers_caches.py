"""Caches and start records for the ledger's tests: made from files that FlashInfer and vLLM really wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_startup.engines import registry
from pytest_startup.observe.autotune_records import generation_of
from pytest_startup.observe.caches import Snapshot, facts_of, snapshot
from pytest_startup.record import CacheFile, CacheTree, Evidence, Fact, StartRecord

DATA = Path(__file__).parent / "data" / "caches"
#: The folders that vLLM puts between its cache root and a record file.
PLACE = "flashinfer_autotune_cache/{library}/90a/" + "6635efd4b7f89f4f" * 4
GEMM1, GEMM2 = "trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"


def place(library: str) -> str:
    return PLACE.format(library=library)


def whole(folder: str, name: str = "autotune_configs.json") -> dict[str, Any]:
    """The JSON of a record file that FlashInfer wrote."""
    data: dict[str, Any] = json.loads((DATA / folder / name).read_text())
    return data


def seal(data: dict[str, Any]) -> dict[str, Any]:
    """Give it the ``_generation`` of its content, as its writer would: a forger can do that too."""
    data.pop("_generation", None)
    data["_generation"] = generation_of(data)
    return data


def write(root: Path, library: str, files: Mapping[str, Mapping[str, Any] | bytes]) -> Path:
    """Record files in their place below a cache root."""
    folder = root / place(library)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content, indent=2).encode()
        (folder / name).write_bytes(data)
    return root


def rekeyed(data: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Rank 0's records under another rank's keys, sealed: what somebody does by hand to get 84 out of 42."""
    made: dict[str, Any] = {}
    for key, value in data.items():
        head, middle, tail = key.rpartition(", 2, 1, 0, 2, 0, 1, 0, ")
        made[f"{head}, 2, 1, 0, 2, {rank}, 1, 0, {tail}" if middle else key] = value
    return made


def shot(path: Path, kind: str = "other") -> Snapshot:
    return snapshot("cache", path, kind=kind)


def log_facts(text: str, engine: str = "vllm") -> tuple[Fact, ...]:
    """What the dialect reads in a log."""
    reader = registry.dialect(engine).reader()
    facts = list(reader.feed(text.encode() + b"\n"))
    return tuple(facts) + tuple(reader.close()[0])


def fact(name: str, value: Any, rank: str | None = None, line: int = 1, text: str = "", **detail: Any) -> Fact:
    shown = text or f"{name} {value}"
    return Fact(name, value, Evidence("log", "head/engine.log", shown, line, rank=rank), rank=rank, detail=detail)


def tuned(rank: str | None, line: int = 1, ops: Iterable[str] = (GEMM1, GEMM2), done: int = 21) -> list[Fact]:
    return [
        fact("autotune.tuned", {"kind": op, "done": done, "total": done}, rank, line + n, kind=op)
        for n, op in enumerate(ops)
    ]


def hits(rank: str | None, line: int = 1, loaded: int = 42, ops: Iterable[str] = (GEMM1, GEMM2)) -> list[Fact]:
    return [
        fact("autotune.loaded", loaded, rank, line),
        *(fact("autotune.hit", op, rank, line + 1 + n) for n, op in enumerate(ops)),
    ]


def version(text: str = "0.30.1", engine: str = "vLLM") -> Fact:
    return fact("engine.version", text, text=f"Initializing a V1 LLM engine ({engine} v{text})")


def start(
    name: str,
    facts: Sequence[Fact] = (),
    before: Snapshot | None = None,
    after: Snapshot | None = None,
    population: str = "process",
    argv: tuple[str, ...] = ("vllm", "serve"),
) -> StartRecord:
    """A start record with one watched cache; ``after`` defaults to ``before``."""
    after = after or before
    moments = [{"cache": s} for s in (before, after) if s is not None]
    return StartRecord(
        "p.yaml",
        name,
        "process",
        population,
        "2026-11-29T15:00:00Z",
        argv=argv,
        facts=(*facts, *facts_of(*moments)),
        caches_before=(before.tree,) if before else (),
        caches_after=(after.tree,) if after else (),
    )


def kinds(findings: Iterable[Any]) -> list[str]:
    return sorted({f.kind for f in findings})


def compile_case(name: str) -> StartRecord:
    """A start of real vLLM 0.31.0 on the CPU, with its compile cache before and after (inner files mostly left out)."""
    case = json.loads((DATA / "vllm-0.31.0-compile.json").read_text())[name]

    def tree(data: Mapping[str, Any] | None) -> CacheTree:
        if data is None:
            return CacheTree("compile-cache", "/cache", False)
        return CacheTree("compile-cache", "/cache", True, files=tuple(CacheFile(**f) for f in data["files"]))

    factors = [
        Fact(
            "compile.key_factors",
            f["value"],
            Evidence("cache", f"compile-cache/{f['path']}"),
            detail={"cache": "compile-cache", "path": f["path"], "sha256": f["sha256"]},
        )
        for f in case["after"]["factors"]
    ]
    return StartRecord(
        "p.yaml",
        "reference" if name.endswith("cold") else "restart-1",
        "process",
        "process",
        "2026-11-29T15:00:00Z",
        argv=("vllm", "serve", "/models/dense", *(("--tensor-parallel-size", "2") if "tp2" in name else ())),
        facts=(*log_facts("\n".join(case["log"])), *factors),
        caches_before=(tree(case["before"]),),
        caches_after=(tree(case["after"]),),
    )
