"""Recorded starts of a real engine on H200 (``tests/data/h200``) as records, read by the dialect as live ones are."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from pytest_startup.engines.base import LogSummary
from pytest_startup.engines.registry import dialect
from pytest_startup.observe.cache_facts import content_facts
from pytest_startup.profile.expect import Expect
from pytest_startup.profile.model import CacheFolder, Engine, Launch, ProcessLaunch, Profile, Restart
from pytest_startup.record import CacheFile, CacheTree, Completion, Fact, StartRecord, ThroughputSample

DATA = Path(__file__).parent / "data" / "h200"
#: The watched caches of those starts: folder in ``cache.tsv`` → kind.
CACHES = {"vllm": "compile", "fi": "jit", "triton": "triton"}


def profile_of(model: str, expect: Expect | None = None, restarts: int = 3, **fields: Any) -> Profile:
    """The profile under which a family of these starts was made: ``dense`` or ``moe``."""
    return Profile(
        path=Path("/nowhere/h200.yaml"),
        name="h200",
        engine=Engine("vllm", f"/srv/models/{model}", version="0.26.0", served_name=model),
        launch=Launch(process=ProcessLaunch(("vllm",), Path("/nowhere"))),
        caches=tuple(CacheFolder(name, Path("/srv/cache", name), kind) for name, kind in CACHES.items()),
        restarts=tuple(Restart(f"restart-{n}", "process") for n in range(1, restarts + 1)),
        expect=expect or Expect(),
        **fields,
    )


@cache
def start(folder: str, name: str = "restart-1") -> StartRecord:
    """One recorded start, as the start ``name`` of a run."""
    here = DATA / folder
    result = json.loads((here / "result.json").read_text())
    before, after = trees(here)
    answer = _answer(here, result)
    facts, summary = read_log(here)
    return StartRecord(
        profile="h200",
        name=name,
        kind="reference" if name == "reference" else "process",
        population="reference" if name == "reference" else "process",
        started_at="2026-11-29T15:00:00Z",
        argv=tuple(result["argv"]),
        ready="first_completion_s" in result,
        health_seconds=result.get("health_s"),
        ready_seconds=result.get("first_completion_s"),
        facts=(*facts, *endpoint_facts(here), *record_facts(here, (*before, *after))),
        phases=summary.phases,
        failure=summary.failure,
        completions=(answer,) if answer else (),
        throughput=_batches(result),
        caches_before=before,
        caches_after=after,
    )


def read_log(here: Path) -> tuple[list[Fact], LogSummary]:
    """The facts and the summary of the log, each line received at the time that ``lines.tsv`` tells for it."""
    reader = dialect("vllm").reader()
    lines = (here / "server.log").read_bytes().splitlines(keepends=True)
    times = [float(row.split("\t")[1]) for row in (here / "lines.tsv").read_text().splitlines() if row]
    found: list[Fact] = []
    for line, seconds in zip(lines, [*times, *[times[-1]] * len(lines)], strict=False):
        found += reader.feed(line, seconds)
    rest, summaries = reader.close()
    return [*found, *rest], summaries[-1]


def endpoint_facts(here: Path) -> list[Fact]:
    vllm = dialect("vllm")
    saved = {"/version": here / "version.json", "/v1/models": here / "models.json"}
    facts = list(vllm.config_facts({k: json.loads(p.read_text()) for k, p in saved.items() if p.exists()}))
    metrics = here / "metrics-end.txt"
    if metrics.exists():
        facts += vllm.metric_facts(metrics.read_text(), "GET /metrics")
    return facts


def trees(here: Path) -> tuple[tuple[CacheTree, ...], tuple[CacheTree, ...]]:
    """The caches before and after, from ``cache.tsv``; a file that it calls changed has another time and no hash."""
    if not (here / "cache.tsv").exists():
        return (), ()
    data = here / "autotune_configs.json"
    records = hashlib.sha256(data.read_bytes()).hexdigest() if data.exists() else None
    before: dict[str, list[CacheFile]] = {name: [] for name in CACHES}
    after: dict[str, list[CacheFile]] = {name: [] for name in CACHES}
    for row in (here / "cache.tsv").read_text().splitlines()[1:]:
        state, path, size, *_ = row.split("\t")
        name, _, inside = path.partition("/")
        if path.endswith("/*"):
            continue  # the compiler's inner folders were only counted
        digest = records if path.endswith("autotune_configs.json") else None
        if state != "new":
            before[name].append(CacheFile(inside, int(size), 1, digest))
        if state != "gone":
            after[name].append(CacheFile(inside, int(size), 2 if state == "changed" else 1, digest))

    def made(many: dict[str, list[CacheFile]]) -> tuple[CacheTree, ...]:
        rows = many.items()
        return tuple(CacheTree(n, f"/srv/cache/{n}", bool(files), files=tuple(files)) for n, files in rows)

    return made(before), made(after)


def record_facts(here: Path, caches: tuple[CacheTree, ...]) -> list[Fact]:
    """The tuning records that lay in the cache, once per tree that holds their file."""
    found: list[Fact] = []
    data = here / "autotune_configs.json"
    for tree in caches if data.exists() else ():
        for path in (p for p in tree.by_path() if p.endswith(data.name)):
            found += content_facts(tree, {path: data.read_bytes()}, "compile")
    return list({f.evidence.where: f for f in found}.values())  # before and after hold the same content


def _answer(here: Path, result: dict[str, Any]) -> Completion | None:
    if not (here / "completion.json").exists():
        return None
    said = json.loads((here / "completion.json").read_text())
    choice, usage = said["choices"][0], said["usage"]
    return Completion(
        purpose="ready",
        prompt="The capital of France is",
        status=int(result["first_status"]),
        text=choice["text"],
        finish_reason=choice["finish_reason"],
        model=said["model"],
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        asked_tokens=32,
        seconds_since_launch=result["first_completion_s"],
        fingerprint=said["system_fingerprint"],
    )


def _batches(result: dict[str, Any]) -> tuple[ThroughputSample, ...]:
    found: list[ThroughputSample] = []
    for key, load in result.items():
        if key.startswith("load_c") and isinstance(load, dict) and "runs" in load:
            concurrency = int(key.split("_")[1][1:])
            if any(s.concurrency == concurrency for s in found):
                continue  # a second length at the same concurrency is another workload
            for n, run in enumerate(load["runs"]):
                found.append(ThroughputSample(concurrency, n, concurrency, run["bad"], run["tokens"], run["seconds"]))
    return tuple(found)
