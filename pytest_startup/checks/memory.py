"""memory: weights per rank, peak GPU and host memory within limits; nothing foreign on the GPU before the start."""

from __future__ import annotations

from dataclasses import replace

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.expect import Range
from pytest_startup.profile.model import Profile
from pytest_startup.ranks import TITLE
from pytest_startup.record import Fact, StartRecord

#: GiB by which the memory in use before a start may exceed that before the reference start (contexts, display).
FOREIGN_GIB = 1.0
_SHARED = "on devices that share memory with the host NVML gives none: limit the host's peak instead"


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges each quantity against its limit, then weights against baseline and reference, then foreign memory."""
    judging = common.Judging("memory", "weights.memory in the log, gpu.memory_used, host.memory_peak")
    wanted = profile.expect.memory
    weights = figures(start, "weights.memory")
    peak = [f for f in figures(start, "gpu.memory_used") if f.detail.get("at") == "peak"]
    host = _host_peaks(start)
    _limit(judging, "weights", "weights_gib_per_rank", wanted.weights_gib_per_rank, weights, start)
    _limit(judging, "peak GPU memory", "gpu_peak_gib", wanted.gpu_peak_gib, peak, start)
    _without_figure(judging, wanted.gpu_peak_gib, peak, start)
    _limit(judging, "peak host memory", "host_peak_gib", wanted.host_peak_gib, host, start)
    _weights_as_before(judging, profile, reference, start, baseline, weights)
    _before_start(judging, reference, start)
    _killed(judging, start)
    for name, facts in (("weights GiB", weights), ("GPU peak GiB", peak), ("host peak GiB", host)):
        if facts:
            judging.numbers[name] = round(max(gib(f) for f in facts), 2)
    return judging.verdict()


def figures(record: StartRecord, name: str) -> list[Fact]:
    """The facts of this name whose value is a number."""
    return [f for f in record.named(name) if common.number(f.value) is not None]


def _host_peaks(start: StartRecord) -> list[Fact]:
    """The peak of the engine's processes; that of the whole host where nothing measured them, and where the GPU shares
    the host's memory (NVML: not supported), since what a GPU holds of it is counted to no process."""
    shared = {f.node for f in start.named("gpu.memory_unknown") if f.value == "not supported"}
    own, whole = figures(start, "host.memory_peak"), _whole_host(start)
    if not shared:
        return own or whole
    of_all = [f for f in whole if f.node in shared]
    counted = {f.node for f in of_all}
    return [*of_all, *(f for f in own if f.node not in counted and None not in counted)]


def _whole_host(start: StartRecord) -> list[Fact]:
    """The host's own peak: total less the least that was available."""
    lowest = [f for f in figures(start, "host.memory_available") if f.detail.get("at") == "lowest"]
    total = {f.node: gib(f) for f in figures(start, "host.memory_total")}
    return [replace(f, value=round(total[f.node] - gib(f), 3)) for f in lowest if f.node in total]


def gib(fact: Fact) -> float:
    """The figure in GiB. GPU lines in GB mean GiB (SGLang 0.4 to 0.5 divides by 2^30 and prints GB)."""
    return common.number(fact.value) or 0.0


def _place(fact: Fact) -> str:
    gpu = fact.detail.get("gpu")
    return fact.rank or (common.who(fact) if gpu is None else f"GPU {gpu}{f' of {fact.node}' if fact.node else ''}")


def _limit(
    judging: common.Judging, what: str, key: str, limits: Range | None, facts: list[Fact], start: StartRecord
) -> None:
    judging.saw(*facts)
    if limits is None:
        return
    source = f"expect.memory.{key}"
    if not facts:
        judging.not_observable(
            f"nothing shows {what}, a limit is set",
            common.range_text(limits, "GiB"),
            {"weights": "weights.memory in the log", "peak GPU memory": "gpu.memory_used of NVML"}.get(
                what, "host.memory_peak"
            ),
            common.nearest(start, "weights.", "gpu.", "host."),
            (_SHARED,) if "GPU" in what else (),
            source,
        )
        return
    wrong = [f for f in facts if not common.within(gib(f), limits, 0.005)]
    if wrong:
        worst = max(wrong, key=gib)
        judging.failed(
            f"{what} on {_place(worst)}: {common.shown(gib(worst), 'GiB')}, {common.range_text(limits, 'GiB')} allowed",
            common.range_text(limits, "GiB"),
            [f"{_place(f)}: {common.shown(gib(f), 'GiB')}" for f in facts],
            wrong,
            ("weights are converted or packed by the kernel backend: compare the backend of the validated start",)
            if what == "weights"
            else (),
            source,
        )


def _without_figure(judging: common.Judging, limits: Range | None, peak: list[Fact], start: StartRecord) -> None:
    """A limit holds for every GPU: one without a figure is not within it because another one is."""
    seen = {(f.node, f.detail.get("gpu")) for f in peak}
    unknown = {
        (f.node, f.detail.get("gpu")): f
        for f in start.named("gpu.memory_unknown")
        if (f.node, f.detail.get("gpu")) not in seen
    }
    if limits is None or not peak or not unknown:
        return
    names = common.listed([_place(f) for f in unknown.values()])
    judging.not_observable(
        f"nothing shows peak GPU memory of {names}, a limit is set",
        common.range_text(limits, "GiB"),
        "gpu.memory_used of NVML; " + common.listed(sorted({str(f.value) for f in unknown.values()})),
        [*unknown.values()],
        (_SHARED,),
        "expect.memory.gpu_peak_gib",
    )


def _weights_as_before(
    judging: common.Judging,
    profile: Profile,
    reference: StartRecord | None,
    start: StartRecord,
    baseline: Baseline | None,
    weights: list[Fact],
) -> None:
    """Weights per rank, in the order of sight (a drafter's after the model's), against baseline, else reference."""
    known = common.population(baseline, start)
    accepted = common.number(known.values.get("weights.gib_max")) if known else None
    tolerance = profile.expect.memory.tolerance
    if accepted is not None and not weights:
        judging.not_observable(
            f"nothing shows the weights, the baseline has {common.shown(accepted, 'GiB')}",
            f"{common.shown(accepted, 'GiB')} ± {common.percent(tolerance)}",
            "weights.memory in the log, per rank",
            common.nearest(start, "weights.", "host."),
            source="baseline",
        )
        return
    if accepted is not None:
        most = max(weights, key=gib)
        if abs(gib(most) - accepted) > tolerance * accepted:
            _other_weights(judging, most, accepted, weights, tolerance, "baseline")
        return
    before = common.by_rank(figures(reference, "weights.memory")) if reference else {}
    for rank, now in common.by_rank(weights).items():
        for old, new in zip(before.get(rank, ()), now, strict=False):
            if abs(gib(new) - gib(old)) > max(tolerance * gib(old), 0.01):
                _other_weights(judging, new, gib(old), weights, tolerance, "reference")
                return
    missing = sorted(set(before) - set(common.by_rank(weights)), key=common.natural)
    if missing:
        judging.not_observable(
            f"nothing shows the weights of {common.listed(missing)}, which the reference start stated",
            "the same ranks",
            "weights.memory in the log, per rank",
            weights,
            source="reference",
        )


def _other_weights(
    judging: common.Judging, fact: Fact, accepted: float, weights: list[Fact], tolerance: float, source: str
) -> None:
    what = "the baseline" if source == "baseline" else "the reference start"
    judging.failed(
        f"weights take {common.shown(gib(fact), 'GiB')} on {_place(fact)}, {common.shown(accepted)} in {what}",
        f"{common.shown(accepted, 'GiB')} ± {common.percent(tolerance)}",
        [f"{_place(f)}: {common.shown(gib(f), 'GiB')}" for f in weights],
        [fact],
        ("another kernel backend packs weights differently; another shard layout or dtype does so too",),
        source,
    )


def _before_start(judging: common.Judging, reference: StartRecord | None, start: StartRecord) -> None:
    def before(record: StartRecord) -> dict[tuple[str | None, str], Fact]:
        facts = [f for f in figures(record, "gpu.memory_used") if f.detail.get("at") == "before"]
        return {(f.node, _place(f)): f for f in facts}

    old, new = before(reference) if reference else {}, before(start)
    for place, fact in new.items():
        judging.saw(fact)
        if place in old and gib(fact) > gib(old[place]) + FOREIGN_GIB:
            judging.failed(
                f"{place[1]} already held {common.shown(gib(fact), 'GiB')} before this start",
                f"about {common.shown(gib(old[place]), 'GiB')} as before the reference start",
                [f"{place[1]}: {common.shown(gib(fact), 'GiB')}"],
                [fact, old[place]],
                ("another process, or a leftover of the engine before, is on the device: KV cache and graphs suffer",),
                "reference",
            )


def _killed(judging: common.Judging, start: StartRecord) -> None:
    """The kernel counts kills of the whole host, other containers' own limits included: only with a loss of ours is
    that our memory."""
    facts = figures(start, "host.oom_kill")
    lost = any(TITLE.match(str(f.value)) for f in start.named("process.ended"))
    if facts and (lost or start.failure is not None):
        judging.failed(
            f"the kernel's out-of-memory killer ended {common.shown(gib(facts[0]))} processes of this host",
            "host memory for everything that runs",
            [f"{common.who(f)}: {f.evidence.text}" for f in facts],
            facts,
            ("look for offload tiers counted once per engine, stale files in /dev/shm, and other containers",),
        )
