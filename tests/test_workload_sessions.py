"""Long sessions that come back: what is sent, in which order, what is counted, and what ends them early."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers_http import FaultServer, Request, completion, computed, reply

from pytest_startup.engines.base import Endpoints
from pytest_startup.observe.http import Http
from pytest_startup.profile.expect import ExpectSessions
from pytest_startup.record import Fact
from pytest_startup.workload.completions import Target
from pytest_startup.workload.sessions import prompt_of, run

EXPECT = ExpectSessions(count=5, prompt_tokens=64, output_tokens=4, turns=3, concurrency=1)
METRICS = """\
vllm:prefix_cache_hits_total{engine="0"} %d
vllm:prefix_cache_queries_total{engine="0"} %d
vllm:external_prefix_cache_hits_total{engine="0"} %d
vllm:external_prefix_cache_queries_total{engine="0"} %d
vllm:spec_decode_num_accepted_tokens_total{engine="0"} %d
"""


def generate(request: Request) -> dict[str, Any]:
    body = request.json()
    return completion("x", tokens=body["max_tokens"], usage=usage(body))


def usage(body: dict[str, Any]) -> dict[str, int]:
    prompt = body["prompt"]
    sent = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    return {"prompt_tokens": sent, "completion_tokens": body["max_tokens"], "total_tokens": sent + body["max_tokens"]}


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer().on("/v1/completions", computed(generate)) as running:
        yield running


def target(server: FaultServer) -> Target:
    return Target(Http(server.url), Endpoints(), "m", time.monotonic(), 5.0)


def prompts(server: FaultServer) -> list[Any]:
    return [r.json()["prompt"] for r in server.requests if r.method == "POST"]


def made(facts: tuple[Fact, ...]) -> Fact:
    (fact,) = [f for f in facts if f.name == "workload.sessions"]
    return fact


def test_every_session_comes_back_in_the_same_order_with_all_that_it_has_sent(server: FaultServer) -> None:
    heard: list[int] = []
    found = run(target(server), EXPECT, on_turn=heard.append)
    sent = prompts(server)
    turns = [sent[0:5], sent[5:10], sent[10:15]]
    assert len(sent) == 15
    assert [[len(p) for p in turn] for turn in turns] == [[64] * 5, [68] * 5, [72] * 5]
    assert len({tuple(p[:64]) for p in sent}) == 5
    for before, now in itertools.pairwise(turns):
        assert [p[: len(old)] for old, p in zip(before, now, strict=True)] == before
    assert {(r.json()["max_tokens"], r.json()["ignore_eos"]) for r in server.requests if r.method == "POST"} == {
        (4, True)
    }
    assert (found.failures, found.stopped, heard) == ((), None, [1, 2, 3])
    fact = made(found.facts)
    assert (fact.value, fact.unit, fact.evidence.source) == (5 * (72 + 4), "tokens", "workload")
    assert fact.detail == {
        "count": 5, "prompt_tokens": 64, "output_tokens": 4, "turns": 3, "concurrency": 1,
        "requests": 15, "failed": 0, "done": 3,
    }  # fmt: skip
    assert fact.evidence.text == (
        "5 sessions of 64 tokens, 3 of 3 turns, 1 at once: 15 of 15 requests answered, 380 tokens together"
    )


@pytest.mark.parametrize(
    ("engines", "header", "sent"),
    [
        ((0, 1), "X-data-parallel-rank", ["0", "1", "0", "1", "0"] * 3),
        ((0,), "X-data-parallel-rank", [None] * 15),
        ((0, 1), None, [None] * 15),
    ],
)
def test_each_session_comes_back_to_its_own_engine(
    server: FaultServer, engines: tuple[int, ...], header: str | None, sent: list[str | None]
) -> None:
    counters = "".join(f'vllm:external_prefix_cache_queries_total{{engine="{n}"}} 10\n' for n in engines)
    server.on("/metrics", reply(200, counters.encode()))
    asked = Target(Http(server.url), Endpoints(engine_header=header), "m", time.monotonic(), 5.0)
    run(asked, EXPECT)
    posts = [r for r in server.requests if r.method == "POST"]
    assert [r.headers.get("x-data-parallel-rank") for r in posts] == sent


def test_prompts_are_the_same_at_every_start() -> None:
    assert prompt_of(EXPECT, 2, 1) == prompt_of(EXPECT, 2, 1)
    words = prompt_of(EXPECT, 2, 1, ids=False)
    assert isinstance(words, str)
    assert len(words.split()) == 68
    before = prompt_of(EXPECT, 2, 0, ids=False)
    assert isinstance(before, str)
    assert words.startswith(before)


def test_the_first_turn_and_the_returns_have_windows_of_their_own(server: FaultServer) -> None:
    scrapes = [(1, 10, 0, 5, 1), (1, 330, 0, 325, 4), (1, 330, 0, 325, 4), (3, 1010, 600, 1005, 9)]
    server.on("/metrics", *(reply(200, (METRICS % s).encode()) for s in scrapes))
    found = run(target(server), EXPECT)
    counted = {(f.name, f.detail["window"]): f.value for f in found.facts if "window" in f.detail}
    assert counted == {
        ("cache.prefix_hits", "first-turn"): 0,
        ("cache.prefix_queries", "first-turn"): 320,
        ("cache.external_hits", "first-turn"): 0,
        ("cache.external_queries", "first-turn"): 320,
        ("spec.accepted", "first-turn"): 3,
        ("cache.prefix_hits", "returns"): 2,
        ("cache.prefix_queries", "returns"): 680,
        ("cache.external_hits", "returns"): 600,
        ("cache.external_queries", "returns"): 680,
        ("spec.accepted", "returns"): 5,
    }
    (text,) = [
        f.evidence.text for f in found.facts if f.name == "cache.external_hits" and f.detail["window"] == "returns"
    ]
    assert text == ('vllm:external_prefix_cache_hits_total{engine="0"} 0 before the returns of the sessions, 600 after')
    order = [r.path for r in server.requests]
    assert [i for i, path in enumerate(order) if path == "/metrics"] == [0, 6, 7, 18]


def test_a_server_that_refuses_token_ids_gets_words(server: FaultServer) -> None:
    def strict(srv: FaultServer, conn: Any, request: Request) -> None:
        words = isinstance(request.json()["prompt"], str)
        (computed(generate) if words else reply(400, {"message": "prompt must be a string"}))(srv, conn, request)

    server.on("/v1/completions", strict)
    found = run(target(server), EXPECT)
    assert (found.failures, found.stopped) == ((), None)
    assert [isinstance(p, str) for p in prompts(server)] == [False] + [True] * 15
    assert made(found.facts).detail["requests"] == 15


def test_prompts_that_are_too_long_end_it_with_the_words_of_the_server(server: FaultServer) -> None:
    server.on("/v1/completions", reply(400, {"error": {"message": "maximum context length is 32 tokens"}}))
    found = run(target(server), EXPECT)
    assert found.stopped is not None
    assert found.stopped.startswith("all 5 requests of turn 1 failed: HTTP 400")
    assert "maximum context length is 32 tokens" in found.stopped
    assert [(f.purpose, f.prompt, f.status) for f in found.failures][:2] == [
        ("sessions", "session 0, turn 1", 400),
        ("sessions", "session 1, turn 1", 400),
    ]
    fact = made(found.facts)
    assert (fact.value, fact.detail["failed"], fact.detail["done"], fact.detail["stopped"]) == (0, 5, 0, found.stopped)


def test_failures_are_counted_and_the_others_go_on(server: FaultServer) -> None:
    good = computed(generate)
    faults = [reply(500, b"x"), reply(200, completion("x", tokens=0)), reply(200, completion("x", tokens=9))]
    server.on("/v1/completions", good, *faults, good)
    found = run(target(server), EXPECT)
    assert found.stopped is None
    assert [(f.status, f.prompt) for f in found.failures] == [
        (500, "session 1, turn 1"),
        (200, "session 2, turn 1"),
        (200, "session 3, turn 1"),
    ]
    assert (made(found.facts).detail["requests"], made(found.facts).detail["failed"]) == (15, 3)


def test_a_turn_in_which_all_fail_is_the_last(server: FaultServer) -> None:
    server.on("/v1/completions", *[computed(generate)] * 5, reply(500, b"EngineDeadError"))
    found = run(target(server), EXPECT)
    assert found.stopped == "all 5 requests of turn 2 failed: HTTP 500 EngineDeadError"
    assert len(prompts(server)) == 10


def test_it_stops_at_its_limit(server: FaultServer) -> None:
    found = run(target(server), EXPECT, turn_seconds=-1.0)
    assert found.stopped == "the limit of -1 s was reached in turn 1, 4 not sent"
    assert made(found.facts).detail["done"] == 0
    assert len(prompts(server)) == 1


def test_without_usage_of_prompts_what_was_sent_counts(server: FaultServer) -> None:
    server.on("/v1/completions", reply(200, completion("x", tokens=4, usage={"completion_tokens": 4})))
    assert made(run(target(server), EXPECT).facts).value == 5 * (72 + 4)
