"""The backend check: expected names, equal ranks, equality with the reference, fallbacks."""

from __future__ import annotations

import pytest
from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, Outcome, fact, profile, record, reference, says

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.backend import check
from pytest_startup.profile.expect import ExpectBackend
from pytest_startup.record import Fact


def attention(name: str, rank: str | None = None, role: str = "model") -> Fact:
    return fact("backend.attention", name, rank, line=19, role=role)


def moe(name: str, rank: str | None = None, chosen_from: str = "") -> Fact:
    text = f"Using {name} MoE backend" + (f" out of potential backends: [{chosen_from}]." if chosen_from else "")
    return fact("backend.moe", name, rank, line=21, text=text)


EMULATED = fact("backend.fallback", "NVFP4 linear falling back to the slow and unoptimized emulation backend", "TP1")

CASES = {
    "expected, in another spelling": (
        ExpectBackend(moe="FLASHINFER_CUTLASS", attention="flash_attn"),
        (),
        (moe("FlashInfer CUTLASS"), attention("FLASH_ATTN")),
        PASSED,
        (),
    ),
    "the class behind a choice is no second choice": (
        ExpectBackend(moe="FLASHINFER_CUTLASS"),
        (),
        (moe("FlashInfer CUTLASS", chosen_from="TRITON, FlashInfer CUTLASS"), moe("FlashInferExperts")),
        PASSED,
        (),
    ),
    "another than expected, out of a list that holds it": (
        ExpectBackend(moe="TRITON"),
        (),
        (moe("FlashInfer CUTLASS", "TP0", chosen_from="TRITON, FlashInfer CUTLASS"),),
        FAILED,
        ("the moe backend on rank TP0 is FlashInfer CUTLASS, TRITON is expected", "from expect.backend.moe"),
    ),
    "two layers' backends, both allowed": (
        ExpectBackend(attention="FLASHINFER, TRITON_ATTN"),
        (),
        (attention("FLASHINFER"), attention("TRITON_ATTN")),
        PASSED,
        (),
    ),
    "two layers' backends, one not allowed": (
        ExpectBackend(attention="FLASHINFER"),
        (),
        (attention("FLASHINFER"), attention("TRITON_ATTN")),
        FAILED,
        ("the attention backend is TRITON_ATTN, FLASHINFER is expected",),
    ),
    "the drafter apart from the model": (
        ExpectBackend(attention="FLASHINFER", drafter="FLASH_ATTN"),
        (),
        (attention("FLASHINFER"), attention("TRITON_ATTN", role="drafter")),
        FAILED,
        ("the drafter backend is TRITON_ATTN, FLASH_ATTN is expected",),
    ),
    "an encoder's backend is not the model's": (
        ExpectBackend(attention="FLASHINFER"),
        (),
        (attention("FLASHINFER"), attention("TORCH_SDPA", role="encoder")),
        PASSED,
        (),
    ),
    "expected and never stated": (
        ExpectBackend(attention="TORCH_SDPA"),
        (),
        (fact("backend.runner", "V2"),),
        NOT_OBSERVABLE,
        ("no line states the attention backend, TORCH_SDPA is expected", "backend.runner V2"),
    ),
    "ranks differ": (
        ExpectBackend(),
        (),
        (attention("FLASHINFER", "TP0"), attention("FLASH_ATTN", "TP1")),
        FAILED,
        ("ranks use different attention backends", "TP0: FLASHINFER", "TP1: FLASH_ATTN"),
    ),
    "changed since the reference": (
        ExpectBackend(),
        (attention("FLASH_ATTN"),),
        (attention("FLASHINFER"),),
        FAILED,
        ("the attention backend changed from FLASH_ATTN to FLASHINFER", "from reference"),
    ),
    "named on the reference only": (
        ExpectBackend(),
        (attention("FLASH_ATTN"),),
        (),
        NOT_OBSERVABLE,
        ("the reference start named its attention backend (FLASH_ATTN), this start does not",),
    ),
    "as on the reference": (ExpectBackend(), (attention("FLASH_ATTN"),), (attention("FLASH_ATTN"),), PASSED, ()),
    "asked for by its enum": (
        ExpectBackend(attention="FLASHINFER"),
        (attention("FLASHINFER"),),
        (attention("AttentionBackendEnum.FLASHINFER"),),
        PASSED,
        (),
    ),
    "emulation": (
        ExpectBackend(),
        (),
        (attention("FLASH_ATTN"), EMULATED),
        FAILED,
        (
            "TP1 fell back to another kernel than asked for: 'NVFP4 linear falling back",
            "expect.backend.fallback: allow",
        ),
    ),
    "emulation, also on the reference": (
        ExpectBackend(),
        (EMULATED,),
        (EMULATED,),
        FAILED,
        ("(as on the reference start)",),
    ),
    "emulation, allowed": (
        ExpectBackend(fallback="allow"),
        (),
        (attention("FLASH_ATTN"), EMULATED),
        PASSED,
        (),
    ),
    "a wish is no choice": (
        ExpectBackend(),
        (),
        (fact("backend.kv_dtype", "auto", source="endpoint"),),
        NOT_OBSERVABLE,
        ("a line that names an attention, MoE",),
    ),
    "nothing named": (ExpectBackend(), (), (), NOT_OBSERVABLE, ("a line that names an attention, MoE",)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_verdict(case: tuple[ExpectBackend, tuple[Fact, ...], tuple[Fact, ...], Outcome, tuple[str, ...]]) -> None:
    expect, before, now, outcome, words = case
    old = reference(*before) if before else None
    says(check(profile(expect={"backend": expect}), old, record(*now), None), outcome, *words)


def test_baseline() -> None:
    accepted = Baseline("p", {}, {"process": Population({"backend.moe": ["TRITON"]})})
    verdict = check(profile(), None, record(moe("FlashInfer CUTLASS")), accepted)
    says(verdict, FAILED, "the moe backend is FlashInfer CUTLASS, the baseline has", "from baseline")
    says(check(profile(), None, record(moe("Triton")), accepted), PASSED)
    verdict = check(profile(), None, record(fact("backend.attention", "FLASH_ATTN", role="model")), accepted)
    says(verdict, NOT_OBSERVABLE, "the baseline has the moe backend TRITON, this start names none", "from baseline")
