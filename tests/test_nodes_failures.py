"""Whose fault it was: the node that ended first, though the log of another one complains the loudest."""

from __future__ import annotations

from pytest_startup.assemble import explained
from pytest_startup.ends import failure_of
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
        "communication between ranks failed; the engine ended before it was ready: rank process 7 of node worker died"
    )
    assert final.cause is not None
    assert final.cause.where == "head/engine.log"


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
