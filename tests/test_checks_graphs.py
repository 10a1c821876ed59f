"""The graphs check: captures, modes, sizes and downgrades."""

from __future__ import annotations

import pytest
from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, Outcome, fact, profile, record, reference, says

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.graphs import captured, check, effective_mode
from pytest_startup.profile.expect import ExpectGraphs
from pytest_startup.record import Fact

PIECEWISE, FULL = "mixed prefill-decode, PIECEWISE", "decode, FULL"


def bar(kind: str, done: int, total: int | None = None, rank: str | None = None) -> Fact:
    return fact("graphs.captured", {"kind": kind, "done": done, "total": total or done}, rank, line=53)


def mode(name: str, requested: bool = False) -> Fact:
    return fact("graphs.mode", name, **({"requested": True} if requested else {}))


def served(kind: str, steps: int, padded: int = 1) -> Fact:
    """Two rows; the larger one is shown."""
    return fact("graphs.served", {"kind": kind, "steps": steps - 1, "padded": padded}, line=90, total=steps)


BOTH = (bar(PIECEWISE, 19), bar(FULL, 11))
LOWERED = fact("graphs.downgraded", "FULL is not supported with spec-decode; setting cudagraph_mode=PIECEWISE")

CASES = {
    "as on the reference": (ExpectGraphs(), BOTH, BOTH, PASSED, ()),
    "fewer of one kind": (
        ExpectGraphs(),
        BOTH,
        (bar(PIECEWISE, 3), bar(FULL, 3)),
        FAILED,
        (
            "fewer CUDA graphs were captured: 3 of 19 mixed prefill-decode, PIECEWISE, 3 of 11 decode, FULL",
            "from reference",
        ),
    ),
    "replayed by serving": (ExpectGraphs(), BOTH, (*BOTH, served("FULL", 4080), served("NONE", 3, 300)), PASSED, ()),
    "captured and never replayed": (
        ExpectGraphs(),
        BOTH,
        (*BOTH, served("NONE", 4083)),
        FAILED,
        (
            "FULL graphs were captured and serving never used them: NONE: 4,083 steps",
            "expected steps of serving in mode FULL",
        ),
    ),
    "a table that was cut after a long prompt": (
        ExpectGraphs(),
        BOTH,
        (*BOTH, served("NONE", 1, 900)),
        PASSED,
        (),
    ),
    "only piecewise ones replayed": (
        ExpectGraphs(),
        BOTH,
        (*BOTH, served("PIECEWISE", 12, 16), served("NONE", 4083)),
        FAILED,
        ("serving never used them: PIECEWISE: 12 steps, NONE: 4,083 steps",),
    ),
    "piecewise is all there is": (
        ExpectGraphs(),
        BOTH[:1],
        (*BOTH[:1], served("PIECEWISE", 12, 16), served("NONE", 4)),
        PASSED,
        (),
    ),
    "more than the reference": (ExpectGraphs(), (bar(FULL, 3),), BOTH, PASSED, ()),
    "eager": (
        ExpectGraphs(),
        BOTH,
        (mode("NONE", requested=True),),
        FAILED,
        (
            "no CUDA graph was captured, 19 mixed prefill-decode, PIECEWISE, 11 decode, FULL are expected",
            "--enforce-eager",
        ),
    ),
    "as many as the profile says, by short name": (
        ExpectGraphs(captured={"PIECEWISE": 19, "FULL": 11}),
        (),
        BOTH,
        PASSED,
        (),
    ),
    "fewer than the profile says": (
        ExpectGraphs(captured={"FULL": 12}),
        (),
        BOTH,
        FAILED,
        ("11 of 12 FULL", "from expect.graphs.captured"),
    ),
    "the mode that is expected": (ExpectGraphs(mode="FULL_AND_PIECEWISE"), (), BOTH, PASSED, ()),
    "a missing full pass": (
        ExpectGraphs(mode="FULL_AND_PIECEWISE"),
        (),
        (bar(PIECEWISE, 19), mode("FULL_AND_PIECEWISE", requested=True)),
        FAILED,
        ("CUDA graphs run in mode PIECEWISE, FULL_AND_PIECEWISE is expected", "from expect.graphs.mode"),
    ),
    "only decode graphs": (ExpectGraphs(mode="FULL_DECODE_ONLY"), (), (bar(FULL, 11),), PASSED, ()),
    "deliberately eager": (ExpectGraphs(mode="NONE"), (), (mode("NONE", requested=True),), PASSED, ()),
    "a mode stated by bars without kind": (
        ExpectGraphs(mode="FULL"),
        (),
        (fact("graphs.captured", 35, total=35), mode("FULL")),
        PASSED,
        (),
    ),
    "a mode that nothing shows": (
        ExpectGraphs(mode="FULL"),
        (),
        (),
        NOT_OBSERVABLE,
        ("nothing shows the graph mode, FULL is expected",),
    ),
    "a downgrade": (
        ExpectGraphs(),
        (),
        (*BOTH, LOWERED),
        FAILED,
        ("the engine lowered its CUDA graph mode", "not supported with spec-decode", "name it: expect.graphs.mode"),
    ),
    "a downgrade to the mode that is meant": (
        ExpectGraphs(mode="PIECEWISE"),
        (),
        (bar(PIECEWISE, 19), LOWERED),
        PASSED,
        (),
    ),
    "capture broken off": (
        ExpectGraphs(),
        (),
        (bar(FULL, 5, 11, "TP1"),),
        FAILED,
        ("capture of decode, FULL stopped at 5 of 11 on TP1",),
    ),
    "sizes of the profile": (
        ExpectGraphs(sizes=(1, 2)),
        (),
        (*BOTH, fact("graphs.sizes", [1, 2, 4])),
        PASSED,
        (),
    ),
    "a size is missing": (
        ExpectGraphs(sizes=(1, 2, 8)),
        (),
        (*BOTH, fact("graphs.sizes", [1, 2, 4])),
        FAILED,
        ("no graph for batch sizes 8", "sizes 1, 2, 4", "from expect.graphs.sizes"),
    ),
    "sizes that nothing shows": (
        ExpectGraphs(sizes=(1,)),
        (),
        BOTH,
        NOT_OBSERVABLE,
        ("nothing shows the capture sizes",),
    ),
    "too slow": (
        ExpectGraphs(max_seconds=60),
        (),
        (*BOTH, fact("graphs.seconds", 69, "TP0")),
        FAILED,
        ("graph capture took 69 s on TP0, the limit is 60 s",),
    ),
    "a time that nothing shows": (
        ExpectGraphs(max_seconds=60),
        (),
        BOTH,
        NOT_OBSERVABLE,
        ("how long graph capture took",),
    ),
    "a CPU engine: nothing was asked for and nothing captured": (
        ExpectGraphs(),
        (mode("NONE", requested=True),),
        (mode("NONE", requested=True), fact("graphs.sizes", [], requested=True)),
        NOT_OBSERVABLE,
        ("a progress bar or line of graph capture in the log",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(case: tuple[ExpectGraphs, tuple[Fact, ...], tuple[Fact, ...], Outcome, tuple[str, ...]]) -> None:
    expect, before, now, outcome, words = case
    old = reference(*before) if before else None
    says(check(profile(expect={"graphs": expect}), old, record(*now), None), outcome, *words)


def test_baseline() -> None:
    accepted = Baseline("p", {}, {"process": Population({"graphs.captured": {FULL: 12}})})
    says(check(profile(), None, record(*BOTH), accepted), FAILED, "11 of 12 decode, FULL", "from baseline")


def test_a_bar_cut_in_two_goes_on_without_its_rank() -> None:
    cut = record(bar("FULL", 3, 11, "TP0"), bar("FULL", 11))
    assert {k: d for k, (d, _) in captured(cut).items()} == {"FULL": 11}


def test_the_slowest_rank_decides() -> None:
    ranks = record(bar("FULL", 11, 11, "TP0"), bar("FULL", 9, 11, "TP1"), bar("FULL", 3, 11, "TP0"))
    assert {k: d for k, (d, _) in captured(ranks).items()} == {"FULL": 9}


def test_effective_mode() -> None:
    kinds = [(PIECEWISE, FULL), ("FULL",), ("PIECEWISE",), ()]
    assert [effective_mode(dict.fromkeys(k)) for k in kinds] == ["FULL_AND_PIECEWISE", "FULL", "PIECEWISE", "NONE"]
