"""Builders of profiles, facts and start records for tests of checks: only what a case is about is written down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_startup.checks.base import Outcome, Verdict
from pytest_startup.profile.expect import Expect
from pytest_startup.profile.model import CacheFolder, Engine, Launch, ProcessLaunch, Profile, Restart
from pytest_startup.record import JSON, CacheFile, CacheTree, Completion, Evidence, Fact, StartRecord, ThroughputSample

PASSED, FAILED = Outcome.PASSED, Outcome.FAILED
NOT_EXERCISED, NOT_OBSERVABLE = Outcome.NOT_EXERCISED, Outcome.NOT_OBSERVABLE

COMPILE = CacheFolder("compile-cache", Path("/cache/compile"), "compile")
TUNED = CacheFolder("tuned", Path("/cache/tuned"), "autotune")


def profile(**fields: Any) -> Profile:
    """A profile of a local vLLM with one ``process`` restart; ``expect`` may be given as a mapping of its members."""
    expect = fields.pop("expect", Expect())
    given: dict[str, Any] = {
        "path": Path("/nowhere/p.yaml"),
        "name": "p",
        "engine": Engine("vllm", "org/model"),
        "launch": Launch(process=ProcessLaunch(("vllm", "serve"), Path("/nowhere"))),
        "restarts": (Restart("restart-1", "process"),),
        "caches": (COMPILE, TUNED),
        "expect": Expect(**expect) if isinstance(expect, Mapping) else expect,
    }
    return Profile(**{**given, **fields})


def fact(
    name: str,
    value: JSON,
    rank: str | None = None,
    *,
    source: str = "log",
    line: int | None = None,
    text: str = "",
    node: str | None = None,
    engine: str | None = None,
    unit: str | None = None,
    **detail: JSON,
) -> Fact:
    where = {"log": "head/engine.log", "endpoint": "GET /metrics"}.get(source, source)
    evidence = Evidence(source, where, text or f"{name} {value}", line, node, rank)
    return Fact(name, value, evidence, unit, rank, node, engine, 0, detail)


def record(*facts: Fact, name: str = "restart-1", **fields: Any) -> StartRecord:
    given: dict[str, Any] = {
        "profile": "p",
        "name": name,
        "kind": "reference" if name == "reference" else "process",
        "population": "reference" if name == "reference" else "process",
        "started_at": "2026-11-29T12:00:00Z",
        "ready": True,
    }
    return StartRecord(**{**given, **fields}, facts=facts)


def reference(*facts: Fact, **fields: Any) -> StartRecord:
    return record(*facts, name="reference", **fields)


def answer(text: str = "The capital of France is Paris.", **fields: Any) -> Completion:
    """A sane completion of the default prompt."""
    given: dict[str, Any] = {
        "purpose": "ready",
        "prompt": "The capital of France is",
        "status": 200,
        "finish_reason": "length",
        "model": "org/model",
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "asked_tokens": 8,
    }
    return Completion(**{**given, **fields}, text=text)


def batches(*rates: float, concurrency: int = 8, failed: int = 0) -> tuple[ThroughputSample, ...]:
    """Batches of 1000 tokens at these rates (tokens per second)."""
    return tuple(
        ThroughputSample(concurrency, n, concurrency, failed, 1000, 1000 / rate) for n, rate in enumerate(rates)
    )


def tree(files: Mapping[str, str | int], name: str = "compile-cache", mtime_ns: int = 1) -> CacheTree:
    """A cache folder: path → content (hashed and measured), or a size without hash."""
    import hashlib

    def one(path: str, what: str | int) -> CacheFile:
        if isinstance(what, int):
            return CacheFile(path, what, mtime_ns)
        return CacheFile(path, len(what), mtime_ns, hashlib.sha256(what.encode()).hexdigest())

    return CacheTree(name, f"/cache/{name}", True, files=tuple(one(p, w) for p, w in files.items()))


def text_of(verdict: Verdict) -> str:
    """All that a verdict says, one text per line, as a reader would see it."""
    out = []
    for f in verdict.findings:
        out += [f.summary, f"expected {f.expected}", *f.observed, *f.helps, *(e.text for e in f.evidence)]
        out.append(f"from {f.expected_from}")
    return "\n".join(out)


def says(verdict: Verdict, outcome: Outcome, *words: str) -> None:
    """The verdict is ``outcome`` and its texts hold all ``words``; one that is not green has a reason to print."""
    text = text_of(verdict)
    assert verdict.outcome is outcome, f"{verdict.outcome.value}, not {outcome.value}:\n{text}"
    for word in words:
        assert word in text, f"{word!r} is not in:\n{text}"
    if outcome is PASSED:
        assert verdict.evidence
    else:
        assert all(f.summary and f.expected and f.observed for f in verdict.findings)
