"""The tiers check with long sessions: judged by their returns, red when they were not made, and what a tier lacked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers_records import FAILED, NOT_EXERCISED, NOT_OBSERVABLE, PASSED, Outcome, batches, fact, profile, record, says
from helpers_records import text_of as words_of

from pytest_startup.checks.tiers import check
from pytest_startup.profile.expect import ExpectSessions, ExpectTiers
from pytest_startup.record import Completion, Fact
from pytest_startup.workload.sessions import summary

ASKED = ExpectSessions(count=4, prompt_tokens=256)
WANTED = ExpectTiers(external=0.9, sessions=ASKED)


def made(expect: ExpectSessions = ASKED, held: int = 1152, failed: int = 0, turns: int = 2, stopped: str = "") -> Fact:
    return summary(expect, held, 8, failed, turns, stopped or None)


def counted(kind: str, used: int, offered: int, window: str = "", engine: str = "0") -> tuple[Fact, ...]:
    more = {"window": window} if window else {}
    names = (f"cache.{kind}_hits", f"cache.{kind}_queries")
    return tuple(
        fact(n, v, source="workload", engine=engine, **more) for n, v in zip(names, (used, offered), strict=True)
    )


BATCHES = (*counted("external", 0, 9000), *counted("prefix", 400, 4000))
FIRST = (*counted("external", 0, 1024, "first-turn"), *counted("prefix", 0, 1024, "first-turn"))


def room(tokens: int) -> Fact:
    return fact("kv.tokens", tokens, source="endpoint")


CASES: dict[str, tuple[ExpectTiers, tuple[Fact, ...], Outcome, tuple[str, ...]]] = {
    "the returns alone count": (
        WANTED,
        (*BATCHES, *FIRST, *counted("external", 977, 1000, "returns"), made()),
        PASSED,
        (),
    ),
    "too seldom": (
        WANTED,
        (*BATCHES, *FIRST, *counted("external", 500, 1000, "returns"), made()),
        FAILED,
        ("the external cache tier served 50 % of the sessions that came back, at least 90 % is asked for",),
    ),
    "one of two engines gives nothing": (
        replace(WANTED, external=0.4),
        (
            *FIRST,
            *counted("external", 950, 1000, "returns"),
            *counted("external", 0, 900, "returns", engine="1"),
            made(),
        ),
        FAILED,
        (
            "the external cache tier of engine 1 never gave anything when the sessions came back, others did",
            "engine 0: 950 of 1,000 tokens",
            "engine 1: 0 of 900 tokens",
            "read its lines in the log, those of this engine",
        ),
    ),
    "one of two engines was hardly asked": (
        replace(WANTED, external=0.4),
        (
            *FIRST,
            *counted("external", 950, 1000, "returns"),
            *counted("external", 0, 32, "returns", engine="1"),
            made(),
        ),
        PASSED,
        (),
    ),
    "one of two engines was never asked for what came back": (
        replace(WANTED, external=0.4),
        (
            *FIRST,
            *counted("external", 950, 1000, "returns"),
            *counted("prefix", 0, 1000, "returns"),
            *counted("prefix", 0, 1000, "returns", engine="1"),
            made(),
        ),
        NOT_EXERCISED,
        (
            "the external cache tier of engine 1 was never asked when the sessions came back, others were",
            "engine 1: 1,000 tokens came back",
        ),
    ),
    "one of two engines kept its session itself": (
        replace(WANTED, external=0.4),
        (
            *FIRST,
            *counted("external", 950, 1000, "returns"),
            *counted("external", 0, 900, "returns", engine="1"),
            *counted("prefix", 400, 1300, "returns", engine="1"),
            made(),
        ),
        NOT_EXERCISED,
        (
            "the external cache tier of engine 1 had nothing to give when the sessions came back",
            "engine 1: its own cache gave 400 tokens",
        ),
    ),
    "both engines give their share": (
        WANTED,
        (
            *FIRST,
            *counted("external", 950, 1000, "returns"),
            *counted("external", 880, 900, "returns", engine="1"),
            made(),
        ),
        PASSED,
        (),
    ),
    "they fit into the engine's own cache": (
        WANTED,
        (
            *BATCHES,
            *FIRST,
            *counted("external", 0, 32, "returns"),
            *counted("prefix", 1024, 1056, "returns"),
            made(),
            room(4096),
        ),
        NOT_EXERCISED,
        (
            "the external cache tier is configured and never gave anything when the sessions came back",
            "0 of 32 tokens",
            "the engine's own cache gave 96.97 % of the returns",
            "the sessions hold 1,152 tokens together, the engine's own cache has room for 4,096: "
            "nothing had to come back; more sessions, longer prompts or a smaller KV cache",
        ),
    ),
    "they don't fit and nothing comes": (
        WANTED,
        (*FIRST, *counted("external", 0, 1056, "returns"), made(), room(512)),
        NOT_EXERCISED,
        (
            "never gave anything when the sessions came back",
            "the sessions hold 1,152 tokens together, the engine's own cache has room for 512: "
            "the connector failed quietly: read its lines in the log",
        ),
    ),
    "never asked": (
        WANTED,
        (*FIRST, *counted("external", 0, 0, "returns"), made()),
        NOT_EXERCISED,
        ("was never asked when the sessions came back", "a tier that is never reached gives nothing"),
    ),
    "the caches of several engines": (
        WANTED,
        (
            *counted("external", 0, 9, "returns", "0"),
            *counted("external", 0, 9, "returns", "1"),
            made(),
            room(1000),
        ),
        NOT_EXERCISED,
        ("has room for 2,000: nothing had to come back",),
    ),
    "no counters of the returns": (
        WANTED,
        (*BATCHES, made()),
        NOT_OBSERVABLE,
        ("nothing shows whether the external cache tier was used",),
    ),
    "not run": (
        WANTED,
        counted("external", 977, 1000),
        NOT_EXERCISED,
        (
            "the sessions of the profile were not run",
            "4 sessions of 256 tokens, 2 turns, 16 new tokens each, 8 at once",
            "no session",
            "from expect.tiers.sessions",
        ),
    ),
    "others were run": (
        WANTED,
        (*counted("external", 977, 1000, "returns"), made(replace(ASKED, count=2))),
        NOT_EXERCISED,
        (
            "other sessions were run than the profile has",
            "2 sessions of 256 tokens, 2 turns, 16 new tokens each, 8 at once",
            "a replay judges what was run",
        ),
    ),
    "not to the end": (
        WANTED,
        (*FIRST, made(turns=1, stopped="the limit of 600 s was reached in turn 2, 3 not sent")),
        NOT_EXERCISED,
        ("the sessions did not all come back: the limit of 600 s was reached in turn 2, 3 not sent", "1 of 2 turns"),
    ),
    "the profile has none any more": (
        ExpectTiers(external=0.9),
        (*BATCHES, *FIRST, *counted("external", 977, 1000, "returns"), made()),
        PASSED,
        (),
    ),
    "the prefix cache is judged by the batches": (
        ExpectTiers(prefix=0.1, external=0.9, sessions=ASKED),
        (
            *BATCHES,
            *FIRST,
            *counted("external", 977, 1000, "returns"),
            *counted("prefix", 0, 99_000, "returns"),
            made(),
        ),
        PASSED,
        (),
    ),
    "speculation is judged by the whole workload": (
        ExpectTiers(spec_decode=0.5),
        (
            fact("spec.accepted", 100, source="workload"),
            fact("spec.drafted", 150, source="workload"),
            fact("spec.accepted", 0, source="workload", window="first-turn"),
            fact("spec.drafted", 40, source="workload", window="first-turn"),
            fact("spec.accepted", 0, source="workload", window="returns"),
            fact("spec.drafted", 60, source="workload", window="returns"),
        ),
        FAILED,
        ("speculative decoding served 40 % of the workload",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(case: tuple[ExpectTiers, tuple[Fact, ...], Outcome, tuple[str, ...]]) -> None:
    expect, facts, outcome, words = case
    says(check(profile(expect={"tiers": expect}), None, record(*facts), None), outcome, *words)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (
            400,
            "HTTP 400 maximum context length is 128 tokens",
            ("maximum context length is 128", "--max-model-len"),
        ),
        (500, "HTTP 500 EngineDeadError", ("EngineDeadError", "look at the log of that time")),
        (0, "no complete answer within 120 s", ("no complete answer within 120 s", "deadlines.request")),
        (200, None, ("session 3, turn 1: no usable answer",)),
    ],
)
def test_failed_requests_are_red_with_the_words_of_the_server(
    status: int, error: str | None, words: tuple[str, ...]
) -> None:
    failed = Completion("sessions", "session 3, turn 1", status, error=error)
    facts = (*counted("external", 977, 1000, "returns"), made(failed=1))
    verdict = check(profile(expect={"tiers": WANTED}), None, record(*facts, completions=(failed,)), None)
    says(verdict, FAILED, "1 of 8 requests of the sessions failed", "every request answered in full", *words)
    assert len(verdict.findings) == 1


def test_the_numbers_of_a_workload_without_sessions() -> None:
    """What the batches computed is about what they hold."""
    facts = (*counted("external", 0, 3600), *counted("prefix", 400, 4000))
    wanted = profile(expect={"tiers": ExpectTiers(external=True)})
    small, large = (
        check(wanted, None, record(*facts, room(tokens), throughput=batches(100)), None) for tokens in (2048, 262_144)
    )
    held = 3600 + sum(s.output_tokens for s in batches(100))
    says(small, NOT_EXERCISED, f"the workload held about {held:,} tokens together", "the connector failed quietly")
    says(
        large,
        NOT_EXERCISED,
        "has room for 262,144: nothing had to come back; ask for long ones (expect.tiers.sessions)",
    )
    unknown = check(wanted, None, record(*facts, throughput=batches(100)), None)
    assert "together" not in words_of(unknown)
