"""Waivers: what they cover, until when, and which of them are errors."""

from __future__ import annotations

import datetime

import pytest
from helpers_records import FAILED, NOT_EXERCISED, NOT_OBSERVABLE, PASSED, profile, text_of

from pytest_startup.checks.base import Finding, Outcome, Verdict
from pytest_startup.profile.model import Waiver
from pytest_startup.record import Evidence
from pytest_startup.waivers import judge

TODAY = datetime.date(2026, 11, 29)
YESTERDAY, TOMORROW = TODAY - datetime.timedelta(1), TODAY + datetime.timedelta(1)
SEEN = Evidence("log", "head/engine.log", "a line", 7)


def verdict(outcome: Outcome, check: str = "graphs", waivable: bool = False) -> Verdict:
    findings = () if outcome is PASSED else (Finding(f"{check} said why", "x", ("y",)),)
    return Verdict(check, outcome, findings, (SEEN,), waivable=waivable)


@pytest.mark.parametrize("outcome", [NOT_EXERCISED, NOT_OBSERVABLE])
@pytest.mark.parametrize("until", [None, TODAY, TOMORROW])
def test_covered(outcome: Outcome, until: datetime.date | None) -> None:
    waiver = Waiver("graphs", "eager by design", until)
    judged = judge(profile(waivers=(waiver,)), verdict(outcome), TODAY)
    assert (judged.green, judged.waived, judged.reason) == (True, waiver, "eager by design")
    assert judged.verdict.outcome is outcome


@pytest.mark.parametrize("outcome", list(Outcome))
def test_without_a_waiver_only_passed_is_green(outcome: Outcome) -> None:
    judged = judge(profile(waivers=(Waiver("kv", "other check"),)), verdict(outcome), TODAY)
    assert judged.green is (outcome is PASSED)
    assert judged.waived is None
    assert judged.reason is None


ERRORS = {
    "without a reason": (Waiver("graphs", "  "), NOT_OBSERVABLE, ("the waiver of graphs gives no reason", "write why")),
    "past its last day": (
        Waiver("graphs", "soon", YESTERDAY),
        NOT_OBSERVABLE,
        ("the waiver of graphs ended on 2026-11-28", "a day not before 2026-11-29", "graphs said why"),
    ),
    "observable after all, and passed": (
        Waiver("graphs", "eager"),
        PASSED,
        ("graphs is waived, but it was observable after all and passed", "remove the waiver"),
    ),
    "observable after all, and failed": (
        Waiver("graphs", "eager"),
        FAILED,
        ("graphs is waived, but it was observable and failed: graphs said why", "mend the failure"),
    ),
}


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
def test_errors_are_failures_that_name_the_waiver(case: tuple[Waiver, Outcome, tuple[str, ...]]) -> None:
    waiver, outcome, words = case
    judged = judge(profile(waivers=(Waiver("kv", "first"), waiver)), verdict(outcome), TODAY)
    assert not judged.green
    assert judged.waived is None
    assert judged.verdict.outcome is FAILED
    assert judged.waiver_error == judged.verdict.findings[0].summary
    assert judged.verdict.findings[0].expected_from == "waive.1"
    for word in words:
        assert word in text_of(judged.verdict)


def test_cannot_tell_is_failed_unless_waived() -> None:
    noisy = verdict(FAILED, "throughput", waivable=True)
    assert not judge(profile(), noisy, TODAY).green
    assert judge(profile(waivers=(Waiver("throughput", "shared CI host"),)), noisy, TODAY).green


@pytest.mark.parametrize(("outcome", "green"), [(PASSED, True), (FAILED, False)])
def test_a_throughput_waiver_covers_noise_and_nothing_else(outcome: Outcome, green: bool) -> None:
    """Noise comes and goes: a night without it is no error of the waiver, and a real drop stays a failure."""
    judged = judge(profile(waivers=(Waiver("throughput", "shared host"),)), verdict(outcome, "throughput"), TODAY)
    assert (judged.green, judged.waived, judged.waiver_error) == (green, None, None)


def test_today_is_the_default_date() -> None:
    long_ago = profile(waivers=(Waiver("graphs", "old", datetime.date(2020, 1, 1)),))
    assert judge(long_ago, verdict(NOT_OBSERVABLE)).waiver_error == "the waiver of graphs ended on 2020-01-01"
