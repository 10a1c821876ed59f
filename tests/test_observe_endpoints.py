"""The engine's answers: kept as they came, without secrets, and read again the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers_http import FaultServer, drip, http, raw, reply

from pytest_startup.engines.base import Endpoints
from pytest_startup.observe.endpoints import Collected, collect, read_saved
from pytest_startup.observe.http import Http
from pytest_startup.redact import Redactor

METRICS = b'vllm:cache_config_info{engine="0",kv_cache_size_tokens="262144"} 1.0\n'
ENDPOINTS = Endpoints(config="/server_info?config_format=json")


def serve() -> FaultServer:
    server = FaultServer().on("/health", reply(200)).on("/version", reply(200, {"version": "0.31.0+cpu"}))
    server.on("/v1/models", reply(200, {"data": [{"id": "m"}]}))
    return server.on("/metrics", reply(200, METRICS, content_type="text/plain; version=0.0.4"))


def gather(server: FaultServer, folder: Path, redactor: Redactor | None = None) -> Collected:
    with server, Http(server.url, timeout=0.5) as client:
        return collect(client, ENDPOINTS, folder, redactor)


def test_answers_metrics_and_problems(tmp_path: Path) -> None:
    found = gather(serve(), tmp_path / "endpoints")
    assert found.answers == {
        "/health": "",
        "/version": {"version": "0.31.0+cpu"},
        "/v1/models": {"data": [{"id": "m"}]},
    }
    assert found.metrics == METRICS.decode()
    assert found.problems == {"/server_info?config_format=json": "HTTP 404"}


def test_raw_answers_are_kept_and_read_again_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "endpoints"
    found = gather(serve(), folder)
    assert sorted(p.name for p in folder.iterdir()) == [
        "health.json",
        "index.json",
        "metrics.txt",
        "server_info.json",
        "v1-models.json",
        "version.json",
    ]
    assert (folder / "metrics.txt").read_bytes() == METRICS
    assert json.loads((folder / "index.json").read_text())["/version"]["status"] == 200
    assert read_saved(folder, ENDPOINTS) == found


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (reply(500, b"dead"), "HTTP 500"),
        (raw(http(200, b"half", length=100)), "answer cut off after 4 bytes"),
        (drip(http(200, b"x" * 200), 0.05), "no complete answer within 0.5 s"),
        (raw(b""), "connection closed without an answer"),
    ],
)
def test_a_bad_answer_is_a_problem_and_no_answer(tmp_path: Path, fault: object, problem: str) -> None:
    found = gather(serve().on("/metrics", fault), tmp_path)  # type: ignore[arg-type]
    assert found.metrics == ""
    assert found.problems["/metrics"] == problem
    assert "/version" in found.answers


def test_text_that_is_not_json_stays_text(tmp_path: Path) -> None:
    found = gather(serve().on("/version", reply(200, b"0.31.0")).on("/health", reply(200, b"OK")), tmp_path)
    assert found.answers["/health"] == "OK"
    assert found.answers["/version"] == "0.31.0"


def test_secrets_are_not_written(tmp_path: Path) -> None:
    secret = "hf_verysecretvalue"  # noqa: S105 - a made-up one
    server = serve().on("/server_info?config_format=json", reply(200, {"env": {"HF_TOKEN": secret}}))
    found = gather(server, tmp_path, Redactor([secret]))
    written = b"".join(p.read_bytes() for p in tmp_path.iterdir())
    assert secret.encode() not in written
    assert secret not in json.dumps(found.answers)
    assert "/server_info?config_format=json" in found.answers


def test_no_saved_answers(tmp_path: Path) -> None:
    assert read_saved(tmp_path / "none", ENDPOINTS) == Collected({}, "", {})
