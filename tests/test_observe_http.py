"""HTTP to the engine: every fault ends within its limit, as an answer and never as an exception."""

from __future__ import annotations

import threading
import time

import pytest
from helpers_http import FaultServer, Reply, drip, flood, http, raw, reply, reset, silent

from pytest_startup.observe.http import Answer, Http, is_own_address

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def get(answer: Reply, timeout: float = 5.0, **kw: int) -> Answer:
    with FaultServer().on("/x", answer) as server, Http(server.url, **kw) as client:
        return client.get("/x", timeout)


def test_good_answer() -> None:
    answer = get(reply(200, {"a": 1}))
    assert (answer.ok, answer.status, answer.json(), answer.reason()) == (True, 200, {"a": 1}, "")
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("answer", "status", "kind", "error"),
    [
        (reset(), 0, "closed", "connection closed without an answer"),
        (raw(b""), 0, "closed", "connection closed without an answer"),
        (raw(b"\x00\xff\xfe garbage\r\n\r\n"), 0, "not-http", "not an HTTP answer"),
        (raw(b"HTTP/1.1 abc OK\r\n\r\n"), 0, "not-http", "not an HTTP answer"),
        (raw(HEAD + b"only this"), 200, "cut", "answer cut off after 9 bytes"),
        (raw(CHUNKED + b"5\r\nhello\r\n"), 200, "cut", "answer cut off after 5 bytes"),
        (raw(CHUNKED + b"zz\r\nhello\r\n"), 200, "cut", "answer cut off after 0 bytes"),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"), 0, "not-http", "not an HTTP answer"),
    ],
    ids=["reset", "nothing", "garbage", "bad status", "truncated", "no last chunk", "bad chunk", "too many headers"],
)
def test_broken_answers(answer: Reply, status: int, kind: str, error: str) -> None:
    got = get(answer)
    assert (got.status, got.kind, got.ok) == (status, kind, False)
    assert got.error is not None
    assert got.error.startswith(error)


@pytest.mark.parametrize(
    "answer",
    [
        silent(),
        drip(http(200, b"x" * 500), 0.05),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\nX-Padding: " + b"y" * 500, 0.05),
        flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        silent(HEAD + b"abc"),
    ],
    ids=["never answers", "body drips", "headers drip", "endless interim answers", "stalls in the body"],
)
def test_the_limit_is_for_the_whole_answer(answer: Reply) -> None:
    began = time.monotonic()
    got = get(answer, timeout=0.4)
    assert 0.35 < time.monotonic() - began < 2.0
    assert got.kind == "timeout"
    assert got.error is not None
    assert got.error.startswith("no complete answer within 0.4 s")


def test_too_large_a_body_is_not_read_to_its_end() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    got = get(flood(head, b"x" * 4096), max_bytes=100_000)
    assert (got.status, got.kind, len(got.body)) == (200, "too-large", 100_000)
    assert got.error == "answer larger than 100000 bytes"


def test_nothing_listens() -> None:
    server = FaultServer()
    with Http(server.url) as client:
        assert not client.listening()
        got = client.get("/x")
    server.close()
    assert (got.status, got.kind, got.error) == (0, "refused", "connection refused")


def test_a_redirect_is_not_followed() -> None:
    with FaultServer() as server, Http(server.url) as client:
        server.on("/x", raw(b"HTTP/1.1 302 X\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n"))
        assert client.get("/x").status == 302
        assert server.paths() == ["/x"]


def test_a_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with FaultServer() as proxy, FaultServer().on("/x", reply(200, b"direct")) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with Http(server.url) as client:
            assert client.get("/x").body == b"direct"
        assert proxy.requests == []


def test_cancel_ends_a_request_in_flight_and_all_later_ones() -> None:
    with FaultServer().on("/x", silent()) as server, Http(server.url) as client:
        answers: list[Answer] = []
        thread = threading.Thread(target=lambda: answers.append(client.get("/x", 20)))
        thread.start()
        _until(lambda: server.paths() == ["/x"])
        began = time.monotonic()
        client.cancel()
        thread.join(5)
        assert time.monotonic() - began < 1.0
        assert [a.kind for a in answers] == ["cancelled"]
        assert client.get("/x").kind == "cancelled"
        assert len(server.requests) == 1


def test_an_api_key_is_sent_as_bearer_token_and_only_then() -> None:
    with FaultServer().on("/x", reply(200, {})) as server:
        with Http(server.url, api_key="sk-made-up") as client:
            assert client.get("/x").ok
        with Http(server.url) as client:
            assert client.get("/x").ok
        assert [r.headers.get("authorization") for r in server.requests] == ["Bearer sk-made-up", None]


def test_a_body_that_is_not_json_is_a_value_error_with_its_beginning() -> None:
    with pytest.raises(ValueError, match=r"^not JSON: <html> hello"):
        get(reply(200, b"<html>\nhello")).json()
    assert get(reply(500, b"<html>\nhello")).reason() == "HTTP 500 <html> hello"


def test_a_name_that_nobody_knows_is_not_ours() -> None:
    assert not is_own_address("no-such-host.invalid")


def test_each_request_has_its_own_connection() -> None:
    """The server promises to keep the connection (HTTP/1.1) and closes it all the same."""
    with FaultServer().on("/x", reply(200, {})) as server, Http(server.url) as client:
        assert [client.post("/x", {"n": n}).error for n in range(30)] == [None] * 30


def test_post_sends_json() -> None:
    with FaultServer().on("/x", reply(200, {})) as server, Http(server.url + "/") as client:
        assert client.post("/x", {"prompt": "häh"}).ok
        (request,) = server.requests
        assert (request.method, request.json()) == ("POST", {"prompt": "häh"})
        assert request.headers["content-type"] == "application/json"
        assert request.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("localhost", True), ("127.9.9.9", True), ("192.0.2.1", False), ("8.8.8.8", False)],
)
def test_own_addresses(host: str, own: bool) -> None:
    assert is_own_address(host) is own


@pytest.mark.parametrize("url", ["http://192.0.2.1:8000", "https://127.0.0.1:1", "127.0.0.1:80", "http://:80"])
def test_other_addresses_are_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(ValueError, match=r"not an address of this machine|expected http://HOST:PORT"):
        Http(url)


def test_an_allowed_host_is_taken() -> None:
    assert Http("http://192.0.2.1:8000", allowed=["192.0.2.1"]).host == "192.0.2.1"


def _until(condition: object, limit: float = 5.0) -> None:
    end = time.monotonic() + limit
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "condition not met"
        threading.Event().wait(0.005)
