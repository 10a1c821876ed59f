"""The kv check: which source decides, what is compared, and how a failure is told."""

from __future__ import annotations

import pytest
from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, Outcome, fact, profile, record, reference, says

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.kv import check, compile_state
from pytest_startup.profile.expect import ExpectKv, Range
from pytest_startup.record import Fact


def log(tokens: int, engine: str | None = None, role: str = "model") -> Fact:
    return fact("kv.tokens", tokens, engine=engine, line=40, role=role)


def metrics(tokens: int, engine: str | None = None) -> Fact:
    return fact("kv.tokens", tokens, source="endpoint", engine=engine)


def exactly(tokens: float, tolerance: float = 0.0) -> ExpectKv:
    return ExpectKv(Range(exact=tokens), tolerance=tolerance)


COLD, WARM = fact("compile.cache_written", "saved AOT"), fact("compile.cache_loaded", "Directly load AOT")

CASES = {
    "equal to the profile": (exactly(1000), (), (metrics(1000), log(1000)), PASSED, ()),
    "other than the profile": (
        exactly(1000),
        (),
        (metrics(900), log(900)),
        FAILED,
        ("the KV cache holds 100 tokens less than expected (10 %)", "expected 1,000 tokens"),
    ),
    "below the least": (ExpectKv(Range(min=1000)), (), (log(900),), FAILED, ("expected at least 1,000 tokens",)),
    "above the most": (ExpectKv(Range(max=1000)), (), (log(1001),), FAILED, ("1 tokens more than expected",)),
    "inside the bounds": (ExpectKv(Range(min=900, max=1100)), (), (log(1000),), PASSED, ()),
    "inside the tolerance": (exactly(1000, 0.1), (), (log(950),), PASSED, ()),
    "equal to the reference": (ExpectKv(), (log(1000),), (log(1000),), PASSED, ()),
    "one token less than the reference": (
        ExpectKv(),
        (log(1000),),
        (log(999),),
        FAILED,
        ("the KV cache holds 1 tokens less than the reference start (0.1 %)", "from reference"),
    ),
    "a cold reference and a warm restart": (
        ExpectKv(),
        (COLD, log(1_191_232)),
        (WARM, log(1_191_776)),
        FAILED,
        (
            "544 tokens more than the reference start (0.05 %); the compile cache was cold on the reference start and"
            " warm on this one",
            "take a warm start as reference",
        ),
    ),
    "noise within a stated tolerance": (ExpectKv(tolerance=0.01), (log(1_191_232),), (log(1_191_776),), PASSED, ()),
    "metrics and log disagree": (
        ExpectKv(),
        (),
        (metrics(1000), log(900)),
        FAILED,
        ("metrics and log disagree about the KV cache: 1,000 against 900 tokens", "another engine may answer"),
    ),
    "two engines, one capacity, and the metric of the first": (
        ExpectKv(),
        (),
        (metrics(1000, "0"), metrics(1000, "1"), log(1000, "DP0"), log(1000, "DP1")),
        PASSED,
        (),
    ),
    "two engines with different capacities": (
        ExpectKv(),
        (),
        (metrics(467_520, "0"), metrics(467_520, "1"), log(467_520, "DP0"), log(455_000, "DP1")),
        FAILED,
        ("DP1 has 12,520 KV tokens less than DP0; the smallest decides", "DP0: 467,520 tokens", "DP1: 455,000 tokens"),
    ),
    "the smallest engine is compared with the profile": (
        exactly(1000, 0.2),
        (),
        (log(1000, "DP0"), log(790, "DP1")),
        FAILED,
        ("the KV cache holds 210 tokens less than expected",),
    ),
    "a drafter's own pool is not the capacity": (ExpectKv(), (), (log(1000), log(10, role="drafter")), PASSED, ()),
    "pinned and nowhere stated": (
        exactly(1000),
        (),
        (fact("kv.available", 8.5),),
        NOT_OBSERVABLE,
        ("nothing shows the capacity of the KV cache", "kv.available 8.5"),
    ),
    "nothing stated at all": (
        ExpectKv(),
        (),
        (),
        NOT_OBSERVABLE,
        ("nothing to judge by: kv.tokens at the metrics endpoint",),
    ),
    "a count that is no number": (ExpectKv(), (), (fact("kv.tokens", "many"),), NOT_OBSERVABLE, ()),
    "available memory below its limit": (
        ExpectKv(available_gib=Range(min=36.0)),
        (),
        (log(1000), fact("kv.available", 35.9, "TP1")),
        FAILED,
        ("35.9 GiB are available for the KV cache on TP1", "from expect.kv.available_gib"),
    ),
    "available memory limited and not stated": (
        ExpectKv(available_gib=Range(min=36.0)),
        (),
        (log(1000),),
        NOT_OBSERVABLE,
        ("not printed when the size is fixed by an argument",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(case: tuple[ExpectKv, tuple[Fact, ...], tuple[Fact, ...], Outcome, tuple[str, ...]]) -> None:
    expect, before, now, outcome, words = case
    old = reference(*before) if before else None
    says(check(profile(expect={"kv": expect}), old, record(*now), None), outcome, *words)


def test_baseline_goes_before_the_reference() -> None:
    accepted = Baseline("p", {}, {"process": Population({"kv.tokens": 1000})})
    verdict = check(profile(), reference(log(900)), record(log(900)), accepted)
    says(verdict, FAILED, "100 tokens less than the baseline", "from baseline")
    says(check(profile(), reference(log(900)), record(log(1000)), accepted), PASSED)


def test_baseline_of_another_restart_kind_is_not_used() -> None:
    accepted = Baseline("p", {}, {"same-container": Population({"kv.tokens": 1000})})
    says(check(profile(), reference(log(900)), record(log(900)), accepted), PASSED)


def test_number_is_the_smallest() -> None:
    verdict = check(profile(), None, record(log(1000, "DP0"), log(900, "DP1")), None)
    assert verdict.numbers == {"KV tokens": 900}


def test_compile_state_is_unknown_without_a_line() -> None:
    assert [compile_state(record(*f)) for f in ((), (COLD,), (WARM,), (WARM, COLD))] == [None, "cold", "warm", "cold"]


def test_an_engine_that_no_longer_states_its_capacity() -> None:
    """Of two data-parallel engines one is missing: the other one answers, with its own capacity."""
    first = reference(log(1000, "DP0"), log(1000, "DP1"))
    verdict = check(profile(), first, record(log(1000, "DP0")), None)
    says(verdict, NOT_OBSERVABLE, "nothing shows the capacity of DP1, which the reference start stated")
    says(check(profile(), first, record(log(1000, "DP0"), log(1000, "DP1")), None), PASSED)
