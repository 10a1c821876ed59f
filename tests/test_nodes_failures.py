"""Whose fault it was: the node that ended first, though the log of another one complains the loudest."""

from __future__ import annotations

import pytest

from pytest_startup.assemble import explained
from pytest_startup.ends import ENDED, failure_of
from pytest_startup.engines.base import LogSummary
from pytest_startup.intake import LogReading
from pytest_startup.launch.base import Exit, NodeLog
from pytest_startup.record import Evidence, Failure

COMPLAINT = Evidence("log", "engine.log", "gloo … Connection closed by peer [10.78.0.2]:4711", line=9, node="head")


def reading(said: Failure) -> LogReading:
    return LogReading((), LogSummary(0, 1, 9, False, None, True, said, None, (), "warm-up"))


def logs(tmp_path):
    return [NodeLog(n, tmp_path / n / "engine.log", tmp_path / n / "lines.tsv") for n in ("head", "worker")]


def test_the_node_that_ended_first_stays_the_one_that_is_named(tmp_path):
    outside = failure_of(
        Exit("worker", None, "killed", "rank process 7 of node worker died"), "before it was ready", "warm-up", 12.0
    )
    said = Failure("warm-up", "collective-failed", "communication between ranks failed", COMPLAINT, "TP0", "head")
    final = explained(outside, reading(said), False, logs(tmp_path))
    assert final is not None
    assert (final.node, final.rank) == ("worker", None)
    assert final.summary == (
        "the engine ended before it was ready: rank process 7 of node worker died; "
        "the log only tells what followed: communication between ranks failed"
    )
    assert final.cause is None
    assert [e.where for e in final.last_lines] == ["head/engine.log"]
    assert final.kind == "process-died"


def test_a_cause_on_the_node_that_ended_says_all(tmp_path):
    outside = failure_of(Exit("head", 1, "exited", "exit code 1"), "before it was ready", "warm-up", 12.0)
    said = Failure("warm-up", "collective-failed", "communication between ranks failed", COMPLAINT, "TP0", "head")
    final = explained(outside, reading(said), False, logs(tmp_path))
    assert final is not None
    assert (final.node, final.rank, final.summary) == ("head", "TP0", "communication between ranks failed")


def test_a_lost_node_is_no_end_of_the_engine(tmp_path):
    outside = failure_of(
        Exit("worker", None, "node-lost", "nothing heard for 4.1 s"), "while it served", "serving", 90.0
    )
    said = Failure("serving", "hang", "a part of the engine stopped answering", COMPLAINT, "TP0", "head")
    final = explained(outside, reading(said), True, logs(tmp_path))
    assert final == outside
    assert outside.summary == "the start was given up while it served: nothing heard for 4.1 s"
    assert outside.kind == "node-lost"
    assert outside.helps
    assert outside.no_help


@pytest.mark.parametrize(
    ("reason", "kind", "helps"),
    [
        ("not-met", "node-missing", "rendezvous"),
        ("step-failed", "step-failed", "the step named"),
        ("not-started", "node-not-started", "start_when"),
    ],
)
def test_advice_fits_what_kept_a_node_from_starting(reason, kind, helps):
    """Only who waits at a rendezvous is helped by looking at its address."""
    failure = failure_of(Exit("head", None, reason, "node head: …"), "before it was ready", "launch", 3.0)
    assert (failure.kind, failure.node) == (kind, "head")
    assert failure.summary == "the start was given up before it was ready: node head: …"
    assert helps in failure.helps[0]
    assert ("rendezvous" in " ".join(failure.helps)) is (reason == "not-met")
    assert failure.no_help
    assert kind in ENDED


KILLED = Failure(
    "weights",
    "killed",
    "VLLM::Worker_TP1 (pid 7) was killed by SIGKILL",
    rank="TP1",
    after_seconds=9.0,
    helps=("dmesg",),
)


def test_what_was_seen_from_outside_comes_before_a_log_that_has_no_cause(tmp_path):
    last = Evidence("log", "engine.log", "the last line", line=9)
    said = Failure("profiling", "unknown", "the log shows that the engine died, not why", last_lines=(last,))
    final = explained(KILLED, reading(said), False, logs(tmp_path)[:1])
    assert final is not None
    assert final.summary == f"{KILLED.summary}; {said.summary}"
    assert (final.kind, final.phase, final.rank, final.node) == ("killed", "profiling", "TP1", "head")
    assert (final.cause, final.helps) == (None, ("dmesg",))
    assert [e.where for e in final.last_lines] == ["head/engine.log"]


def test_what_the_peers_of_a_killed_rank_say_is_no_cause(tmp_path):
    said = Failure("warm-up", "collective-failed", "communication between ranks failed", COMPLAINT, "TP0", "head")
    final = explained(KILLED, reading(said), False, logs(tmp_path)[:1])
    assert final is not None
    assert final.summary == f"{KILLED.summary}; the log only tells what followed: {said.summary}"
    assert (final.kind, final.phase, final.rank, final.cause) == ("killed", "weights", "TP1", None)
    assert final.last_lines[0].text == COMPLAINT.text


def test_a_log_that_knows_of_the_kill_too_gives_the_line(tmp_path):
    line = Evidence(
        "log", "engine.log", "Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}", line=5
    )
    said = Failure("compile", "killed", "a process was killed from outside", line)
    final = explained(KILLED, reading(said), False, logs(tmp_path)[:1])
    assert final is not None
    assert (final.summary, final.rank, final.phase, final.node) == (KILLED.summary, "TP1", "compile", "head")
    assert final.cause is not None
    assert final.cause.line == 5


def test_a_rank_that_its_engine_killed_after_a_real_error_is_no_cause(tmp_path):
    """An engine that gives up ends its own workers, at last by SIGKILL."""
    line = Evidence("log", "engine.log", "torch.OutOfMemoryError", line=5)
    said = Failure("weights", "out-of-device-memory", "out of device memory", line, "TP0")
    final = explained(KILLED, reading(said), False, logs(tmp_path)[:1])
    assert final is not None
    assert (final.kind, final.rank) == ("out-of-device-memory", "TP0")
    assert final.summary == f"out of device memory; {KILLED.summary}"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(-9, "killed"), (-15, "killed"), (-11, "crashed"), (137, "killed"), (134, "crashed"), (None, "process-died")],
)
def test_an_end_by_a_signal(code, kind):
    failure = failure_of(Exit("head", code, "killed", "…"), "before it was ready", "weights", 1.0)
    assert failure.kind == kind
    assert failure.helps
