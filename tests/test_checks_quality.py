"""The quality check: greedy answers compared token by token, and judged by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from helpers_records import (
    FAILED,
    NOT_EXERCISED,
    NOT_OBSERVABLE,
    PASSED,
    Outcome,
    answer,
    profile,
    record,
    reference,
    says,
)

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.quality import accepted, check
from pytest_startup.profile.expect import ExpectQuality, Prompt
from pytest_startup.record import Completion

ONE = ExpectQuality((Prompt("p1", contains="paris"),))


def said(text: str = "It is Paris.", prompt: str = "p1", **fields: Any) -> Completion:
    return answer(text, purpose="quality", prompt=prompt, **fields)


CASES = {
    "the same text": (ONE, [said()], [said()], PASSED, ()),
    "another text": (
        ONE,
        [said()],
        [said("It is Paris!")],
        FAILED,
        (
            "1 of 1 greedy prompts are answered differently; first: from character 12 on it reads",
            "another kernel backend",
            "from reference",
        ),
    ),
    "another token, the same text": (
        ONE,
        [said(tokens=("It is", " Paris."))],
        [said(tokens=("It", " is Paris."))],
        FAILED,
        ("token 1 is 'It', it was 'It is'",),
    ),
    "an earlier end": (
        ONE,
        [said(tokens=("It", " is"))],
        [said(tokens=("It",))],
        FAILED,
        ("token 2 is the end, it was ' is'",),
    ),
    "log-probabilities moved": (
        ONE,
        [said(tokens=("a", "b"), logprobs=(-0.1, -0.2))],
        [said(tokens=("a", "b"), logprobs=(-0.1, -0.5))],
        FAILED,
        ("log-probability of token 2 moved by 0.300, more than 0.1",),
    ),
    "log-probabilities within the limit": (
        ONE,
        [said(tokens=("a",), logprobs=(-0.1,))],
        [said(tokens=("a",), logprobs=(-0.15,))],
        PASSED,
        (),
    ),
    "one of two differs, which is tolerated": (
        ExpectQuality((Prompt("p1"), Prompt("p2")), tolerance=0.5),
        [said(), said(prompt="p2")],
        [said(), said("Rome it is.", prompt="p2")],
        PASSED,
        (),
    ),
    "the expected word is missing": (
        ONE,
        [said("It is Rome.")],
        [said("It is Rome.")],
        FAILED,
        ("the answer to 'p1' does not contain 'paris'", "from expect.quality.prompts.0.contains"),
    ),
    "a loop without any baseline": (
        ONE,
        [],
        [said("Paris " + "and so on " * 40)],
        FAILED,
        ("the answer to 'p1' is not a sane text: loop",),
    ),
    "a failed request": (
        ONE,
        [said()],
        [said("", status=500, error="HTTP 500")],
        FAILED,
        ("the prompt 'p1' got no answer: HTTP 500",),
    ),
    "an empty answer": (ONE, [said()], [said(" ")], FAILED, ("got no answer: empty text",)),
    "no prompt was asked": (ONE, [said()], [], NOT_EXERCISED, ("none of the quality prompts was asked",)),
    "the workload broke off": (
        ExpectQuality((Prompt("p1"), Prompt("p2"))),
        [said(), said(prompt="p2")],
        [said()],
        NOT_EXERCISED,
        ("only 1 of 2 quality prompts were asked",),
    ),
    "none was asked of the reference": (
        ONE,
        [said(prompt="other")],
        [said()],
        NOT_OBSERVABLE,
        ("the reference start answered none of these prompts",),
    ),
    "not asked for": (None, [], [], NOT_OBSERVABLE, ("expect.quality names none",)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(
    case: tuple[ExpectQuality | None, list[Completion], list[Completion], Outcome, tuple[str, ...]],
) -> None:
    expect, before, now, outcome, words = case
    old = reference(completions=tuple(before)) if before else None
    verdict = check(profile(expect={"quality": expect}), old, record(completions=tuple(now)), None)
    says(verdict, outcome, *words)


def test_a_reasoning_text_is_compared_too() -> None:
    old, new = said("Paris.", reasoning="The capital."), said("Paris.", reasoning="The city.")
    verdict = check(profile(expect={"quality": ONE}), reference(completions=(old,)), record(completions=(new,)), None)
    says(verdict, FAILED, "answered differently")
    assert verdict.numbers == {"prompts compared": 1, "prompts different": 1}


def test_loops_are_tolerated_where_the_profile_says_so() -> None:
    allowed = profile(expect={"quality": ExpectQuality((Prompt("p1"),), loops="allow")})
    says(check(allowed, None, record(completions=(said("ha " * 90),)), None), PASSED)


def test_an_engine_that_answers_otherwise_than_the_accepted_one_from_its_first_start_on() -> None:
    """Reference and restart agree; only the baseline knows that both are wrong."""
    good, bad = (record(completions=(said(text),)) for text in ("Paris, of course.", "Rome, of course."))
    known = Baseline("p", {}, {"process": Population({"quality.answers": accepted(good)})})
    wanted = profile(expect={"quality": ExpectQuality((Prompt("p1"),))})
    verdict = check(wanted, None, bad, known)
    says(
        verdict,
        FAILED,
        "1 of 1 greedy prompts are answered otherwise than in the baseline",
        "it was 'Paris, of course.'",
    )
    says(check(wanted, None, good, known), PASSED)
    other = profile(expect={"quality": ExpectQuality((Prompt("p1"),), tolerance=1.0)})
    says(check(other, None, bad, known), PASSED)
