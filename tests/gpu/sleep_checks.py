"""Sleep and wake of a running engine, as a user would test them: status 200 alone proves nothing, the text does."""

from __future__ import annotations

import pytest
import requests

from pytest_startup.asserts import assert_completion
from pytest_startup.fixtures import Engine

PROMPT = "def main(argv):"


def post(engine: Engine, path: str, body: object = None) -> None:
    answer = requests.post(f"{engine.base_url}{path}", json=body, timeout=60)
    assert answer.status_code == 200, f"POST {path}: {answer.status_code} {answer.text[:200]}"


def test_level_1_keeps_the_weights(engine: Engine) -> None:
    before = assert_completion(engine.complete(PROMPT))
    post(engine, "/sleep?level=1")
    post(engine, "/wake_up")
    assert assert_completion(engine.complete(PROMPT)).text == before.text


def test_level_2_answers_only_after_a_reload(engine: Engine) -> None:
    before = assert_completion(engine.complete(PROMPT))
    post(engine, "/sleep?level=2")
    post(engine, "/wake_up")
    hollow = engine.complete(PROMPT)
    with pytest.raises(AssertionError):
        assert_completion(hollow)
    post(engine, "/collective_rpc", {"method": "reload_weights"})
    post(engine, "/reset_prefix_cache")
    assert assert_completion(engine.complete(PROMPT)).text == before.text
