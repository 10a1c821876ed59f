"""The tiers check: configured and never exercised is not green."""

from __future__ import annotations

import pytest
from helpers_records import FAILED, NOT_EXERCISED, NOT_OBSERVABLE, PASSED, Outcome, fact, profile, record, says

from pytest_startup.checks.registry import applicable
from pytest_startup.checks.tiers import check
from pytest_startup.profile.expect import ExpectTiers
from pytest_startup.profile.model import Engine
from pytest_startup.record import Fact


def counters(kind: str, used: int, offered: int) -> tuple[Fact, ...]:
    names = ("spec.accepted", "spec.drafted") if kind == "spec" else (f"cache.{kind}_hits", f"cache.{kind}_queries")
    return tuple(fact(n, v, source="endpoint") for n, v in zip(names, (used, offered), strict=True))


PREFIX = ("cache.prefix_hits", "cache.prefix_queries")

CASES = {
    "external hits": (ExpectTiers(external=True), counters("external", 977, 1000), PASSED, ()),
    "external never hit": (
        ExpectTiers(external=True),
        counters("external", 0, 1000),
        NOT_EXERCISED,
        ("the external cache tier is configured and never gave anything during the workload", "0 of 1,000 tokens"),
    ),
    "external never asked": (
        ExpectTiers(external=True),
        counters("external", 0, 0),
        NOT_EXERCISED,
        ("is configured and was never asked",),
    ),
    "external too seldom": (
        ExpectTiers(external=0.9),
        counters("external", 500, 1000),
        FAILED,
        (
            "the external cache tier served 50 % of the workload, at least 90 % is asked for",
            "from expect.tiers.external",
        ),
    ),
    "more hits than queries": (
        ExpectTiers(external=True),
        counters("external", 900, 100),
        FAILED,
        ("the external cache tier is said to have given more than it was asked for", "900 of 100 tokens"),
    ),
    "prefix often enough": (ExpectTiers(prefix=0.5), counters("prefix", 600, 1000), PASSED, ()),
    "speculation accepted": (ExpectTiers(spec_decode=0.5), counters("spec", 2581, 4626), PASSED, ()),
    "speculation never accepted": (
        ExpectTiers(spec_decode=True),
        counters("spec", 0, 4626),
        NOT_EXERCISED,
        ("speculative decoding is configured and never gave anything",),
    ),
    "no counters": (
        ExpectTiers(external=True),
        (fact("tier.configured", "LMCacheConnector", line=30),),
        NOT_OBSERVABLE,
        ("nothing shows whether the external cache tier was used", "tier.configured LMCacheConnector"),
    ),
    "only the log's percentage": (
        ExpectTiers(external=0.9),
        (fact("cache.external_hit_rate", 0.0), fact("cache.external_hit_rate", 97.7)),
        PASSED,
        (),
    ),
    "the log's percentage says nothing of sessions": (
        ExpectTiers(external=0.9),
        (fact("cache.external_hit_rate", 99.0), fact("workload.sessions", 1152, source="workload")),
        NOT_OBSERVABLE,
        ("nothing shows whether the external cache tier was used",),
    ),
    "sessions do not hide the prefix cache's totals": (
        ExpectTiers(prefix=True),
        (*counters("prefix", 600, 1000), *(fact(n, 0, source="workload", window="returns") for n in PREFIX)),
        PASSED,
        (),
    ),
    "a log's percentage of 0 is no counter": (
        ExpectTiers(external=True),
        (fact("cache.external_hit_rate", 0.0),),
        NOT_OBSERVABLE,
        (),
    ),
    "not wanted": (ExpectTiers(external=False), counters("external", 0, 0), NOT_OBSERVABLE, ("none is expected",)),
    "engines are added up": (
        ExpectTiers(prefix=0.5),
        (*counters("prefix", 0, 1000), *counters("prefix", 1000, 1000)),
        PASSED,
        (),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(case: tuple[ExpectTiers, tuple[Fact, ...], Outcome, tuple[str, ...]]) -> None:
    expect, facts, outcome, words = case
    says(check(profile(expect={"tiers": expect}), None, record(*facts), None), outcome, *words)


def test_a_tier_among_the_arguments_is_asked_for() -> None:
    offload = profile(engine=Engine("vllm", "org/model", args=("--kv-offloading-size", "200")))
    says(check(offload, None, record(*counters("external", 0, 10)), None), NOT_EXERCISED, "from engine.args")
    assert "tiers" in applicable(offload)


def test_a_tier_that_the_log_configures_is_asked_for() -> None:
    seen = record(fact("tier.configured", "MooncakeStore"), *counters("external", 0, 10))
    says(check(profile(), None, seen, None), NOT_EXERCISED, "external cache tier is configured")


def test_nothing_configured() -> None:
    says(check(profile(), None, record(), None), NOT_OBSERVABLE, "a configured tier")
    assert "tiers" not in applicable(profile())
