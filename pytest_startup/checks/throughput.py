"""throughput: the fixed workload runs as fast as on the reference start, and the data can tell."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.expect import ExpectThroughput
from pytest_startup.profile.model import Profile
from pytest_startup.record import Evidence, Fact, StartRecord, ThroughputSample
from pytest_startup.workload.statistics import Decision, compare

_KEY = "expect.throughput"
#: Tokens per answer below this part of the reference start are fewer: end tokens are ignored, the number is asked for.
SHORTER = 0.98


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges failed requests, floors, then each concurrency against baseline or reference."""
    judging = common.Judging("throughput", "timed batches of the fixed workload (expect.throughput asks for none)")
    wanted = profile.expect.throughput
    samples = by_concurrency(start)
    for concurrency, batches in samples.items():
        rates = [s.tokens_per_second for s in batches]
        judging.numbers[f"tok/s c{concurrency}"] = round(median(rates), 2)
        judging.saw(_evidence(concurrency, batches))
    if wanted is None:
        return judging.verdict()
    missing = [c for c in wanted.concurrency if c not in samples]
    if missing:
        judging.not_exercised(
            f"the workload was not run at concurrency {common.listed(map(str, missing))}",
            f"{wanted.repeats} batches at concurrency {common.listed(map(str, wanted.concurrency))}",
            [f"c{c}: {len(b)} batches" for c, b in samples.items()] or ["no batch"],
            helps=("the workload did not run or broke off: look at ready and at the end of the log",),
            source=_KEY,
        )
    _failed_requests(judging, samples)
    known = common.population(baseline, start)
    busy = start.named("host.cpu_pressure")
    before = by_concurrency(reference) if reference else {}
    for concurrency, batches in samples.items():
        rates = [s.tokens_per_second for s in batches if not s.failed]
        if concurrency not in wanted.concurrency or not rates:
            continue
        _floor(judging, wanted, concurrency, rates)
        _in_full(judging, concurrency, before.get(concurrency, ()), batches)
        accepted = known.samples.get(f"tokens_per_second.c{concurrency}") if known else None
        if accepted:
            _compare(judging, wanted, concurrency, accepted, rates, "baseline", busy)
        elif reference is not None:
            old = [s.tokens_per_second for s in before.get(concurrency, ()) if not s.failed]
            if old:
                _compare(judging, wanted, concurrency, old, rates, "reference", busy)
            else:
                judging.not_observable(
                    f"the reference start has no good batch at concurrency {concurrency} to compare with",
                    "batches of both starts",
                    "timed batches of the reference start",
                    source="reference",
                )
    return judging.verdict()


def by_concurrency(record: StartRecord) -> dict[int, list[ThroughputSample]]:
    """Samples per level, lowest level first."""
    found: dict[int, list[ThroughputSample]] = {}
    for sample in record.throughput:
        found.setdefault(sample.concurrency, []).append(sample)
    return dict(sorted(found.items()))


def _evidence(concurrency: int, batches: list[ThroughputSample]) -> Evidence:
    rates = ", ".join(f"{s.tokens_per_second:.1f}" for s in batches)
    return Evidence("workload", f"throughput c{concurrency}", f"output tokens/s of {len(batches)} batches: {rates}")


def _failed_requests(judging: common.Judging, samples: dict[int, list[ThroughputSample]]) -> None:
    for concurrency, batches in samples.items():
        failed = sum(s.failed for s in batches)
        if failed:
            judging.failed(
                f"{failed} of {sum(s.requests for s in batches)} requests failed at concurrency {concurrency}",
                "every request answered in full",
                [f"batch {s.repeat}: {s.failed} of {s.requests} failed" for s in batches if s.failed],
                [_evidence(concurrency, batches)],
                ("a speed without its failed requests means nothing: look at the log of that time",),
            )


def _in_full(
    judging: common.Judging, concurrency: int, before: Sequence[ThroughputSample], now: Sequence[ThroughputSample]
) -> None:
    """Answers that stop early cost less, and a rate of tokens does not show it."""
    old, new = (
        [s.output_tokens / s.requests for s in batches if not s.failed and s.requests] for batches in (before, now)
    )
    if old and new and median(new) < SHORTER * median(old):
        judging.failed(
            f"answers at concurrency {concurrency} have {median(new):.1f} tokens, "
            f"{median(old):.1f} on the reference start",
            f"{median(old):.1f} tokens per answer",
            [f"batch {s.repeat}: {s.output_tokens} tokens of {s.requests} requests" for s in now[:4]],
            [_evidence(concurrency, list(now))],
            ("the engine stops early: compare its generation config, its limits and what stands in between",),
            "reference",
        )


def _floor(judging: common.Judging, wanted: ExpectThroughput, concurrency: int, rates: list[float]) -> None:
    floor = wanted.min_tokens_per_second.get(concurrency)
    if floor is not None and median(rates) < floor:
        judging.failed(
            f"{median(rates):.1f} tokens/s at concurrency {concurrency}, at least {floor:g} are asked for",
            f"at least {floor:g} tokens/s",
            [f"median {median(rates):.1f} of {_rates(rates)}"],
            [Evidence("workload", f"throughput c{concurrency}", _rates(rates))],
            source=f"{_KEY}.min_tokens_per_second",
        )


def _rates(rates: list[float] | tuple[float, ...]) -> str:
    return ", ".join(f"{r:.1f}" for r in rates)


def _compare(
    judging: common.Judging,
    wanted: ExpectThroughput,
    concurrency: int,
    old: list[float] | tuple[float, ...],
    now: list[float],
    source: str,
    busy: list[Fact],
) -> None:
    result = compare(old, now, wanted.tolerance)
    name = "the baseline" if source == "baseline" else "the reference start"
    observed = [f"{name}: {_rates(old)} tokens/s", f"this start: {_rates(now)} tokens/s"]
    if (visible := result.smallest_detectable_drop) is not None:
        judging.numbers[f"smallest visible drop c{concurrency} %"] = round(visible * 100, 2)
        observed.append(f"a drop of {common.percent(visible)} or more would show")
    evidence = [Evidence("workload", f"throughput c{concurrency}", f"this start: {_rates(now)}")]
    evidence += [f.evidence for f in busy]
    expected = f"at most {common.percent(wanted.tolerance)} below {median(old):.1f} tokens/s"
    if result.decision is Decision.SLOWER:
        judging.failed(
            f"{median(now):.1f} tokens/s at concurrency {concurrency}, {common.percent(result.drop)} below {name}",
            expected,
            observed,
            evidence,
            ("a slower restart has another backend, fewer graphs, untuned kernels, or a busy host: see those checks",),
            source,
        )
    elif result.decision is Decision.CANNOT_TELL:
        judging.failed(
            f"cannot tell whether concurrency {concurrency} got slower: {result.reason}",
            expected,
            observed,
            evidence,
            ("more repeats, longer outputs or a quiet host make it visible; or waive throughput with a reason",),
            source,
            waivable=True,
        )
