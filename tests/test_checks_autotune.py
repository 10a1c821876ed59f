"""The autotune check: per rank loaded, hit, tuned, saved; divergence, silence and an autotuner that did nothing."""

from __future__ import annotations

import pytest
from helpers_records import (
    FAILED,
    NOT_EXERCISED,
    NOT_OBSERVABLE,
    PASSED,
    Outcome,
    fact,
    profile,
    record,
    reference,
    says,
)

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.autotune import check, records_loaded
from pytest_startup.profile.expect import ExpectAutotune
from pytest_startup.profile.model import Restart
from pytest_startup.record import Fact

GEMM1, GEMM2 = "trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"


class Lines:
    """Lines of one start in the order in which they are written; facts of bars come last, as from the reader.

    A rank ``pid=7`` is a worker whose prefix has no rank.
    """

    def __init__(self) -> None:
        self.at = 0
        self.facts: list[Fact] = []
        self.bars: list[Fact] = []

    def say(self, name: str, value: object, rank: str | None, **detail: object) -> Lines:
        self.at += 1
        into = self.bars if name == "autotune.tuned" else self.facts
        nameless = rank is not None and rank.startswith("pid=")
        text = f"(Worker {rank}) {name} {value}" if nameless else ""
        into.append(fact(name, value, None if nameless else rank, line=self.at, text=text, **detail))
        return self

    def context(self, rank: str | None) -> Lines:
        return self.say("autotune.started", "Autotuning process starts", rank).say(
            "autotune.ended", "Autotuning process ends", rank
        )

    def hits(self, rank: str | None, records: int = 42) -> Lines:
        self.say("autotune.loaded", records, rank).say("autotune.started", "Autotuning process starts", rank)
        return self.say("autotune.hit", GEMM1, rank).say("autotune.hit", GEMM2, rank)

    def tunes(self, rank: str | None, saved: int | None = 42) -> Lines:
        for op in (GEMM1, GEMM2):
            self.say("autotune.tuned", {"kind": op, "done": 21, "total": 21}, rank)
        if saved is not None:
            self.say("autotune.saved", saved, rank, new=saved).say("autotune.loaded", saved, rank)
        return self

    def all(self) -> tuple[Fact, ...]:
        return (*self.facts, *self.bars)


ALL = ExpectAutotune(ranks=2, records_per_rank=42)
ONE = ExpectAutotune(records_per_rank=42)
COLD = Lines().tunes("TP0_EP0").tunes("TP1_EP1").all()
DP = (fact("kv.tokens", 1000, "DP0"), fact("kv.tokens", 1000, "DP1"))
COLD_ONE = Lines().tunes(None).all()

CASES = {
    "every rank loads and hits": (ALL, COLD, Lines().hits("TP0_EP0").hits("TP1_EP1").all(), PASSED, ()),
    "one rank tunes again": (
        ALL,
        COLD,
        Lines().hits("TP0_EP0").tunes("TP1_EP1").all(),
        FAILED,
        (
            "rank TP1_EP1 tuned again; every rank must use its own 42 records",
            "expected 42 own records per rank, every op hit, nothing tuned",
            "TP0_EP0: 42 loaded; gemm1 hit; gemm2 hit",
            "TP1_EP1: nothing loaded; gemm1 tuned 21/21; gemm2 tuned 21/21",
            "raising the KV budget",
        ),
    ),
    "all ranks tune again": (
        ALL,
        COLD,
        Lines().tunes("TP0_EP0", None).tunes("TP1_EP1", None).all(),
        FAILED,
        ("ranks TP0_EP0 and TP1_EP1 tuned again",),
    ),
    "a reload after tuning is no hit": (
        ONE,
        COLD_ONE,
        Lines().tunes(None).all(),
        FAILED,
        ("the engine tuned again; every rank must use its own 42 records",),
    ),
    "saved with 0 new records is no tuning": (
        ONE,
        COLD_ONE,
        Lines().hits(None).say("autotune.saved", 42, None, new=0).all(),
        PASSED,
        (),
    ),
    "one op is missed": (
        ONE,
        COLD_ONE,
        Lines().say("autotune.loaded", 42, None).say("autotune.hit", GEMM1, None).all(),
        FAILED,
        ("gemm2", "every rank must use its own 42 records"),
    ),
    "fewer records than expected": (
        ONE,
        (),
        Lines().hits(None, records=21).all(),
        FAILED,
        ("the engine has 21 records, 42 are expected", "from expect.autotune.records_per_rank"),
    ),
    "a rank that says nothing": (
        ALL,
        COLD,
        Lines().hits("TP0_EP0").all(),
        FAILED,
        ("TP1_EP1",),
    ),
    "no line at all, while the reference tuned": (
        ALL,
        COLD,
        (),
        FAILED,
        ("the reference start tuned or used tuned records, this start shows no autotune line at all", "from reference"),
    ),
    "opened and closed empty on engines whose workers have no name": (
        None,
        (*DP, *Lines().context(None).context(None).all()),
        (*DP, *Lines().context(None).context(None).all()),
        NOT_EXERCISED,
        ("the autotuner opened and closed and did nothing", "waive the check"),
    ),
    "records refused by a worker without a name": (
        None,
        (*DP, *Lines().context(None).context(None).all()),
        (*DP, *Lines().context(None).say("autotune.refused", "another environment", None).all()),
        FAILED,
        ("records were refused: another environment wrote them", "prime the cache"),
    ),
    "two engines whose workers have no name use their records": (
        None,
        (*DP, *Lines().tunes("pid=7").tunes("pid=9").all()),
        (*DP, *Lines().hits("pid=17").hits("pid=19").all()),
        PASSED,
        (),
    ),
    "one of two engines whose workers have no name tunes again": (
        None,
        (*DP, *Lines().tunes("pid=7").tunes("pid=9").all()),
        (*DP, *Lines().hits("pid=17").tunes("pid=19").all()),
        FAILED,
        (
            "DP1 tuned again; every rank must use its own records",
            "gemm1 tuned 21/21",
            "42 loaded; gemm1 hit; gemm2 hit",
        ),
    ),
    "a third process without a name": (
        None,
        (*DP, *Lines().tunes("pid=7").tunes("pid=9").all()),
        (*DP, *Lines().hits("pid=17").hits("pid=18").hits("pid=19").all()),
        NOT_OBSERVABLE,
        ("no autotune line names rank DP0, and 12 name no rank",),
    ),
    "new records of a worker without a name": (
        None,
        (*DP, *Lines().tunes("pid=7").tunes("pid=9").all()),
        (*DP, *Lines().hits("pid=17").context("pid=19").say("autotune.saved", 43, "pid=19", new=1).all()),
        FAILED,
        ("DP1 tuned again",),
    ),
    "opened and closed empty": (
        None,
        Lines().context(None).all(),
        Lines().context(None).all(),
        NOT_EXERCISED,
        ("the autotuner opened and closed and did nothing", "waive the check"),
    ),
    "no line anywhere": (None, (), (), NOT_OBSERVABLE, ("an autotune line of any rank in the log",)),
    "tuning at every start is expected": (
        ExpectAutotune(hits="none"),
        COLD_ONE,
        Lines().tunes(None).all(),
        PASSED,
        (),
    ),
    "a hit where tuning is expected": (
        ExpectAutotune(hits="none"),
        COLD_ONE,
        Lines().hits(None).all(),
        FAILED,
        ("records of a file were used, every start is expected to tune", "from expect.autotune.hits"),
    ),
    "anything goes": (ExpectAutotune(hits="any"), COLD_ONE, Lines().tunes(None).all(), PASSED, ()),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_restart(
    case: tuple[ExpectAutotune | None, tuple[Fact, ...], tuple[Fact, ...], Outcome, tuple[str, ...]],
) -> None:
    expect, before, now, outcome, words = case
    wanted = profile(expect={"autotune": expect})
    says(check(wanted, reference(*before), record(*now), None), outcome, *words)


REFERENCE_CASES = {
    "both ranks tune": (ALL, COLD, PASSED, ()),
    "one rank tunes too little": (
        ALL,
        Lines().tunes("TP0_EP0").say("autotune.tuned", {"kind": GEMM1, "done": 21, "total": 21}, "TP1_EP1").all(),
        FAILED,
        ("rank TP1_EP1 has 21 records, 42 are expected",),
    ),
    "opened and closed empty": (None, Lines().context(None).all(), NOT_EXERCISED, ("did nothing",)),
    "two engines whose workers have no name tune": (
        None,
        (*DP, *Lines().tunes("pid=7").tunes("pid=9").all()),
        PASSED,
        (),
    ),
    "a rank that is silent beside a bar without a name": (
        ALL,
        Lines().tunes("TP0_EP0").say("autotune.tuned", {"kind": GEMM1, "done": 21, "total": 21}, None).all(),
        FAILED,
        ("no autotune line of rank TP1_EP1",),
    ),
    "records refused and nothing tuned": (
        None,
        Lines().context("TP0").say("autotune.refused", "x", "TP0").all(),
        NOT_EXERCISED,
        ("records were refused, and nothing was tuned in their place",),
    ),
    "old records refused, then tuned, by workers without a name": (
        None,
        (
            *DP,
            *Lines().say("autotune.refused", "x", "pid=7").tunes("pid=7").all(),
            *Lines().say("autotune.refused", "x", "pid=9").tunes("pid=9").all(),
        ),
        PASSED,
        (),
    ),
    "a warm reference": (ONE, Lines().hits(None).all(), PASSED, ()),
}  # fmt: skip


@pytest.mark.parametrize("case", REFERENCE_CASES.values(), ids=REFERENCE_CASES)
def test_reference(case: tuple[ExpectAutotune | None, tuple[Fact, ...], Outcome, tuple[str, ...]]) -> None:
    expect, now, outcome, words = case
    says(check(profile(expect={"autotune": expect}), None, reference(*now), None), outcome, *words)


def test_ranks_that_are_called_by_number_are_not_called_so_twice() -> None:
    """``rank 1`` is how a worker is called that is expected and that no line names."""
    expect = {"autotune": ExpectAutotune(ranks=2, hits="any")}
    before = reference(*Lines().hits("rank 0").hits("rank 1").all())
    again = record(*Lines().tunes("rank 0").tunes("rank 1").all())
    says(
        check(profile(expect={"autotune": ExpectAutotune(ranks=2)}), before, again, None), FAILED, "ranks 0 and 1 tuned"
    )
    verdict = check(profile(expect=expect), before, record(*Lines().hits("rank 0").all()), None)
    says(verdict, FAILED, "no autotune line of rank 1")
    assert not any("rank rank" in f.summary for f in verdict.findings)


def test_a_wiped_tuning_cache_is_meant_to_be_tuned_again() -> None:
    wiping = profile(restarts=(Restart("restart-1", "process", wipe=("tuned",)),), expect={"autotune": ONE})
    says(check(wiping, reference(*COLD_ONE), record(*Lines().tunes(None).all()), None), PASSED)


def test_records_loaded_counts_only_what_came_before_tuning() -> None:
    assert records_loaded(record(*Lines().hits("TP0").tunes("TP1").all())) == {"TP0": 42}


def test_fewer_records_than_the_baseline_has() -> None:
    """Half of the records are gone since the night that was accepted, at the reference start and at the restart."""
    good, half = (record(*Lines().hits(None, records=n).all()) for n in (42, 21))
    accepted = Baseline("p", {}, {"process": Population({"autotune.records": records_loaded(good)})})
    base = reference(*Lines().hits(None, records=21).all())
    says(check(profile(), base, half, accepted), FAILED, "loaded 21 records, the baseline has 42", "from baseline")
    says(check(profile(), base, good, accepted), PASSED)
