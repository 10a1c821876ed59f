"""The checks on recorded starts of a real engine: which go red for a real fault, and which stay green."""

from __future__ import annotations

import pytest
from helpers_h200 import profile_of, start
from helpers_records import text_of

from pytest_startup.checks.base import Outcome, Verdict
from pytest_startup.checks.registry import run
from pytest_startup.profile.expect import Expect, ExpectAutotune, ExpectBackend, ExpectGraphs, ExpectKv, Range
from pytest_startup.profile.model import Profile
from pytest_startup.record import StartRecord

#: What these records can show; the rest (workload, cleanup …) was not recorded.
SHOWN = ("identity", "ready", "phases", "backend", "autotune", "artifacts", "graphs", "kv", "memory")
MOE = Expect(
    backend=ExpectBackend(attention="FLASH_ATTN", moe="FLASHINFER_CUTLASS"),
    autotune=ExpectAutotune(records_per_rank=42, ops=("gemm1", "gemm2")),
    graphs=ExpectGraphs(mode="FULL_AND_PIECEWISE", captured={"PIECEWISE": 19, "FULL": 11}),
    kv=ExpectKv(Range(exact=131_072)),
)
PAIR = Expect(autotune=ExpectAutotune(ranks=2, records_per_rank=42))


def judged(profile: Profile, reference: StartRecord | None, one: StartRecord) -> dict[str, Verdict]:
    return {check: run(check, profile, reference, one, None) for check in SHOWN}


def not_passed(verdicts: dict[str, Verdict]) -> dict[str, str]:
    return {check: v.outcome.value for check, v in verdicts.items() if v.outcome is not Outcome.PASSED}


def pair(model: str, cold: str, warm: str, expect: Expect | None = None) -> dict[str, Verdict]:
    return judged(profile_of(model, expect), start(cold, "reference"), start(warm))


EMPTY_TUNER = {"autotune": "not exercised"}  # a dense model uses no tuned records here
RANDOM_TEXT = {"ready": "failed"}  # random weights: broken characters

CASES = {
    # the case of 42 records on one rank: tuned and saved, then loaded and hit
    "tuned records are hit": ("moe", "moefi-1-cold", "moefi-2-warm", MOE, {}, ()),
    # two ranks with expert parallel: this release keeps no records, every start tunes again
    "two ranks tune again": (
        "moe",
        "moe-tp2ep-1-cold",
        "moe-tp2ep-2-warm",
        PAIR,
        {"autotune": "failed"},
        (
            "ranks TP0_EP0 and TP1_EP1 tuned again; every rank must use its own 42 records",
            "TP0_EP0: nothing loaded; gemm1 tuned 21/21; gemm2 tuned 21/21",
            "prime the cache once per rank",
        ),
    ),
    "a good pair of ranks": ("dense", "dense-tp2-1-cold", "dense-tp2-2-warm", None, {**EMPTY_TUNER, **RANDOM_TEXT}, ()),
    # no warning at all: only rank 1's missing line and the file tell
    "rank 1's artifact was deleted": (
        "dense",
        "dense-tp2-1-cold",
        "dense-tp2-3-rank1-aot-deleted",
        None,
        {**EMPTY_TUNER, **RANDOM_TEXT, "artifacts": "failed"},
        (
            "missing, corrupt or refused artifact: rank TP1 lacks model",
            "rank TP1 loaded no compiled artifact",
            "written during a warm start",
        ),
    ),
    "a truncated artifact is refused and written again": (
        "dense",
        "dense-5-cold-par",
        "aot-truncated",
        None,
        {**EMPTY_TUNER, "artifacts": "failed"},
        ("an artifact of the engine was missing or refused", "written during a warm start: the engine compiled again"),
    ),
    # memory is profiled while the first start compiles: 544 tokens less than every later start has
    "the first boot of a shape has less KV cache": (
        "dense",
        "dense-1-cold",
        "dense-2-warm",
        None,
        {**EMPTY_TUNER, "kv": "failed"},
        ("544 tokens more than the reference start", "cold on the reference start and warm on this one"),
    ),
    "an eager restart": (
        "dense",
        "dense-5-cold-par",
        "eager",
        None,
        {**EMPTY_TUNER, "identity": "failed", "artifacts": "failed", "graphs": "failed"},
        ("no CUDA graph was captured, 19 PIECEWISE, 11 FULL are expected", "--enforce-eager"),
    ),
    "fewer capture sizes": (
        "dense",
        "dense-5-cold-par",
        "cgsizes-1-2-4",
        None,
        {**EMPTY_TUNER, "identity": "failed", "artifacts": "failed", "graphs": "failed"},
        (
            "3 of 19 PIECEWISE, 3 of 11 FULL",
            "no graph for batch sizes 8, 16",
            "hash changed: this start used ee71fb39c9",
        ),
    ),
    "another attention backend": (
        "dense",
        "dense-5-cold-par",
        "backend-flashinfer-1",
        None,
        {**EMPTY_TUNER, **RANDOM_TEXT, "identity": "failed", "backend": "failed", "artifacts": "failed"},
        ("the attention backend changed from FLASH_ATTN to FLASHINFER",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_restart(case: tuple[str, str, str, Expect | None, dict[str, str], tuple[str, ...]]) -> None:
    model, cold, warm, expect, expected, words = case
    verdicts = pair(model, cold, warm, expect)
    text = "\n".join(text_of(v) for v in verdicts.values())
    assert not_passed(verdicts) == expected, text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("model", "folder", "expect", "expected"),
    [
        ("moe", "moefi-1-cold", MOE, {}),
        ("moe", "moe-tp2ep-1-cold", PAIR, {}),
        ("dense", "dense-1-cold", None, EMPTY_TUNER),
    ],
)
def test_reference(model: str, folder: str, expect: Expect | None, expected: dict[str, str]) -> None:
    assert not_passed(judged(profile_of(model, expect), None, start(folder, "reference"))) == expected


def test_a_damaged_tuning_cache_ends_the_start_with_its_cause() -> None:
    verdicts = pair("moe", "moefi-1-cold", "moefi-4-damaged", MOE)
    assert verdicts["ready"].outcome is Outcome.FAILED
    assert "JSONDecodeError" in text_of(verdicts["ready"])
    assert verdicts["backend"].outcome is Outcome.PASSED
    assert verdicts["autotune"].outcome is Outcome.FAILED


def test_a_bar_that_another_rank_cut_in_two_is_read_to_its_end() -> None:
    verdict = pair("dense", "dense-tp2-1-cold", "dense-tp2-3-rank1-aot-deleted")["graphs"]
    assert verdict.numbers["graphs FULL"] == 11
