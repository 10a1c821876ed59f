"""The timed workload: fixed requests, interleaved repeats, every failure counted, counters as deltas."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers_http import FaultServer, Reply, Request, completion, computed, http, raw, reply

from pytest_startup.engines.base import Endpoints
from pytest_startup.observe.http import Http
from pytest_startup.profile.expect import ExpectThroughput
from pytest_startup.record import Completion, ThroughputSample
from pytest_startup.workload.throughput import measure, requests_per_batch, why_not_counted
from pytest_startup.workload.window import REUSED_PROMPTS, REUSED_TOKENS, counter_facts, still_facts

BEFORE = """\
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 7.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 70.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 0.0
"""
AFTER = """\
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 148.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 7.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1.1e3
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 70.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 0.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 2581.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 4626.0
"""


def generate(request: Request) -> dict[str, Any]:
    return completion("x", tokens=request.json()["max_tokens"])


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer().on("/v1/completions", computed(generate)) as running:
        yield running


def target(server: FaultServer, timeout: float = 5.0) -> Any:
    from pytest_startup.workload.completions import Target

    return Target(Http(server.url), Endpoints(), "m", time.monotonic(), timeout)


def run(server: FaultServer, expect: ExpectThroughput, **kw: Any) -> Any:
    return measure(target(server), expect, reuse=False, **kw)


EXPECT = ExpectThroughput(concurrency=(1, 4), output_tokens=16, prompt_tokens=8, repeats=3, warmup=1)


def test_samples_are_interleaved_and_count_usage(server: FaultServer) -> None:
    seen: list[ThroughputSample] = []
    found = run(server, EXPECT, on_batch=seen.append)
    assert [(s.concurrency, s.repeat) for s in found.samples] == [(1, 0), (4, 0), (1, 1), (4, 1), (1, 2), (4, 2)]
    assert [(s.requests, s.failed, s.output_tokens) for s in found.samples] == [(2, 0, 32), (8, 0, 128)] * 3
    assert all(s.seconds > 0 and s.tokens_per_second > 0 for s in found.samples)
    assert tuple(seen) == found.samples
    assert (found.failures, found.stopped) == ((), None)


def test_requests_are_fixed_and_never_repeated_within_a_start(server: FaultServer) -> None:
    run(server, EXPECT)
    first = [r.json() for r in server.requests if r.method == "POST"]
    server.requests.clear()
    run(server, EXPECT)
    second = [r.json() for r in server.requests if r.method == "POST"]
    prompts = [tuple(b["prompt"]) for b in first]
    assert len(set(prompts)) == len(prompts) == 1 + 4 * (2 + 8)
    assert sorted(prompts) == sorted(tuple(b["prompt"]) for b in second)
    assert {len(p) for p in prompts} == {8}
    assert {(b["max_tokens"], b["ignore_eos"], b["temperature"]) for b in first} == {(16, True, 0)}


def test_so_many_requests_are_in_flight_at_once(server: FaultServer) -> None:
    together = threading.Barrier(4, timeout=10)

    def wait(request: Request) -> dict[str, Any]:
        together.wait()  # breaks, and the request fails, unless four are in flight
        return generate(request)

    server.on("/v1/completions", computed(generate), computed(wait))  # the first only asks whether ids are taken
    found = run(server, ExpectThroughput(concurrency=(4,), output_tokens=4, repeats=2, warmup=0))
    assert [s.failed for s in found.samples] == [0, 0]


def test_failed_requests_are_counted_and_their_tokens_not(server: FaultServer) -> None:
    good = computed(generate)
    faults = [reply(500, b"x"), raw(b""), raw(http(200, b"{", length=50)), reply(200, completion("x", tokens=0))]
    server.on("/v1/completions", good, *faults, good)
    found = run(server, ExpectThroughput(concurrency=(1,), output_tokens=4, requests=6, repeats=2, warmup=0))
    assert [(s.requests, s.failed, s.output_tokens) for s in found.samples] == [(6, 4, 8), (6, 0, 24)]
    assert [f.status for f in found.failures] == [500, 0, 200, 200]


def test_empty_text_with_counted_tokens_is_no_failure(server: FaultServer) -> None:
    server.on("/v1/completions", reply(200, completion("", tokens=4)))
    found = run(server, ExpectThroughput(concurrency=(1,), output_tokens=4, repeats=1, warmup=0))
    assert [(s.failed, s.output_tokens) for s in found.samples] == [(0, 8)]


def test_it_stops_when_nothing_answers_any_more(server: FaultServer) -> None:
    good: list[Reply] = [computed(generate)] * 5
    server.on("/v1/completions", *good, reply(500, b"EngineDeadError"))
    found = run(server, ExpectThroughput(concurrency=(1,), output_tokens=4, repeats=50, warmup=0))
    assert [s.failed for s in found.samples] == [0, 0, 2]
    assert found.stopped == "all 2 requests failed: HTTP 500 EngineDeadError"


def test_it_stops_at_its_limit(server: FaultServer) -> None:
    found = run(server, ExpectThroughput(concurrency=(1,), output_tokens=4, repeats=5, warmup=0), limit_seconds=-1.0)
    assert (found.samples, found.stopped) == ((), "the limit of -1 s was reached")


def test_a_server_that_refuses_token_ids_gets_words(server: FaultServer) -> None:
    def strict(srv: FaultServer, conn: Any, request: Request) -> None:
        words = isinstance(request.json()["prompt"], str)
        (computed(generate) if words else reply(400, {"message": "prompt must be a string"}))(srv, conn, request)

    server.on("/v1/completions", strict)
    found = run(server, EXPECT)
    assert [s.failed for s in found.samples] == [0] * 6
    assert found.failures == ()


def test_batch_sizes() -> None:
    assert requests_per_batch(ExpectThroughput(concurrency=(8,), requests=32), 8) == 32
    assert requests_per_batch(ExpectThroughput(concurrency=(8,), requests=4), 8) == 8
    assert requests_per_batch(ExpectThroughput(concurrency=(8,)), 8) >= 8


def test_counters_are_deltas_per_engine() -> None:
    facts = counter_facts(BEFORE, AFTER, "GET /metrics", 9.0)
    assert [(f.name, f.value, f.engine, f.unit) for f in facts] == [
        ("cache.external_hits", 0, "0", "tokens"),
        ("cache.prefix_hits", 48, "0", "tokens"),
        ("cache.prefix_hits", 0, "1", "tokens"),
        ("cache.prefix_queries", 100, "0", "tokens"),
        ("cache.prefix_queries", 0, "1", "tokens"),
        ("spec.accepted", 2581, "0", "tokens"),
        ("spec.drafted", 4626, "0", "tokens"),
    ]
    evidence = facts[1].evidence
    assert (evidence.source, evidence.where, evidence.seconds) == ("workload", "GET /metrics", 9.0)
    assert evidence.text == 'vllm:prefix_cache_hits_total{engine="0"} 100 before the workload, 148 after'


@pytest.mark.parametrize(
    ("before", "after"),
    [("", AFTER), (BEFORE, ""), ("", ""), (BEFORE, "<html>\n{{{"), (AFTER, BEFORE.replace("engine", "other"))],
    ids=["no metrics before", "none after", "none", "garbage", "other labels"],
)
def test_unseen_counters_have_no_fact(before: str, after: str) -> None:
    assert [f for f in counter_facts(before, after, "GET /metrics") if f.engine is not None] == []


def test_a_counter_that_went_down_is_not_a_delta() -> None:
    assert {f.name for f in counter_facts(AFTER, BEFORE, "x") if f.engine == "0"} == {"cache.external_hits"}


def test_sglang_and_old_vllm_names() -> None:
    old = 'vllm:gpu_prefix_cache_hits_total{engine="0"} %d\nvllm:gpu_prefix_cache_queries_total{engine="0"} %d\n'
    assert [f.value for f in counter_facts(old % (1, 2), old % (5, 10), "x")] == [4, 8]
    new = 'vllm:prefix_cache_hits_total{engine="0"} 50\n'
    both = counter_facts(old % (1, 2) + new, old % (5, 10) + new.replace("50", "54"), "x")
    assert [(f.name, f.value) for f in both] == [("cache.prefix_hits", 4), ("cache.prefix_queries", 8)]
    sgl = (
        'sglang:cached_tokens_total{dp_rank="0",cache_source="device"} %d\nsglang:prompt_tokens_total{dp_rank="0"} %d\n'
    )
    assert [(f.value, f.engine) for f in counter_facts(sgl % (0, 64), sgl % (32, 164), "x")] == [(32, "0"), (100, "0")]


def test_the_window_is_that_of_the_workload_and_reuse_gives_hits(server: FaultServer) -> None:
    server.on("/metrics", reply(200, BEFORE.encode()), reply(200, AFTER.encode()))
    found = measure(target(server), ExpectThroughput(concurrency=(1,), output_tokens=4, repeats=1))
    assert server.paths()[0] == server.paths()[-1] == "/metrics"
    assert {f.name: f.value for f in found.facts if f.engine == "0"}["cache.prefix_hits"] == 48
    sent = [(r.json()["max_tokens"], tuple(r.json()["prompt"])) for r in server.requests if r.method == "POST"]
    before, batches, behind = (
        sent[: 2 * REUSED_PROMPTS],
        sent[2 * REUSED_PROMPTS : -REUSED_PROMPTS],
        sent[-REUSED_PROMPTS:],
    )
    assert {tokens for tokens, _ in batches} == {4}
    assert [(tokens, len(prompt)) for tokens, prompt in before + behind] == [(1, REUSED_TOKENS)] * 3 * REUSED_PROMPTS
    assert before[0::2] == before[1::2] == behind
    assert len(set(before)) == REUSED_PROMPTS


def test_reused_prompts_that_are_refused_are_sent_as_fewer_words(server: FaultServer) -> None:
    def short(srv: FaultServer, conn: Any, request: Request) -> None:
        prompt = request.json()["prompt"]
        fits = isinstance(prompt, str) or len(prompt) < REUSED_TOKENS
        (computed(generate) if fits else reply(400, {"message": "too long"}))(srv, conn, request)

    server.on("/v1/completions", short)
    assert measure(target(server), ExpectThroughput(concurrency=(1,), output_tokens=4, repeats=1)).failures == ()


def test_a_page_of_a_proxy_is_no_counter_of_zero(server: FaultServer) -> None:
    server.on("/metrics", reply(200, b"<html>moved</html>"), reply(200, AFTER.encode()))
    found = measure(target(server), ExpectThroughput(concurrency=(1,), output_tokens=4, repeats=1))
    assert [f.name for f in found.facts if f.name.startswith("cache.")] == []


def test_without_a_metrics_endpoint_there_are_no_counter_facts(server: FaultServer) -> None:
    facts = run(server, ExpectThroughput(concurrency=(1,), output_tokens=4, repeats=1)).facts
    assert {f.name for f in facts} <= {"host.cpu_pressure"}


def test_a_usage_of_more_tokens_than_were_asked_for_is_not_counted() -> None:
    answer = Completion("throughput", "0", 200, text="a", completion_tokens=65, asked_tokens=64, finish_reason="length")
    assert why_not_counted(answer) == "usage counts 65 completion tokens, 64 were asked for"
    assert why_not_counted(replace(answer, completion_tokens=64)) is None


@pytest.mark.parametrize(
    ("before", "after", "tokens", "still"),
    [
        ("vllm:generation_tokens_total 5.0\n", "vllm:generation_tokens_total 5.0\n", 9, True),
        ("sglang:generation_tokens_total 0.0\n", "sglang:generation_tokens_total 0.0\n", 9, True),
        ("vllm:generation_tokens_total 5.0\n", "vllm:generation_tokens_total 6.0\n", 9, False),
        ("vllm:generation_tokens_total 5.0\n", "vllm:generation_tokens_total 5.0\n", 0, False),  # nothing was answered
        ("", "vllm:generation_tokens_total 5.0\n", 9, False),  # appears with the first answer
        ("vllm:other_total 1.0\n", "vllm:other_total 1.0\n", 9, False),  # no such counter: statistics are off
        (
            'vllm:generation_tokens_total{engine="0"} 5.0\nvllm:generation_tokens_total{engine="1"} 5.0\n',
            'vllm:generation_tokens_total{engine="0"} 5.0\nvllm:generation_tokens_total{engine="1"} 7.0\n',
            9,
            False,  # one of two engines had nothing to do
        ),
    ],
)
def test_counters_of_a_server_that_does_not_answer(before: str, after: str, tokens: int, still: bool) -> None:
    facts = still_facts(before, after, tokens, "GET /metrics", 1.0)
    assert [f.name for f in facts] == (["counters.still"] if still else [])
