"""The table of checks: complete, in order, safe against its own defects, and without a pass on nothing."""

from __future__ import annotations

import pytest
from helpers_records import FAILED, PASSED, fact, profile, record, reference, says

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.base import Outcome
from pytest_startup.checks.registry import CHECKS, applicable, run
from pytest_startup.profile.expect import ExpectLog, ExpectQuality, ExpectThroughput, LogPattern, Prompt
from pytest_startup.profile.model import Engine, Waiver

ORDER = [
    "identity", "ready", "phases", "backend", "autotune", "artifacts", "graphs",
    "kv", "memory", "throughput", "quality", "tiers", "log", "cleanup",
]  # fmt: skip


def test_order() -> None:
    assert list(CHECKS) == ORDER


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("before", [None, reference(ready=False)], ids=["reference", "restart"])
def test_nothing_seen_is_never_green(name: str, before: object) -> None:
    """The control of every check: a record in which nothing was seen."""
    verdict = run(name, profile(), before, record(ready=False), None)
    assert verdict.check == name
    assert verdict.outcome is (Outcome.FAILED if name == "ready" else Outcome.NOT_OBSERVABLE)
    assert all(f.summary and f.expected and f.observed for f in verdict.findings)


def test_a_defect_of_a_check_is_a_failure_that_names_it() -> None:
    def broken(*_: object) -> object:
        return {}["missing"]

    verdict = run("boot", profile(), None, record(), None, {"boot": broken})
    says(
        verdict,
        FAILED,
        "the check boot itself is defective: KeyError: 'missing'",
        "in broken",
        "says nothing about the engine",
    )


def test_an_unknown_check() -> None:
    with pytest.raises(KeyError):
        run("nope", profile(), None, record(), None)


def test_a_baseline_of_something_else_is_only_given_to_identity() -> None:
    accepted = Baseline("p", {"engine.version": "1.0"}, {"process": Population({"kv.tokens": 5})})
    start = record(fact("engine.version", "2.0"), fact("kv.tokens", 6))
    says(run("kv", profile(), None, start, accepted), PASSED)
    says(run("identity", profile(), None, start, accepted), FAILED, "accepted for 1.0, this start has 2.0")


def test_applicable_leaves_out_what_the_profile_gives_nothing_to_judge() -> None:
    assert [c for c in ORDER if c not in applicable(profile())] == ["throughput", "quality", "tiers", "log"]
    asked = profile(
        expect={
            "throughput": ExpectThroughput((1,)),
            "quality": ExpectQuality((Prompt("x"),)),
            "log": ExpectLog(forbid=(LogPattern("x"),)),
        },
        engine=Engine("vllm", "m", args=("--speculative-config={}",)),
    )
    assert list(applicable(asked)) == ORDER


def test_a_waived_check_is_made_so_that_a_needless_waiver_is_noticed() -> None:
    assert "log" in applicable(profile(waivers=(Waiver("log", "none yet"),)))
