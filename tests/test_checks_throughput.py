"""The throughput check: failed requests, floors, real drops, and noise in which none could be seen."""

from __future__ import annotations

import pytest
from helpers_records import (
    FAILED,
    NOT_EXERCISED,
    NOT_OBSERVABLE,
    PASSED,
    Outcome,
    batches,
    fact,
    profile,
    record,
    reference,
    says,
)

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.base import Verdict
from pytest_startup.checks.throughput import check
from pytest_startup.profile.expect import ExpectThroughput
from pytest_startup.record import ThroughputSample

WANTED = ExpectThroughput(concurrency=(8,), repeats=7, tolerance=0.05)
STEADY = batches(100, 101, 99, 100, 100.5, 99.5, 100)
DROPPED = batches(90, 91, 89, 90, 90.5, 89.5, 90)
NOISY = batches(60, 140, 100, 75, 125, 95, 105)

CASES = {
    "the same": (STEADY, STEADY, PASSED, ()),
    "faster": (DROPPED, STEADY, PASSED, ()),
    "a drop of 10 %": (
        STEADY,
        DROPPED,
        FAILED,
        ("90.0 tokens/s at concurrency 8, 10 % below the reference start", "at most 5 % below 100.0", "would show"),
    ),
    "noise": (NOISY, tuple(reversed(NOISY)), FAILED, ("cannot tell whether concurrency 8 got slower: noise",)),
    "too few repeats": (batches(100), batches(100), FAILED, ("cannot tell", "too few repeats")),
    "failed requests": (
        STEADY,
        batches(100, 100, 100, 100, failed=2),
        FAILED,
        ("8 of 32 requests failed at concurrency 8",),
    ),
    "no batch": (STEADY, (), NOT_EXERCISED, ("the workload was not run at concurrency 8",)),
    "nothing on the reference": ((), STEADY, NOT_OBSERVABLE, ("the reference start has no good batch",)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_restart(
    case: tuple[tuple[ThroughputSample, ...], tuple[ThroughputSample, ...], Outcome, tuple[str, ...]],
) -> None:
    before, now, outcome, words = case
    says(judge(before, now), outcome, *words)


def judge(before: tuple[ThroughputSample, ...], now: tuple[ThroughputSample, ...]) -> Verdict:
    wanted = profile(expect={"throughput": WANTED})
    return check(wanted, reference(throughput=before), record(throughput=now), None)


def test_only_cannot_tell_can_be_waived() -> None:
    assert judge(NOISY, NOISY[::-1]).waivable
    assert not judge(STEADY, DROPPED).waivable
    assert not judge(STEADY, ()).waivable
    noisy_and_failed = (*NOISY, *batches(100, failed=1))
    assert not judge(NOISY, noisy_and_failed).waivable


def test_reference_start_is_measured_and_held_to_its_floor() -> None:
    floor = ExpectThroughput(concurrency=(8,), min_tokens_per_second={8: 101.0})
    alone = check(profile(expect={"throughput": WANTED}), None, reference(throughput=STEADY), None)
    says(alone, PASSED)
    assert alone.numbers["tok/s c8"] == 100.0
    low = check(profile(expect={"throughput": floor}), None, reference(throughput=STEADY), None)
    says(low, FAILED, "100.0 tokens/s at concurrency 8, at least 101 are asked for", "min_tokens_per_second")


def test_numbers_state_the_smallest_visible_drop() -> None:
    visible = judge(STEADY, STEADY).numbers["smallest visible drop c8 %"]
    assert isinstance(visible, float)
    assert 0 < visible < 3


def test_baseline_goes_before_the_reference() -> None:
    rates = tuple(s.tokens_per_second for s in STEADY)
    accepted = Baseline("p", {}, {"process": Population({}, {"tokens_per_second.c8": rates})})
    wanted = profile(expect={"throughput": WANTED})
    verdict = check(wanted, reference(throughput=DROPPED), record(throughput=DROPPED), accepted)
    says(verdict, FAILED, "10 % below the baseline", "from baseline")


def test_a_busy_host_is_shown_beside_the_noise() -> None:
    pressure = fact("host.cpu_pressure", 37.5, source="host", text="host.cpu_pressure 37.5 %")
    wanted = profile(expect={"throughput": WANTED})
    verdict = check(wanted, reference(throughput=NOISY), record(pressure, throughput=NOISY[::-1]), None)
    says(verdict, FAILED, "cannot tell", "host.cpu_pressure 37.5 %")


def test_not_asked_for() -> None:
    says(check(profile(), None, record(), None), NOT_OBSERVABLE, "expect.throughput asks for none")


def test_answers_that_stop_early_keep_the_rate_and_are_no_full_answers() -> None:
    whole = tuple(ThroughputSample(8, n, 8, 0, 512, 5.12) for n in range(7))
    half = tuple(ThroughputSample(8, n, 8, 0, 256, 2.56) for n in range(7))
    wanted = profile(expect={"throughput": WANTED})
    verdict = check(wanted, reference(throughput=whole), record(throughput=half), None)
    says(verdict, FAILED, "answers at concurrency 8 have 32.0 tokens, 64.0 on the reference start", "from reference")
    says(check(wanted, reference(throughput=whole), record(throughput=whole), None), PASSED)
