"""The log check: the profile's own patterns per start, node and rank; absence needs a log that was read."""

from __future__ import annotations

import pytest
from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, Outcome, fact, profile, record, reference, says

from pytest_startup.checks.log import check
from pytest_startup.profile.expect import ExpectLog, LogPattern
from pytest_startup.record import Fact


def match(kind: str, rank: str | None = None, node: str | None = None) -> Fact:
    return fact("log.match", "pat", rank, node=node, line=7, text="the line", pattern="pat", kind=kind)


def other(rank: str | None = None, node: str | None = None) -> Fact:
    return fact("weights.memory", 1.0, rank, node=node, line=3)


FORBID = ExpectLog(forbid=(LogPattern("pat"),))


def require(every: str) -> ExpectLog:
    return ExpectLog(require=(LogPattern("pat", every),))


CASES = {
    "forbidden and absent": (FORBID, (other(),), PASSED, ()),
    "forbidden and there": (
        FORBID,
        (other(), match("forbid", "TP1"), match("forbid", "TP1")),
        FAILED,
        ("a forbidden line stands in the log 2 times, first on TP1", "no line that matches 'pat'", "the line",
         "from expect.log.forbid.0"),
    ),
    "forbidden, and no log was read": (FORBID, (), NOT_OBSERVABLE, ("no line of it was read",)),
    "required and there": (require("start"), (match("require"),), PASSED, ()),
    "required and absent": (require("start"), (other(),), FAILED, ("no line of the log matches 'pat'",)),
    "required on every rank": (require("rank"), (match("require", "TP0"), match("require", "TP1")), PASSED, ()),
    "required, and one rank lacks it": (
        require("rank"),
        (match("require", "TP0"), other("TP1"), other("TP10")),
        FAILED,
        ("rank TP1, TP10 lacks a line that matches 'pat'", "a line on every rank: TP0, TP1, TP10"),
    ),
    "required, and one node lacks it": (
        require("node"),
        (match("require", node="head"), other(node="worker")),
        FAILED,
        ("node worker lacks a line",),
    ),
    "an incomplete log proves no absence": (
        FORBID,
        (other(), fact("log.incomplete", "no space left on device", source="process")),
        NOT_OBSERVABLE,
        ("the log of this start is incomplete", "no space left on device"),
    ),
    "no patterns": (ExpectLog(), (other(),), NOT_OBSERVABLE, ("expect.log names none",)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(case: tuple[ExpectLog, tuple[Fact, ...], Outcome, tuple[str, ...]]) -> None:
    expect, facts, outcome, words = case
    says(check(profile(expect={"log": expect}), None, record(*facts), None), outcome, *words)


def test_a_rank_of_the_reference_counts_too() -> None:
    silent = record(match("require", "TP0"))
    verdict = check(profile(expect={"log": require("rank")}), reference(other("TP1")), silent, None)
    says(verdict, FAILED, "rank TP1 lacks a line")


def test_a_log_without_any_statement_was_read_if_its_lines_were_counted() -> None:
    lines = fact("log.lines", 120, source="log", text="120 lines")
    says(check(profile(expect={"log": FORBID}), None, record(lines), None), PASSED)
