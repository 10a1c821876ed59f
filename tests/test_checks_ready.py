"""The ready check: real completions, plainly and streamed, sane counts, and life after the workload."""

from __future__ import annotations

import pytest
from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, Outcome, answer, fact, profile, record, says

from pytest_startup.checks.ready import check
from pytest_startup.profile.expect import ExpectQuality, Prompt
from pytest_startup.profile.model import Engine
from pytest_startup.record import Completion, Evidence, Fact, Failure

LOOPING = "The answer is " + "the answer is " * 40

CASES = {
    "a sane completion": ([answer()], PASSED, ()),
    "only a reasoning text": ([answer("", reasoning="Paris it is.")], PASSED, ()),
    "stopped by itself before the limit": ([answer(finish_reason="stop", completion_tokens=3)], PASSED, ()),
    "streamed without usage": (
        [answer(), answer(purpose="ready-stream", streamed=True, completion_tokens=None)],
        PASSED,
        (),
    ),
    "several at once": ([answer(), *[answer(purpose="together")] * 4], PASSED, ()),
    "several at once, another word than alone": (
        [answer(), answer(purpose="ready-stream", streamed=True), answer("Paris. It is.", purpose="together")],
        PASSED,
        (),
    ),
    "one of several got the answer to another prompt": (
        [
            answer(),
            *[answer(purpose="together"), answer(purpose="together", prompt="Name some colours")],
            answer("Red, yellow, green, blue and so on.", purpose="quality", prompt="Name some colours"),
        ],
        FAILED,
        ("of the completions asked at once one got the answer to another prompt", "Name some colours"),
    ),
    "the answer to another prompt, cut where fewer tokens were asked for": (
        [
            answer(),
            answer("Red, yellow, green", purpose="together"),
            answer("Red, yellow, green, blue and so on.", purpose="quality", prompt="Name some colours"),
        ],
        FAILED,
        ("one got the answer to another prompt",),
    ),
    "prompts that get the same answer alone": (
        [
            answer(),
            *[answer(purpose="together"), answer(purpose="together", prompt="Where is the Louvre?")],
            answer(purpose="quality", prompt="Where is the Louvre?"),
        ],
        PASSED,
        (),
    ),
    "too short to tell whose it is": (
        [
            answer("Yes.", purpose="quality", prompt="Is it?"),
            answer("No.", purpose="quality", prompt="Was it?"),
            answer("No.", purpose="together", prompt="Is it?"),
        ],
        PASSED,
        (),
    ),
    "a token that was changed by others, where answers begin alike": (
        [
            answer("Okay, the user is asking for a sum: 4.", purpose="quality", prompt="2 + 2"),
            answer("Okay, the user is asking for a sum: 5.", purpose="quality", prompt="2 + 3"),
            answer("Okay, the user is asking for a sum: 5.", purpose="together", prompt="2 + 2"),
        ],
        PASSED,
        (),
    ),
    "a model without a chat template": (
        [answer(), answer("", status=400, error="HTTP 400: default chat template is no longer", purpose="ready-chat")],
        PASSED,
        (),
    ),
    "chat refused for another reason": (
        [answer(), answer("", status=400, error="HTTP 400: max_tokens", purpose="ready-chat")],
        FAILED,
        ("the chat completion failed: HTTP 400",),
    ),
    "the first completion by chat, without a template": (
        [answer("", status=400, error="HTTP 400: no chat template", purpose="ready")],
        FAILED,
        ("the completion failed: HTTP 400",),
    ),
    "wrong when several are asked at once": (
        [answer(), *[answer("\ufffd\ufffd\ufffd\ufffd", purpose="together")] * 3, answer(purpose="together")],
        FAILED,
        ("each of 3 of the 4 completions asked at once is not a sane text",),
    ),
    "some of several are refused": (
        [answer(), *[answer("", status=500, error="HTTP 500", purpose="together")] * 2, answer(purpose="together")],
        FAILED,
        ("each of 2 of the 3 completions asked at once failed: HTTP 500",),
    ),
    "no completion at all": ([], FAILED, ("the engine never completed a request", "health never answered 200")),
    "no HTTP answer": (
        [answer("", status=0, error="connection refused")],
        FAILED,
        ("the completion failed: no HTTP answer", "connection refused"),
    ),
    "an error of the engine": (
        [answer("", status=500, error="HTTP 500")],
        FAILED,
        ("the completion failed: HTTP 500",),
    ),
    "200 with an empty text": ([answer(" \n")], FAILED, ("HTTP 200 and an empty text", "a proxy answers in its place")),
    "more tokens than asked for": (
        [answer(completion_tokens=9)],
        FAILED,
        ("the completion has a wrong usage: 9 completion tokens, 8 were asked for",),
    ),
    "no tokens for a text": (
        [answer(completion_tokens=0)],
        FAILED,
        ("0 completion tokens for a text of 31 characters",),
    ),
    "no usage": (
        [answer(completion_tokens=None, prompt_tokens=None)],
        FAILED,
        ("no count of completion tokens", "no count of prompt tokens"),
    ),
    "no prompt tokens": ([answer(prompt_tokens=0)], FAILED, ("0 prompt tokens",)),
    "no finish reason": ([answer(finish_reason=None)], FAILED, ("no finish reason: the answer was cut off",)),
    "an odd finish reason": ([answer(finish_reason="abort")], FAILED, ("finish reason 'abort'",)),
    "cut short": (
        [answer(completion_tokens=5)],
        FAILED,
        ("finish reason length after 5 of 8 tokens: the answer was cut short",),
    ),
    "another model": (
        [answer(model="org/other")],
        FAILED,
        ("the completion came from model org/other, org/model is pinned", "from engine.served_name"),
    ),
    "a loop": ([answer(LOOPING)], FAILED, ("the completion is not a sane text: loop",)),
    "a leaked control token": ([answer("Paris<|im_end|>")], FAILED, ("leaked <|im_end|>",)),
    "broken characters": ([answer("Par\ufffdis, yes")], FAILED, ("U+FFFD",)),
    "the answer lacks what it must contain": (
        [answer("London.")],
        FAILED,
        ("the completion does not contain 'paris'", "'London.'", "from expect.completion.contains"),
    ),
    "another text when streamed": (
        [answer(), answer("Paris, it is Paris.", purpose="ready-stream", streamed=True)],
        FAILED,
        ("the streamed completion differs from the plain one",),
    ),
    "another text when streamed, one that others at once got too": (
        [
            answer(),
            answer("Paris, it is Paris.", purpose="ready-stream", streamed=True),
            answer(purpose="together"),
            answer("Paris, it is Paris.", purpose="together"),
        ],
        PASSED,
        (),
    ),
    "a chat answer is not compared with a plain stream": (
        [answer("Hello. Paris.", purpose="ready-chat"), answer(purpose="ready-stream", streamed=True)],
        PASSED,
        (),
    ),
    "dead behind the workload": (
        [answer(), answer("", purpose="last", status=500, error="EngineDeadError")],
        FAILED,
        ("the completion after the workload failed: HTTP 500", "EngineDeadError"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(case: tuple[list[Completion], Outcome, tuple[str, ...]]) -> None:
    answers, outcome, words = case
    wanted = profile(expect={"completion": Prompt("The capital of France is", "paris")})
    says(check(wanted, None, record(completions=tuple(answers)), None), outcome, *words)


def test_models_that_may_loop_say_the_same_to_whatever_they_are_asked() -> None:
    loops = profile(expect={"quality": ExpectQuality((Prompt("x"),), loops="allow")})
    answers = CASES["one of several got the answer to another prompt"][0]
    says(check(loops, None, record(completions=tuple(answers)), None), PASSED)


def test_chat_that_was_answered_before_is_not_without_a_template() -> None:
    refused = record(completions=tuple(CASES["a model without a chat template"][0]))
    first = record(name="reference", completions=(answer(), answer(purpose="ready-chat")))
    says(check(profile(), first, refused, None), FAILED, "the chat completion failed: HTTP 400")
    says(check(profile(), refused, refused, None), PASSED)
    assert check(profile(), refused, refused, None).numbers["chat"] == "no chat template"


def test_served_name_is_the_one_that_counts() -> None:
    named = profile(engine=Engine("vllm", "/models/x", served_name="x"))
    says(check(named, None, record(completions=(answer(model="x"),)), None), PASSED)
    says(check(named, None, record(completions=(answer(model="/models/x"),)), None), FAILED, "x is pinned")


def test_loops_can_be_allowed_for_models_without_sense() -> None:
    allowed = profile(expect={"quality": ExpectQuality((), loops="allow")})
    says(check(allowed, None, record(completions=(answer(LOOPING),)), None), PASSED)
    says(check(allowed, None, record(completions=(answer("Paris<|eot_id|>"),)), None), FAILED, "leaked")


@pytest.mark.parametrize("value", [False, 503, {"health": 200, "completion": 0}, {}])
def test_health_behind_the_workload(value: object) -> None:
    after = fact("endpoint.health_after", value, source="endpoint", text="/health 200; completion refused")
    verdict = check(profile(), None, record(after, completions=(answer(),)), None)
    says(verdict, FAILED, "the engine no longer answers after the workload", "completion refused")


@pytest.mark.parametrize("value", [True, 200, {"health": 200, "completion": 200}])
def test_alive_behind_the_workload(value: object) -> None:
    after = fact("endpoint.health_after", value, source="endpoint")
    says(check(profile(), None, record(after, completions=(answer(),)), None), PASSED)


@pytest.mark.parametrize(("reports", "outcome"), [(2, PASSED), (3, FAILED)])
def test_requests_that_wait_while_nothing_runs(reports: int, outcome: Outcome) -> None:
    line = "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 3 reqs"
    stuck = [fact("serving.stalled", {"running": 0, "waiting": 3}, line=90 + n, text=line) for n in range(reports)]
    verdict = check(profile(), None, record(*stuck, completions=(answer(),)), None)
    says(verdict, outcome, *(["requests wait and none runs: 3 reports", line] if outcome is FAILED else []))


def test_a_failed_start_is_told_once_with_phase_rank_cause_and_helps() -> None:
    cause = Evidence("log", "head/engine.log", "torch.OutOfMemoryError: CUDA out of memory.", 209, rank="TP0")
    failure = Failure(
        "preparation",
        "out-of-device-memory",
        "out of device memory",
        cause,
        "TP0",
        None,
        41.2,
        ("more ranks",),
        ("kv.tokens",),
    )
    verdict = check(profile(), None, record(failure=failure, ready=False), None)
    says(
        verdict,
        FAILED,
        "the start failed in phase preparation on rank TP0 after 41 s: out of device memory",
        "cause: torch.OutOfMemoryError",
        "more ranks",
        "no help: kv.tokens",
    )
    assert len(verdict.findings) == 1


def test_an_engine_that_died_while_serving_was_ready_once() -> None:
    failure = Failure("serving", "ended", "the engine served no more after the workload", last_lines=())
    verdict = check(profile(), None, record(failure=failure, completions=(answer(),)), None)
    says(verdict, FAILED, "the engine died after it had been ready in phase serving", "no line explains it")


def test_health_without_a_completion() -> None:
    verdict = check(profile(), None, record(health_seconds=3.0, ready=False), None)
    says(verdict, FAILED, "health answered 200 after 3.0 s, no completion followed")


@pytest.mark.parametrize(
    ("name", "seconds", "outcome"),
    [
        ("VLLM::Worker_TP1", 30.0, FAILED),
        ("sglang::scheduler_TP0", 30.0, FAILED),
        ("VLLM::EngineCore", 5.0, PASSED),  # a child that helped it to start
        ("ptxas", 30.0, PASSED),
    ],
)
def test_a_rank_that_ends_while_the_rest_still_answers(name: str, seconds: float, outcome: Outcome) -> None:
    seen = Evidence("process", "/proc/7", "pid 7 ended while the engine ran", seconds=seconds)
    start = record(Fact("process.ended", name, seen), completions=(answer(),), ready_seconds=10.0)
    verdict = check(profile(), None, start, None)
    assert verdict.outcome is outcome
    assert outcome is PASSED or f"{name} ended while the engine served" in [f.summary for f in verdict.findings]


def test_an_engine_that_was_launched_again_within_its_start_is_not_ready() -> None:
    """A supervisor's loop: the first launch dies, the second serves."""
    earlier = fact("start.earlier", "out of memory", source="log", text="OutOfMemoryError", first_line=3, last_line=9)
    verdict = check(profile(), None, record(earlier, completions=(answer(),)), None)
    says(verdict, FAILED, "launched again once within this start: out of memory", "lines 3 to 9: out of memory")


def test_counters_that_went_down_are_those_of_another_server() -> None:
    reset = fact(
        "counters.reset", 2, source="workload", text="counters went down during the workload: a 9 to 1, b 7 to 0"
    )
    says(
        check(profile(), None, record(reset, completions=(answer(),)), None),
        FAILED,
        "not one server answered",
        "a 9 to 1",
    )


def test_a_log_that_broke_off_hides_what_went_wrong() -> None:
    full = fact("log.incomplete", "no space left on device", source="process")
    verdict = check(profile(), None, record(full, completions=(answer(),)), None)
    says(verdict, NOT_OBSERVABLE, "the log of this start is incomplete", "no space left on device")


def test_counters_that_stand_still_while_the_engine_answers() -> None:
    still = fact("counters.still", 7168, source="workload", text="answers of 7168 tokens, and the counters stand still")
    verdict = check(profile(), None, record(still, completions=(answer(),)), None)
    says(verdict, FAILED, "its counters stood still", "answers of 7168 tokens", "a proxy that keeps old answers")
