"""What all checks share: the order of verdicts, small readings, and no check that breaks on odd facts."""

from __future__ import annotations

import pytest
from helpers_records import (
    COMPILE,
    FAILED,
    NOT_EXERCISED,
    NOT_OBSERVABLE,
    PASSED,
    answer,
    batches,
    fact,
    profile,
    record,
    reference,
    tree,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks import common
from pytest_startup.checks.base import Outcome
from pytest_startup.checks.registry import CHECKS, run
from pytest_startup.profile.expect import (
    ExpectAutotune,
    ExpectBackend,
    ExpectGraphs,
    ExpectKv,
    ExpectLog,
    ExpectMemory,
    ExpectQuality,
    ExpectSessions,
    ExpectThroughput,
    ExpectTiers,
    LogPattern,
    Prompt,
    Range,
)
from pytest_startup.profile.model import Change, Host, Restart
from pytest_startup.record import Fact, StartRecord


def judged(*outcomes: Outcome, seen: bool = True) -> Outcome:
    judging = common.Judging("x", "anything")
    if seen:
        judging.saw(fact("a", 1))
    for outcome in outcomes:
        if outcome is FAILED:
            judging.failed("s", "e", ["o"])
        elif outcome is NOT_EXERCISED:
            judging.not_exercised("s", "e", ["o"])
        else:
            judging.not_observable("s", "e", "o")
    return judging.verdict().outcome


def test_the_worst_finding_decides() -> None:
    assert judged() is PASSED
    assert judged(seen=False) is NOT_OBSERVABLE
    assert judged(NOT_OBSERVABLE) is NOT_OBSERVABLE
    assert judged(NOT_OBSERVABLE, NOT_EXERCISED) is NOT_EXERCISED
    assert judged(NOT_EXERCISED, NOT_OBSERVABLE, FAILED, seen=False) is FAILED


def test_a_failure_shows_few_lines_and_none_twice() -> None:
    judging = common.Judging("x", "anything")
    judging.failed("s", "e", ["o"], [fact("a", n % 6, line=n % 6) for n in range(60)])
    lines = [e.line for e in judging.verdict().findings[0].evidence]
    assert lines == [0, 1, 2, 3]


def test_ranks_are_sorted_as_people_count() -> None:
    facts = [fact("a", 1, rank) for rank in ("TP10", "TP9", "TP1")] + [fact("a", 1, engine="0"), fact("a", 1)]
    assert list(common.by_rank(facts)) == ["TP1", "TP9", "TP10", "engine", "engine 0"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(338624, "tokens", "338,624 tokens"), (83.10, "GiB", "83.1 GiB"), (0.055, "", "0.06"), (0, "", "0")],
)
def test_numbers_as_printed(value: float, unit: str, text: str) -> None:
    assert common.shown(value, unit) == text


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Range(exact=10), "10 GiB"),
        (Range(min=1, max=2), "1 to 2 GiB"),
        (Range(min=1), "at least 1 GiB"),
        (Range(max=2), "at most 2 GiB"),
        (Range(baseline=True), "as in the baseline"),
    ],
)
def test_limits_as_printed(limits: Range, text: str) -> None:
    assert common.range_text(limits, "GiB") == text


def test_a_truth_value_is_no_number() -> None:
    assert [common.number(v) for v in (True, None, "1", [1], 1, 1.5)] == [None, None, None, None, 1.0, 1.5]


@given(st.floats(1, 1e9), st.floats(1, 1e9), st.floats(0, 0.5))
def test_tolerance_widens_an_exact_number_only(value: float, limit: float, tolerance: float) -> None:
    inside = abs(value - limit) <= tolerance * limit
    assert common.within(value, Range(exact=limit), tolerance) is inside
    assert common.within(value, Range(min=limit), tolerance) is (value >= limit)
    assert common.within(value, Range(max=limit), tolerance) is (value <= limit)


@given(st.text("abcXYZ", min_size=1), st.sampled_from([" ", "_", "-", ""]))
def test_names_are_the_same_in_every_spelling(name: str, between: str) -> None:
    assert common.same_name(f"{name}{between}2", f"{name.upper()}_2")


# --- no check breaks on odd facts --------------------------------------------------------------------------------

NAMES = [
    "engine.version",
    "engine.model",
    "engine.revision",
    "process.argv",
    "process.pid",
    "container.image",
    "host.page_size",
    "gpu.name",
    "gpu.uuid",
    "gpu.driver",
    "gpu.memory_used",
    "host.memory_peak",
    "backend.attention",
    "backend.moe",
    "backend.fallback",
    "weights.memory",
    "compile.cache_dir",
    "compile.cache_loaded",
    "compile.cache_written",
    "compile.range",
    "compile.artifacts",
    "compile.key_factors",
    "artifact.missing",
    "autotune.started",
    "autotune.loaded",
    "autotune.saved",
    "autotune.hit",
    "autotune.tuned",
    "autotune.refused",
    "graphs.captured",
    "graphs.mode",
    "graphs.sizes",
    "graphs.downgraded",
    "graphs.seconds",
    "kv.tokens",
    "kv.available",
    "cache.external_hits",
    "cache.external_queries",
    "spec.accepted",
    "spec.drafted",
    "tier.configured",
    "log.match",
    "endpoint.health_after",
    "system.fingerprint",
]
SCALARS = st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats(allow_nan=False) | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "done", "total", "artifacts", "op", "env"]), inner, max_size=3)
    ),
    max_leaves=5,
)
DETAILS = st.dictionaries(
    st.sampled_from(["role", "kind", "done", "total", "at", "gpu", "path", "pattern", "requested", "derived", "new"]),
    SCALARS,
    max_size=3,
)


@st.composite
def facts(draw: st.DrawFn) -> Fact:
    detail = draw(DETAILS)
    rank = draw(st.sampled_from([None, "TP0", "TP1_EP1", "DP0", "odd"]))
    source = draw(st.sampled_from(["log", "endpoint", "workload", "gpu"]))
    line = draw(st.none() | st.integers(1, 99))
    made = fact(draw(st.sampled_from(NAMES)), draw(VALUES), rank, source=source, line=line)
    return Fact(made.name, made.value, made.evidence, None, rank, None, draw(st.sampled_from([None, "0"])), 0, detail)


def started(found: list[Fact], name: str) -> StartRecord:
    return record(
        *found,
        name=name,
        completions=(answer(), answer(purpose="quality", prompt="x")),
        throughput=batches(100, 101, 99),
        caches_before=(tree({"a/rank_0_0/b/model": "x"}),),
        caches_after=(tree({"a/rank_0_0/b/model": "y"}),),
    )


DEMANDING = profile(
    host=Host(4096, "6.*", "580.*", "H200", 2),
    restarts=(Restart("restart-1", "process", change=Change(env={"A": "b"})),),
    caches=(COMPILE,),
    expect={
        "backend": ExpectBackend("A", "B", "C", "D", "E", "F"),
        "autotune": ExpectAutotune(2, 42, "all", ("gemm1",)),
        "graphs": ExpectGraphs("FULL", (1, 2), {"FULL": 2}, 3.0),
        "kv": ExpectKv(Range(exact=5), Range(min=1)),
        "memory": ExpectMemory(Range(max=1), Range(max=1), Range(max=1)),
        "throughput": ExpectThroughput((8,), min_tokens_per_second={8: 1.0}),
        "quality": ExpectQuality((Prompt("x", "y"),)),
        "tiers": ExpectTiers(0.5, True, 0.1, ExpectSessions(2, 8)),
        "log": ExpectLog((LogPattern("a"),), (LogPattern("b", "rank"),)),
    },
)
ACCEPTED = Baseline(
    "p", {}, {"process": Population({"kv.tokens": 5, "graphs.captured": {"FULL": 2}, "weights.gib_max": 1})}
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(facts(), max_size=12), st.lists(facts(), max_size=12), st.sampled_from(sorted(CHECKS)))
def test_no_check_breaks_on_odd_facts(before: list[Fact], now: list[Fact], check: str) -> None:
    old, new = started(before, "reference"), started(now, "restart-1")
    for wanted in (profile(), DEMANDING):
        for base, one in ((None, old), (old, new)):
            for baseline in (None, ACCEPTED):
                verdict = run(check, wanted, base, one, baseline)
                assert not any("itself is defective" in f.summary for f in verdict.findings), verdict.findings[0]


def test_a_record_equals_itself() -> None:
    """A restart whose facts are those of the reference start can't have changed."""
    facts = (fact("engine.version", "1"), fact("kv.tokens", 5), fact("backend.moe", "A"), fact("weights.memory", 1.0))
    for check in ("identity", "kv", "backend", "memory"):
        assert run(check, profile(), reference(*facts), record(*facts), None).outcome is PASSED
