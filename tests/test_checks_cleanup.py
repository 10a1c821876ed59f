"""The cleanup check: what a stop left behind, and stops that proved nothing."""

from __future__ import annotations

from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, profile, record, says

from pytest_startup.checks.cleanup import check
from pytest_startup.record import Leftover


def test_everything_released() -> None:
    gone = (Leftover("pid", "4711", True, 0.5), Leftover("pid", "4712", True, 1.9), Leftover("port", "8000", True))
    verdict = check(profile(), None, record(cleanup=gone), None)
    says(verdict, PASSED)
    assert verdict.numbers == {"pid released s": 1.9}


def test_each_leftover_is_a_finding_with_what_to_do() -> None:
    left = (
        Leftover("pid", "4711 VLLM::EngineCore", False, 60.0),
        Leftover("gpu-memory", "GPU 1: 101.2 GiB", False, node="worker"),
        Leftover("shm", "/dev/shm/psm_1", False),
        Leftover("container", "startup-p", False),
        Leftover("socket", "x", False),
    )
    verdict = check(profile(), None, record(cleanup=left), None)
    says(
        verdict,
        FAILED,
        "left behind after the stop: pid 4711 VLLM::EngineCore",
        "still there after 60.0 s",
        "left behind after the stop: gpu-memory GPU 1: 101.2 GiB on worker",
        "pytest-startup clean",
        "from deadlines.release",
    )
    assert len(verdict.findings) == 5


def test_a_stop_that_was_not_made_proves_nothing() -> None:
    for nothing in (None, ()):
        says(check(profile(), None, record(cleanup=nothing), None), NOT_OBSERVABLE, "proof, after a stop")


def test_an_engine_that_ended_by_itself_before_the_stop() -> None:
    left = (
        Leftover("pid", "4711", True, 0.5),
        Leftover("engine", "pid 4711 ended with exit code 0 after 31.0 s", False),
    )
    verdict = check(profile(), None, record(cleanup=left), None)
    says(verdict, FAILED, "the engine did not live until it was stopped", "exit code 0 after 31.0 s")
    assert len(verdict.findings) == 1
