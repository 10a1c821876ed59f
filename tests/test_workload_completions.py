"""Completions as they come back: whole, by chat, streamed; with every fault told and none raised."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers_http import FaultServer, Reply, chat_completion, completion, computed, events, raw, reply, reset, silent
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.engines.base import Endpoints
from pytest_startup.observe.http import Answer, Http
from pytest_startup.profile.expect import ExpectQuality, Prompt
from pytest_startup.record import Completion
from pytest_startup.workload import quality
from pytest_startup.workload.answers import read_completion, why_not_real
from pytest_startup.workload.completions import Target, ask, completions_together, ready_completions

PROMPT = Prompt("The capital of France is", max_tokens=8)
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


def target(server: FaultServer, timeout: float = 5.0) -> Target:
    return Target(Http(server.url), Endpoints(), "m", time.monotonic(), timeout)


def piece(text: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "text": text, "finish_reason": finish}], **more}


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


STREAM = [piece(" Par"), piece("is."), piece("", "length"), {"model": "m", "choices": [], "usage": USAGE}]


def test_plain(server: FaultServer) -> None:
    server.on("/v1/completions", reply(200, completion()))
    seen = ask(target(server), PROMPT, "ready")
    assert (seen.status, seen.error, seen.text, seen.finish_reason, seen.model) == (200, None, " Paris.", "length", "m")
    assert (seen.prompt_tokens, seen.completion_tokens, seen.asked_tokens) == (5, 3, 8)
    assert (seen.fingerprint, seen.streamed, seen.tokens, seen.logprobs) == ("fp-1", False, None, None)
    assert seen.seconds is not None
    assert seen.seconds_since_launch is not None
    assert 0 < seen.seconds <= seen.seconds_since_launch


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_chat_with_reasoning(server: FaultServer, key: str) -> None:
    server.on("/v1/chat/completions", reply(200, chat_completion(None, **{key: "Let me think."})))
    seen = ask(target(server), Prompt("Hi", chat=True), "ready-chat")
    assert (seen.text, seen.reasoning, seen.error) == ("", "Let me think.", None)
    assert why_not_real(seen) is None
    assert server.requests[0].json()["messages"] == [{"role": "user", "content": "Hi"}]


def test_streamed(server: FaultServer) -> None:
    server.on("/v1/completions", events(*STREAM))
    seen = ask(target(server), PROMPT, "ready-stream", stream=True)
    assert (seen.text, seen.finish_reason, seen.error, seen.streamed) == (" Paris.", "length", None, True)
    assert (seen.prompt_tokens, seen.completion_tokens, seen.model) == (5, 2, "m")
    assert server.requests[0].json()["stream_options"] == {"include_usage": True}


def test_streamed_chat(server: FaultServer) -> None:
    parts = [
        delta(role="assistant", content=""),
        delta(reasoning="Hm. "),
        delta(content="Hel"),
        delta("stop", content="lo"),
    ]
    server.on("/v1/chat/completions", events(*parts, {"choices": [], "usage": USAGE}))
    seen = ask(target(server), Prompt("Hi", chat=True), "ready-stream", stream=True)
    assert (seen.text, seen.reasoning, seen.finish_reason, seen.completion_tokens) == ("Hello", "Hm. ", "stop", 2)


@pytest.mark.parametrize(
    ("fault", "status", "text", "error"),
    [
        (events(*STREAM, done=False), 200, " Paris.", "the stream ended without [DONE]"),
        (events(*STREAM[:1], done=False, end=False), 200, " Par", "HTTP 200 answer cut off after"),
        (events(*STREAM[:1], {"error": {"message": "EngineDeadError"}}), 200, " Par", "the answer is an error"),
        (reply(200, b"<html>hello</html>"), 200, "", "not an event stream: <html>hello</html>"),
        (reply(200, completion()), 200, "", "not an event stream"),
        (reply(200, b"data: {garbage\n\n"), 200, "", "body is not JSON"),
        (reply(200, b"data: [1]\n\n"), 200, "", "body is not a JSON object"),
        (reply(200, b""), 200, "", "the stream ended without [DONE]"),
        (reply(503, b"busy"), 503, "", "HTTP 503 busy"),
        (reset(), 0, "", "connection closed without an answer"),
    ],
)
def test_faults_of_streams(server: FaultServer, fault: Reply, status: int, text: str, error: str) -> None:
    server.on("/v1/completions", fault)
    seen = ask(target(server), PROMPT, "ready-stream", stream=True)
    assert (seen.status, seen.text) == (status, text)
    assert seen.error is not None
    assert seen.error.startswith(error)
    assert why_not_real(seen) == seen.error


def test_a_stream_that_stops_keeps_what_came(server: FaultServer) -> None:
    data = b"data: " + json.dumps(STREAM[0]).encode() + b"\n\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(data), data)
    server.on("/v1/completions", silent(head))
    seen = ask(target(server, timeout=0.3), PROMPT, "ready-stream", stream=True)
    assert (seen.status, seen.text) == (200, " Par")
    assert seen.error is not None
    assert seen.error.startswith("HTTP 200 no complete answer within 0.3 s")


def test_comments_and_crlf_in_streams() -> None:
    body = b": ping\r\nevent: x\r\nid: 1\r\ndata: " + json.dumps(piece("a")).encode() + b"\r\n\r\ndata: [DONE]\r\n\r\n"
    seen = read_completion(Answer(200, body), purpose="x", prompt="p", streamed=True)
    assert (seen.text, seen.error) == ("a", None)


def test_ready_completions(server: FaultServer) -> None:
    server.on("/v1/completions", reply(200, completion()), events(*STREAM))
    server.on("/v1/chat/completions", reply(400, {"message": "no chat template"}))
    found = ready_completions(target(server), PROMPT)
    assert [(c.purpose, c.status, c.streamed) for c in found] == [
        ("ready", 200, False),
        ("ready-stream", 200, True),
        ("ready-chat", 400, False),
    ]
    assert found[0].text == found[1].text
    assert {c.prompt for c in found} == {PROMPT.prompt}


def test_ready_completions_of_a_chat_prompt_use_chat_alone(server: FaultServer) -> None:
    server.on("/v1/chat/completions", reply(200, chat_completion()), events(delta("stop", content="Hello.")))
    found = ready_completions(target(server), Prompt("Hi", chat=True))
    assert [(c.purpose, c.text) for c in found] == [("ready", "Hello."), ("ready-stream", "Hello.")]
    assert set(server.paths()) == {"/v1/chat/completions"}


def test_completions_together_are_in_flight_at_once(server: FaultServer) -> None:
    """None is answered before all have been asked."""
    everybody = threading.Barrier(3, timeout=30)

    def answer(_request: object) -> object:
        everybody.wait()
        return completion()

    server.on("/v1/completions", computed(answer))
    found = completions_together(target(server), PROMPT, 3)
    assert [(c.purpose, c.status, c.prompt) for c in found] == [("together", 200, PROMPT.prompt)] * 3
    others = (Prompt("a", max_tokens=999), Prompt("b", max_tokens=1))
    found = completions_together(target(server), PROMPT, 3, others)
    asked = [(PROMPT.prompt, PROMPT.max_tokens), ("a", PROMPT.max_tokens), ("b", 1)]
    assert [(c.prompt, c.asked_tokens) for c in found] == asked


def test_logprobs_of_both_endpoints(server: FaultServer) -> None:
    plain = completion()
    plain["choices"][0]["logprobs"] = {"tokens": [" Paris", "."], "token_logprobs": [-0.1, -2], "top_logprobs": None}
    chat = chat_completion()
    chat["choices"][0]["logprobs"] = {"content": [{"token": "Hi", "logprob": -0.5, "bytes": [72]}, {"bad": 1}, 5]}
    server.on("/v1/completions", reply(200, plain)).on("/v1/chat/completions", reply(200, chat))
    found = quality.answers(target(server), ExpectQuality((PROMPT, Prompt("Hi", chat=True))))
    assert [(c.purpose, c.tokens, c.logprobs) for c in found] == [
        ("quality", (" Paris", "."), (-0.1, -2.0)),
        ("quality", ("Hi",), (-0.5,)),
    ]


def test_quality_without_logprobs_where_they_are_refused(server: FaultServer) -> None:
    server.on("/v1/completions", reply(400, {"message": "logprobs not supported"}), reply(200, completion()))
    found = quality.answers(target(server), ExpectQuality((PROMPT, PROMPT, PROMPT)))
    assert [c.status for c in found] == [200, 200, 200]
    assert ["logprobs" in r.json() for r in server.requests] == [True, False, False, False]


def test_quality_ends_when_the_engine_is_gone(server: FaultServer) -> None:
    server.on("/v1/completions", reply(200, completion()), raw(b""))
    found = quality.answers(target(server), ExpectQuality((PROMPT,) * 5))
    assert [c.status for c in found] == [200, 0]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, None),
        ({"text": "", "reasoning": "Hm"}, None),
        ({"text": ""}, "HTTP 200 with empty text"),
        ({"completion_tokens": 0}, "HTTP 200 with text, but usage counts no token (completion_tokens 0)"),
        ({"completion_tokens": None}, "HTTP 200 with text, but usage counts no token (completion_tokens None)"),
        ({"status": 500}, "HTTP 500"),
        ({"error": "cut"}, "cut"),
    ],
)
def test_why_not_real(more: dict[str, Any], problem: str | None) -> None:
    good: dict[str, Any] = {"purpose": "x", "prompt": "p", "status": 200, "text": "a", "completion_tokens": 1}
    assert why_not_real(Completion(**{**good, **more})) == problem


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "usage", "text", "message", "delta", "content", "logprobs", "tokens", "error"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSONS | st.fixed_dictionaries({"choices": st.lists(JSONS, max_size=2)}), st.booleans())
def test_no_json_whatever_makes_it_raise(value: Any, streamed: bool) -> None:
    body = json.dumps(value).encode()
    body = b"data: " + body + b"\n\ndata: [DONE]\n\n" if streamed else body
    seen = read_completion(Answer(200, body), purpose="x", prompt="p", streamed=streamed)
    assert isinstance(seen.text, str)
    assert seen.error is None or seen.error


@given(st.binary(max_size=60), st.booleans())
def test_no_bytes_whatever_make_it_raise(body: bytes, streamed: bool) -> None:
    seen = read_completion(Answer(200, body), purpose="x", prompt="p", streamed=streamed)
    assert seen.error or streamed
