"""Tests of one's own beside the gate: markers, fixtures, assertion functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_startup.asserts import assert_completion, assert_kv, assert_ready
from pytest_startup.fixtures import Engine
from pytest_startup.profile.model import Profile
from pytest_startup.record import StartRecord


@pytest.mark.startup_kv(tokens=4096)
@pytest.mark.startup_completion(contains="Paris")
def test_markers_judge_the_restart_before_the_body_runs() -> None:
    """Each marker is a check of the gate, on the last restart; nothing is left to do here."""


@pytest.mark.startup_completion(prompt="What is the capital of France?", contains="Paris", chat=True)
def test_a_prompt_of_ones_own() -> None:
    """With ``prompt`` the running engine is asked."""


def test_the_running_engine(engine: Engine, startup_profile: Profile) -> None:
    assert engine.base_url.startswith("http://127.0.0.1:")
    assert engine.record.profile == startup_profile.name
    answer = assert_completion(engine.complete("The capital of France is"), contains="Paris")
    assert answer.model == startup_profile.engine.model


def test_one_more_restart(restart: Callable[[], tuple[StartRecord, StartRecord]]) -> None:
    before, after = restart()
    assert_kv(after, before)
    assert_ready(after, before, contains="Paris")
