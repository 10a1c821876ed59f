"""From records and verdicts to the rows and the identity line of the reports."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pytest_startup.checks.base import Verdict
from pytest_startup.checks.kv import capacities
from pytest_startup.leftup import left_up
from pytest_startup.profile.model import Profile
from pytest_startup.record import StartRecord
from pytest_startup.report.results import StartRow


def start_row(record: StartRecord, verdicts: Mapping[str, Verdict] | None = None) -> StartRow:
    """The row of one start. Where several engines or ranks differ, the KV column shows smallest and largest."""
    verdicts = verdicts or {}
    return StartRow(
        name=record.name,
        population=record.population,
        ready_seconds=record.ready_seconds,
        phases=record.phase_seconds(),
        kv_tokens=kv_tokens(record),
        throughput=throughput(record),
        failed=failure_line(record),
        note=detectable(verdicts.get("throughput")),
        left_up=", ".join(f"{n} since {f.value}" for n, f in left_up(record).items()),
    )


def kv_tokens(record: StartRecord) -> str | None:
    """``338,624``, of what the check ``kv`` judges, endpoints first; ``455,000 … 467,520`` where several differ."""
    facts = capacities(record)
    best = [f for f in facts if f.evidence.source == "endpoint"] or facts
    values = sorted({int(f.value) for f in best if isinstance(f.value, (int, float))})
    if not values:
        return None
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} … {values[-1]:,}"


def throughput(record: StartRecord) -> dict[str, float]:
    """Median output tokens/s per concurrency (as text: ``8``), over the batches in which no request failed."""
    groups: dict[int, list[float]] = {}
    for sample in record.throughput:
        if sample.failed == 0 and sample.seconds > 0:
            groups.setdefault(sample.concurrency, []).append(sample.tokens_per_second)
    return {str(c): statistics.median(values) for c, values in sorted(groups.items())}


def detectable(verdict: Verdict | None) -> str:
    """``a drop ≥ 2.1 % would show``: the throughput verdict's own statement, of the concurrency that can tell least."""
    numbers = verdict.numbers if verdict is not None else {}
    drops = [v for k, v in numbers.items() if k.startswith("smallest visible drop") and isinstance(v, (int, float))]
    return f"a drop ≥ {max(drops):.1f} % would show" if drops else ""


def failure_line(record: StartRecord) -> str | None:
    """The first cause of a failed start in one line; None for a start that got ready."""
    f = record.failure
    if f is None:
        return None
    parts = ["start failed"]
    if f.phase:
        parts.append(f"in phase {f.phase}")
    if f.rank:
        parts.append(f"on rank {f.rank}")
    if f.node:
        parts.append(f"of node {f.node}")
    if f.after_seconds is not None:
        parts.append(f"after {f.after_seconds:.0f} s")
    return f"{' '.join(parts)}: {f.summary}"


def identity(profile: Profile, records: Sequence[StartRecord]) -> dict[str, str]:
    """What ran, for the header line and the suite properties of JUnit: only what was seen, or pinned by the profile.

    Keys: engine, version, model, revision, image, gpu, driver, page-size, kernel, ranks, profile-sha256.
    """
    facts = [f for r in records for f in r.facts]

    def seen(*names: str) -> str | None:
        return next((str(f.value) for f in facts if f.name in names and f.value not in (None, "", [], {})), None)

    engine = profile.engine
    gpus = {(f.node, f.detail.get("gpu")) for f in facts if f.name == "gpu.name"}
    out = {
        "profile": profile.name,
        "engine": engine.kind,
        "version": seen("engine.version") or (f"{engine.version} (pinned, not seen)" if engine.version else None),
        "model": engine.model,
        "revision": seen("engine.revision", "model.revision") or engine.revision,
        "image": seen("container.image") or (profile.launch.container and profile.launch.container.image),
        "gpu": seen("gpu.name"),
        "gpus": str(len(gpus)) if gpus else None,
        "driver": seen("gpu.driver"),
        "page-size": seen("host.page_size"),
        "kernel": seen("host.kernel"),
        "ranks": " ".join(sorted({r for rec in records for r in rec.ranks()})) or None,
        "profile-sha256": sha256_of(profile),
    }
    return {k: str(v) for k, v in out.items() if v}


def sha256_of(profile: Profile) -> str | None:
    """Of the profile's file; None when it is gone."""
    import hashlib

    try:
        return hashlib.sha256(profile.path.read_bytes()).hexdigest()
    except OSError:
        return None
