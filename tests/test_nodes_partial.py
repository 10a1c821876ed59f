"""A restart of some nodes only: what started is judged; what was left up is neither red nor silently green."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, fact, profile, record, reference, says

from pytest_startup.checks.base import Outcome
from pytest_startup.checks.registry import run
from pytest_startup.launch.nodes.rendezvous import Stand, missing
from pytest_startup.ledger.book import build
from pytest_startup.profile.expect import Expect, ExpectArtifacts, ExpectGraphs, ExpectLog, LogPattern
from pytest_startup.profile.model import ContainerFile, ContainerLaunch, Launch
from pytest_startup.profile.nodes import Node, NodeContainer, files_of
from pytest_startup.record import Fact, StartRecord
from pytest_startup.report.results import ItemResult, ProfileResult
from pytest_startup.report.rows import start_row
from pytest_startup.report.terminal import left_up_lines

KEY = "ab" * 32
ARGV = ("vllm", "serve", "m", "--tensor-parallel-size", "2")


def loaded(rank: int) -> Fact:
    path = f"/cache/torch_compile_cache/torch_aot_compile/{KEY}/rank_{rank}_0/model"
    node = ("head", "worker")[rank]
    return fact("compile.cache_loaded", f"Directly load AOT compilation from path {path}", f"TP{rank}", node=node)


def pid(node: str, number: int) -> Fact:
    return fact("process.pid", number, source="process", node=node)


def ranks(node: str, *numbers: int) -> Fact:
    return fact("node.ranks", list(numbers), source="process", node=node)


def up(node: str = "head", since: str = "reference") -> Fact:
    return fact("node.left_up", since, source="process", node=node, text=f"node {node} was left up")


RANKS = (ranks("head", 0), ranks("worker", 1))
BEFORE = reference(loaded(0), loaded(1), pid("head", 10), pid("worker", 11), *RANKS, argv=ARGV)


def restarted(*facts: Fact, since: str = "reference") -> StartRecord:
    """The worker alone was."""
    return record(up(since=since), pid("head", 10), *RANKS, *facts, argv=ARGV)


def judged(check: str, start: StartRecord, before: StartRecord = BEFORE, **expect: Any):
    return run(check, profile(expect=Expect(**expect)), before, start, None)


def test_a_node_that_was_left_up_has_nothing_to_load():
    verdict = judged("artifacts", restarted(loaded(1), pid("worker", 12)))
    says(verdict, PASSED)
    assert verdict.numbers["left up"] == "head since reference"  # not silently
    assert any(e.text == "node head was left up" for e in verdict.evidence)


def test_ranks_that_the_profile_expects_are_those_that_started():
    wanted = {"artifacts": ExpectArtifacts(ranks=2)}
    says(judged("artifacts", restarted(loaded(1)), **wanted), PASSED)
    says(judged("artifacts", restarted(), **wanted), FAILED)


def test_the_node_that_started_is_judged_as_ever():
    says(judged("artifacts", restarted(pid("worker", 12))), FAILED, "the reference start saved or loaded one")
    whole = record(loaded(1), pid("head", 12), pid("worker", 13), *RANKS, argv=ARGV)
    says(judged("artifacts", whole), FAILED, "rank TP0 loaded no compiled artifact")


def test_without_ranks_in_the_profile_those_that_speak_are_judged():
    start = record(up(), loaded(1), argv=ARGV)
    says(judged("artifacts", start), PASSED)


def test_the_process_of_a_node_that_was_left_up_is_the_one_before():
    kernel = fact("host.kernel", "6.1", source="host", node="worker")
    same = judged("identity", restarted(pid("worker", 12), kernel, loaded(1)))
    says(same, PASSED)
    says(judged("identity", restarted(pid("worker", 11))), FAILED, "nothing was restarted", "worker: pid 11")


def test_the_engine_of_a_node_that_was_left_up_is_the_process_before():
    """A supervisor there that started it again: by its first process, or below one that stayed."""

    def serving(number: int) -> Fact:
        told = fact("process.argv", ["vllm", "serve"], source="process", node="head")
        return replace(told, evidence=replace(told.evidence, where=f"/proc/{number}/cmdline"))

    before = replace(BEFORE, facts=(*BEFORE.facts, serving(20)))
    started = (pid("worker", 12), loaded(1))
    says(judged("identity", restarted(*started, serving(20)), before), PASSED)
    again = judged("identity", restarted(*started, serving(21)), before)
    says(again, FAILED, "node head was to be left up, and its engine is another process", "/proc/21/cmdline")
    other = record(up(), pid("head", 13), *RANKS, *started, argv=ARGV)
    says(judged("identity", other), FAILED, "node head was to be left up, and its engine is another process", "13")
    later = restarted(*started, serving(21), since="restart-1")  # of a start that is not at hand
    says(judged("identity", later, before), PASSED)


GRAPHS = fact("graphs.mode", "FULL", node="head")


def test_what_only_the_node_left_up_shows_rests_on_its_own_start_and_says_so():
    wanted = {"graphs": ExpectGraphs(mode="FULL")}
    before = reference(*BEFORE.facts, GRAPHS, argv=ARGV)
    verdict = judged("graphs", restarted(loaded(1)), before, **wanted)
    says(verdict, PASSED)
    assert verdict.numbers["rests on"] == "reference"
    later = judged("graphs", restarted(loaded(1), since="restart-1"), before, **wanted)  # of a start not at hand
    says(later, NOT_OBSERVABLE, "left up, so nothing of its start is seen: head since restart-1")
    says(judged("graphs", restarted(loaded(1)), **wanted), NOT_OBSERVABLE)  # never shown at all
    wrong = reference(*BEFORE.facts, fact("graphs.mode", "NONE", node="head"), argv=ARGV)
    assert judged("graphs", restarted(loaded(1)), wrong, **wanted).outcome is not Outcome.PASSED


def test_required_lines_are_demanded_of_nodes_that_started():
    def line(node: str, pattern: str) -> Fact:
        return fact("log.match", "x", f"TP{node == 'worker':d}", node=node, pattern=pattern, kind="require")

    def wanted(pattern: str, every: str) -> dict[str, ExpectLog]:
        return {"log": ExpectLog(require=(LogPattern(pattern, every=every),))}

    start = restarted(line("worker", "experts"))
    for every in ("rank", "node", "start"):
        says(judged("log", start, **wanted("experts", every)), PASSED)
    before = reference(*BEFORE.facts, line("head", "11/11"), argv=ARGV)
    says(judged("log", start, before, **wanted("11/11", "start")), PASSED)  # the head's own line, of its own start
    says(judged("log", start, **wanted("11/11", "start")), NOT_OBSERVABLE, "and head was left up")


def test_the_ledger_says_whom_it_does_not_know():
    book = build(restarted(loaded(1)), reference=BEFORE)
    assert [w.name for w in book.workers] == ["TP1"]
    (unknown,) = [u for u in book.unknowns if u.tier == "all"]
    assert (
        unknown.reason == "node head was left up since reference: it loaded, tuned and compiled nothing in this start"
    )


def test_the_end_of_a_run_tells_who_was_left_up():
    row = start_row(restarted(loaded(1)))
    item = ItemResult("restart-1", "graphs", "passed", numbers={"rests on": "reference"})
    key = ("restart-1", "graphs")
    result = ProfileResult("p", "p", expected=[key], rows={"restart-1": row}, results={key: item})
    assert left_up_lines(result) == [
        "left up   restart-1: head since reference: not started, so nothing of it is judged; graphs: what they rest on "
        "is of reference"
    ]
    assert left_up_lines(ProfileResult("p", "p", rows={"reference": start_row(BEFORE)})) == []


def test_a_node_left_up_that_comes_to_no_rendezvous_again():
    waits = Stand()
    waits.feed(b"world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://192.0.2.1:29600 backend=gloo\n", 1.0)
    found = missing({"head": waits, "worker": Stand(kept=True)}, ["head", "worker"], 20.0, 10.0)
    assert found is not None
    assert found.nodes == ("worker",)
    assert "it was left up and does not come again: this engine needs all its nodes restarted" in found.text


def test_image_and_files_are_shown_by_every_node():
    """One that says nothing of its container is not covered by the others."""
    image, digest = f"sha256:{'1' * 64}", "2" * 64
    nodes = tuple(Node(n, f"192.0.2.{i}") for i, n in enumerate(("head", "worker"), 1))
    container = ContainerLaunch(image, files=(ContainerFile(Path("/a.py"), "/in/a.py", digest),))
    pinned = profile(launch=Launch(container=container), nodes=nodes)

    def of(node: str, found: str = digest) -> tuple[Fact, Fact]:
        file = fact("file.sha256", found, source="container", node=node, path="/in/a.py")
        return fact("container.image", image, source="container", node=node), file

    def judge(*facts: Fact):
        return run("identity", pinned, None, reference(*facts), None)

    says(judge(*of("head"), *of("worker")), PASSED)
    says(judge(*of("head")), NOT_OBSERVABLE, "image of the running container on worker", "hash of /in/a.py on worker")
    says(judge(*of("head"), *of("worker", "3" * 64)), FAILED, "worker")
    own = replace(nodes[1], container=NodeContainer(files=(ContainerFile(Path("/b.py"), "/in/a.py", "3" * 64),)))
    pinned = replace(pinned, nodes=(nodes[0], own))
    assert [[str(f.host) for f in files_of(pinned, n)] for n in pinned.nodes] == [["/a.py"], ["/b.py"]]
    says(judge(*of("head"), *of("worker", "3" * 64)), PASSED)  # the worker's own file stands for the common one
    says(judge(*of("head"), *of("worker")), FAILED, "nodes.worker.container.files.0")
