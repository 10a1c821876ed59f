"""The readiness watch: a real completion of our own engine, at once, and nothing less."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from helpers_http import (
    FaultServer,
    Reply,
    chat_completion,
    completion,
    computed,
    http,
    raw,
    reply,
    reset,
    silent,
)

from pytest_startup.engines.base import Endpoints
from pytest_startup.launch.listeners import who_listens
from pytest_startup.observe.ready import PROBE_TOKENS, ReadyResult, ReadyWatch
from pytest_startup.observe.sources import Listening
from pytest_startup.profile.expect import Prompt

PROMPT = Prompt("The capital of France is")
ENDPOINTS = Endpoints()
GOOD = reply(200, completion())


def ours(server: FaultServer, *pids: int) -> Callable[[], Listening]:
    """As a local engine's server is proved: by the processes that hold the port, here those of this test."""
    port = urlsplit(server.url).port
    assert port is not None
    return lambda: who_listens(port, pids or {os.getpid()})


def watch(server: FaultServer, **kw: Any) -> ReadyWatch:
    options: dict[str, Any] = {"launched_at": time.monotonic(), "owner": ours(server), "request_timeout": 5.0}
    return ReadyWatch(server.url, ENDPOINTS, "m", kw.pop("prompt", PROMPT), **{**options, **kw})


def healthy(*completions: Reply) -> FaultServer:
    return FaultServer().on("/health", reply(200)).on("/v1/completions", *completions)


def ended(running: ReadyWatch, limit: float = 10.0) -> ReadyResult | None:
    """How the wait ended; None if it goes on."""
    end = time.monotonic() + limit
    while running.result is None and time.monotonic() < end:
        threading.Event().wait(0.005)
    return running.result


def finished(server: FaultServer, limit: float = 10.0, **kw: Any) -> ReadyResult:
    with server, watch(server, **kw) as running:
        result = ended(running, limit)
    assert result is not None, running.attempts()
    return result


def test_ready_at_once() -> None:
    server = healthy(GOOD)
    result = finished(server)
    assert result.ready
    assert result.reason == ""
    assert result.health_seconds is not None
    assert result.ready_seconds is not None
    assert 0 < result.health_seconds <= result.ready_seconds
    seen = result.completion
    assert seen is not None
    assert (seen.purpose, seen.text, seen.completion_tokens, seen.model) == ("ready", " Paris.", 3, "m")
    assert seen.asked_tokens == PROBE_TOKENS
    assert server.paths() == ["/health", "/v1/completions"]
    assert result.proof is not None
    assert f"pid {os.getpid()} of the engine" in result.proof.text


def test_a_server_that_comes_later_is_seen_soon() -> None:
    server = healthy(GOOD)
    running = watch(server).start()
    _until(lambda: any(a.reason == "nothing listens" for a in running.attempts()))
    began = time.monotonic()
    with server:
        result = ended(running)
        assert time.monotonic() - began < 1.0
    running.stop()
    assert result is not None
    assert result.ready


def test_health_refused_first_then_polled_fast() -> None:
    server = healthy(GOOD).on("/health", *[reply(503, {"detail": "starting"})] * 10, reply(200))
    result = finished(server)
    assert result.ready
    assert result.ready_seconds is not None
    assert result.ready_seconds < 3.0
    (attempt,) = [a for a in result.attempts if a.what == "GET /health"]
    assert (attempt.count, attempt.reason) == (10, 'HTTP 503 {"detail": "starting"}')


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (reply(500, {"error": "EngineDeadError"}), 'HTTP 500 {"error": "EngineDeadError"}'),
        (reply(200, completion("")), "HTTP 200 with empty text"),
        (reply(200, completion(" \n\t ")), "HTTP 200 with empty text"),
        (reply(200, completion(tokens=0)), "HTTP 200 with text, but usage counts no token (completion_tokens 0)"),
        (reply(200, {**completion(), "usage": None}), "usage counts no token (completion_tokens None)"),
        (raw(http(200, b'{"id": "cmpl', length=4000)), "HTTP 200 answer cut off after 12 bytes"),
        (reply(200, b'{"id": "cmpl-'), "body is not JSON (13 bytes)"),
        (reply(200, b"\xff\xfe\x00"), "body is not JSON (3 bytes)"),
        (reply(200, b"[1]"), "body is not a JSON object: [1]"),
        (reply(200, {}), "answer without choices"),
        (reply(200, {"choices": [{"text": 5}]}), "text is int, expected str"),
        (reply(200, {"error": {"message": "engine died"}}), "the answer is an error"),
        (reply(404, {"message": "The model `m` does not exist."}), "HTTP 404"),
        (reset(), "connection closed without an answer"),
        (raw(b"garbage\r\n\r\n"), "not an HTTP answer"),
    ],
)
def test_what_is_not_a_completion_does_not_end_the_wait(fault: Reply, reason: str) -> None:
    result = finished(healthy(fault, fault, GOOD))
    assert result.ready
    (attempt,) = [a for a in result.attempts if a.what == "POST /v1/completions"]
    assert attempt.count == 2
    assert reason in attempt.reason


def test_a_completion_that_never_comes_or_stalls_ends_at_the_request_limit() -> None:
    stalls = silent(http(200, b"{", length=400))
    result = finished(healthy(silent(), stalls, GOOD), request_timeout=0.3)
    assert result.ready
    reasons = [a.reason for a in result.attempts if a.what == "POST /v1/completions"]
    assert reasons == ["no complete answer within 0.3 s", "HTTP 200 no complete answer within 0.3 s"]


def test_reasoning_text_counts() -> None:
    server = FaultServer().on("/health", reply(200))
    server.on("/v1/chat/completions", reply(200, chat_completion(None, reasoning_content="Well,")))
    result = finished(server, prompt=Prompt("Hi", chat=True))
    assert result.ready
    assert result.completion is not None
    assert (result.completion.text, result.completion.reasoning) == ("", "Well,")


def test_gives_up_on_a_server_that_answers_200_with_nothing() -> None:
    result = finished(healthy(reply(200, completion(""))), give_up_after=0.3)
    assert not result.ready
    assert result.reason == "for 0.3 s every completion was unusable: HTTP 200 with empty text"
    assert result.ready_seconds is None
    assert result.completion is not None
    assert result.completion.status == 200


def test_does_not_give_up_on_errors_that_may_mend() -> None:
    busy = reply(503, b"busy")
    result = finished(healthy(busy, busy, busy, GOOD), give_up_after=0.0)
    assert result.ready


def test_stop_is_at_once_even_within_a_request() -> None:
    with healthy(silent()) as server:
        running = watch(server, request_timeout=60.0).start()
        _until(lambda: "/v1/completions" in server.paths())
        began = time.monotonic()
        result = running.stop()
        assert time.monotonic() - began < 1.0
    assert not result.ready
    assert result.reason == "stopped before the engine was ready"
    assert result.health_seconds is not None
    assert running.result is not None
    assert not any("cancel" in a.reason for a in result.attempts)


def test_stop_before_anything_listens() -> None:
    server = healthy(GOOD)
    running = watch(server).start()
    result = running.stop()
    server.close()
    assert (result.ready, result.health_seconds, result.completion) == (False, None, None)
    assert running.stop() == result


def test_a_foreign_listener_never_counts() -> None:
    with healthy(GOOD) as server, watch(server, owner=ours(server, 1)) as running:
        _until(lambda: any(a.what == "server" and a.count > 1 for a in running.attempts()))
        assert running.result is None
        assert "/v1/completions" not in server.paths()
    (attempt,) = [a for a in running.attempts() if a.what == "server"]
    assert f"pid {os.getpid()}" in attempt.reason
    assert "not by the engine that was started" in attempt.reason


@pytest.mark.parametrize(("age", "ours"), [(5.0, True), (-1.0, True), (-3600.0, False)])
def test_start_time_of_the_process_tells_where_its_pids_are_unknown(age: float, ours: bool) -> None:
    server = healthy(GOOD).on("/metrics", reply(200, f"# x\nprocess_start_time_seconds {time.time() + age}\n".encode()))
    with server, watch(server, owner=None) as running:
        if ours:
            result = ended(running)
            assert result is not None
            assert result.proof is not None
            assert result.proof.where == "GET /metrics"
        else:
            _until(lambda: any("older than this start" in a.reason for a in running.attempts()))
            assert running.result is None


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_is_set_while_the_engine_starts_does_not_make_it_another_server(
    monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """After a reboot the clock is often set late: the engine's start time is told by the one or the other clock."""
    began = time.time() + min(jump, 0.0) + 1.0
    server = healthy(GOOD).on("/metrics", reply(200, f"process_start_time_seconds {began}\n".encode()))
    running = watch(server, owner=None)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    with server, running:
        result = ended(running)
    assert result is not None
    assert result.proof is not None


def test_a_port_that_was_seen_closed_is_proof_enough() -> None:
    server = healthy(GOOD)
    running = watch(server, owner=None).start()
    _until(lambda: bool(running.attempts()))
    with server:
        result = ended(running)
    running.stop()
    assert result is not None
    assert result.ready
    assert result.proof is not None
    assert "nothing answered on port" in result.proof.text


def test_no_proof_no_ready() -> None:
    with healthy(GOOD) as server, watch(server, owner=None) as running:
        _until(lambda: any("cannot tell" in a.reason for a in running.attempts()))
        assert running.result is None


def test_a_start_time_that_is_no_number_proves_nothing() -> None:
    server = healthy(GOOD).on("/metrics", reply(200, b"process_start_time_seconds soon\n"))
    with server, watch(server, owner=None) as running:
        _until(lambda: any("cannot tell" in a.reason for a in running.attempts()))
        assert running.result is None


def test_a_port_proxy_that_accepts_and_closes_is_nothing_that_listens() -> None:
    server = healthy(GOOD).on("/health", reset(), reset(), reply(200))
    result = finished(server, owner=None)
    assert result.ready
    assert [(a.what, a.reason, a.count) for a in result.attempts] == [
        ("connect", "connection closed without an answer", 2)
    ]


def test_start_is_idempotent() -> None:
    with healthy(GOOD) as server, watch(server) as running:
        assert running.start() is running
        assert ended(running) is not None


def test_a_defect_of_the_watch_ends_the_wait_with_its_reason() -> None:
    def broken() -> Listening:
        raise RuntimeError("no such launcher")

    result = finished(healthy(GOOD), owner=broken)
    assert not result.ready
    assert result.reason == "the readiness watch itself failed: RuntimeError: no such launcher"


def test_the_request_is_greedy_and_names_the_model() -> None:
    server = healthy(computed(lambda r: completion(text=r.json()["prompt"])))
    result = finished(server, prompt=Prompt("Say A", max_tokens=4))
    assert result.completion is not None
    assert result.completion.text == "Say A"
    body = server.requests[-1].json()
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0, 4)


def _until(condition: Any, limit: float = 5.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "condition not met"
        threading.Event().wait(0.005)
