"""An engine that ends by itself while the user's own tests use it: told, red, and not replaced by another one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from helpers_launch import isolate, until
from helpers_live import Outside, Site, quick

from pytest_startup.clean import main as clean
from pytest_startup.gate import ENDED
from pytest_startup.launch.base import LaunchError
from pytest_startup.profile.expect import Prompt

QUESTION = Prompt("The capital of France is", max_tokens=4)
WAIVED = "waive: [{{check: backend, reason: x}}, {{check: autotune, reason: x}}, {{check: graphs, reason: x}}]\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    isolate(tmp_path, monkeypatch)
    made = Site(tmp_path)
    made.write(text=quick() + WAIVED)
    return made


def test_a_dead_engine_is_told_and_only_restarted_on_request(site: Site) -> None:
    with site.gate() as gate:
        running = gate.engine()
        os.kill(int(next(f.value for f in running.facts() if f.name == "process.pid")), signal.SIGKILL)
        until(lambda: running.exited() is not None, "the end is noticed")
        for _ in range(2):
            with pytest.raises(LaunchError, match=r"extra-1: the engine ended by itself: .*SIGKILL"):
                gate.engine()
            with pytest.raises(LaunchError, match=r"ended by itself"):
                gate.complete(QUESTION)
        assert list(gate.records()) == ["extra-1"]
        before, after = gate.restart()
        assert (before.name, after.name) == ("extra-1", "extra-2")
        assert before.cleanup is not None
        assert [left.kind for left in before.cleanup if not left.released] == ["engine"]
        assert gate.complete(QUESTION).status == 200
    assert [note for note in gate.notes() if note.startswith(ENDED)] == [f"{ENDED}extra-1: {before.cleanup[-1].what}"]


OWN = """\
import contextlib, os, signal
import pytest

def test_that_kills_and_does_not_mind(engine):
    pid = next(f.value for f in engine.record.facts if f.name == "process.pid")
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(pytest.fail.Exception):
        while True:
            engine.complete("The capital of France is")
"""
AFTER = """
def test_after_it(engine):
    assert engine.complete("The capital of France is").status == 200
"""


@pytest.mark.parametrize(("more", "failed"), [("", 0), (AFTER, 1)], ids=["nobody minds", "the next one does"])
@pytest.mark.parametrize("workers", [(), ("-n", "1", "-p", "xdist")], ids=["alone", "xdist"])
def test_own_tests_that_pass_do_not_hide_it(site: Site, more: str, failed: int, workers: tuple[str, ...]) -> None:
    (site.folder / "test_own.py").write_text(OWN + more)
    code, out = Outside(site, "test_own.py", *workers).end()
    assert code == 1, out
    assert "ended by itself: extra-1: " in out
    assert "was killed by SIGKILL" in out
    assert "REJECTED  the engine did not live until it was stopped. " in out
    assert f"\nevidence in {site.artifacts}" in out
    assert f"{failed} failed" in out or not failed, out
    assert out.count("\nextra-1: the engine ended by itself: ") == failed


RANK = """\
import os, pathlib, signal, time

def test_that_kills_a_rank(engine):
    def serves(seconds):
        up = time.monotonic()
        while time.monotonic() < up + seconds:
            assert engine.complete("The capital of France is").status == 200

    serves(3)  # what ends sooner may be a helper of the start
    os.kill(int(pathlib.Path({pid_file!r}).read_text()), signal.SIGKILL)
    serves(2)  # processes are looked at twice a second
"""


def test_a_rank_that_ends_while_the_first_process_answers(site: Site) -> None:
    pid_file = site.folder / "rank.pid"
    rank = {"name": "VLLM::Worker_TP1", "at": "open", "pid_file": str(pid_file)}
    site.write({"children": [rank]}, text=quick() + WAIVED)
    (site.folder / "test_own.py").write_text(RANK.format(pid_file=str(pid_file)))
    code, out = Outside(site, "test_own.py").end()
    assert code == 1, out
    assert "ended by itself: extra-1: VLLM::Worker_TP1" in out
    assert "1 failed" not in out


#: Goes wrong in an own test that passes all the same.
DIES = """\
import contextlib, os, pathlib, signal, time
import pytest

RANK = pathlib.Path({pid_file!r})

def serves(engine, seconds):
    up = time.monotonic()
    while time.monotonic() < up + seconds:
        assert engine.complete("The capital of France is").status == 200

def test_it(engine):
    {body}
"""
KILLS_ENGINE = (
    "pid = next(f.value for f in engine.record.facts if f.name == 'process.pid'); os.kill(pid, signal.SIGKILL)"
)
KILLS_RANK = "serves(engine, 3); os.kill(int(RANK.read_text()), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("body", "args", "said"),
    [
        (KILLS_RANK, (), "ended by itself: extra-1: VLLM::Worker_TP1"),
        (f"{KILLS_RANK}; serves(engine, 2)", ("--startup-keep",), "ended by itself: restart-1: VLLM::Worker_TP1"),
        (KILLS_RANK, ("-k", "not cleanup"), "ended by itself: restart-1: VLLM::Worker_TP1"),
        (KILLS_ENGINE, ("-k", "not cleanup"), "ended by itself: restart-1: the engine's process"),
        (KILLS_ENGINE, (), "ended by itself: extra-1: the engine's process"),
        (KILLS_RANK, ("--startup-keep", "-k", "not cleanup"), "ended by itself: restart-1: VLLM::Worker_TP1"),
        (KILLS_ENGINE, ("--startup-keep", "-k", "not cleanup"), "ended by itself: restart-1: the engine's process"),
    ],
    ids=[
        "as the very last thing",
        "and is left up as asked",
        "of a planned start without its cleanup",
        "the whole engine without its cleanup",
        "the whole engine as the very last thing",
        "and is left up as asked, without its cleanup",
        "the whole engine, left up as asked",
    ],
)
def test_what_ends_in_a_test_that_does_not_mind(site: Site, body: str, args: tuple[str, ...], said: str) -> None:
    pid_file = site.folder / "rank.pid"
    rank = {"name": "VLLM::Worker_TP1", "at": "open", "pid_file": str(pid_file)}
    # What held much memory is on its way out for a while.
    site.write({"children": [rank], "allocate": 1 << 30}, text=quick() + WAIVED)
    (site.folder / "test_own.py").write_text(DIES.format(pid_file=str(pid_file), body=body))
    run = Outside(site, "test_own.py", *args)
    try:
        code, out = run.end()
    finally:
        clean(["--yes"])
    assert code == 1, out
    assert said in out


def test_a_restart_that_fails_is_told_although_the_test_swallows_it(site: Site) -> None:
    site.write({}, {}, {"exit": {"at": "start", "code": 3}}, text=quick() + WAIVED)
    body = "import contextlib, pytest\n\ndef test_it(restart):\n    with contextlib.suppress(pytest.fail.Exception):\n"
    (site.folder / "test_own.py").write_text(body + "        restart()\n")
    code, out = Outside(site, "test_own.py").end()
    assert code == 1, out
    assert "ended by itself: extra-1: " in out
