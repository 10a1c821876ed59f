"""SGLang's rules: the table itself, and what real wordings of many versions state."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_startup.engines.framing import frame
from pytest_startup.engines.rules import Rule, RuleTable, broken
from pytest_startup.engines.sglang_rules import SGLANG_RULES
from pytest_startup.record import Fact

TABLE = RuleTable(SGLANG_RULES)


def stated(raw: str) -> list[Fact]:
    """Facts of one physical line."""
    return [fact for line in frame(raw.encode(), 1) for fact in TABLE.facts(line, "engine.log")]


def test_every_rule_matches_its_example_and_not_its_counter() -> None:
    assert broken(SGLANG_RULES) == []


@pytest.mark.parametrize("rule", SGLANG_RULES, ids=lambda r: f"{r.fact}-{r.anchors[0][:24]}")
def test_every_rule_says_who_prints_it_and_in_which_versions(rule: Rule) -> None:
    assert rule.by
    assert rule.versions
    assert any(anchor in rule.example for anchor in rule.anchors)


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (
            "[2025-01-01 00:00:00 TP0] Load weight end. type=Q, dtype=torch.bfloat16, avail mem=37.68 GB",
            {"memory.free": 37.68},
        ),
        (
            "[2025-01-01 00:00:00 TP0] Load weight end. type=Q, dtype=torch.bfloat16, avail mem=124.23 "
            "GB, mem usage=14.98 GB.",
            {"memory.free": 124.23, "weights.memory": 14.98},
        ),
        (
            "[2026-01-01 00:00:00 TP0] Load weight end. elapsed=33.49 s, type=Q, dtype=torch.bfloat16, "
            "avail mem=13.46 GB, mem "
            "usage=3.01 GB.",
            {"memory.free": 13.46, "weights.memory": 3.01, "weights.load": 33.49},
        ),
        (
            "[2026-09-01 00:00:00 TP0] Load weight end. elapsed=9.1 s, type=Q, quant=fp8, fmt=e4m3, "
            "avail mem=13.46 GB, mem "
            "usage=-0.02 GB.",
            {"memory.free": 13.46, "weights.memory": -0.02, "weights.load": 9.1},
        ),
        (
            "[2026-09-01 00:00:00 TP0] Load weight end. Committed real weights after CUDA graph capture in 12.30 s (x)",
            {"weights.load": 12.3},
        ),
        ("[2025-01-01 00:00:00] KV Cache is allocated. K size: 9.28 GB, V size: 9.28 GB.", {}),
        (
            "[2025-05-29 23:22:58] KV Cache is allocated. #tokens: 871371, K size: 53.18 GB, V size: 53.18 GB",
            {"kv.tokens": 871371},
        ),
        (
            "[2026-07-01 00:00:00 TP3] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: "
            "12345, KV size: 9.00 GB",
            {"kv.tokens": 12345, "backend.kv_dtype": "torch.float8_e4m3fn"},
        ),
        ("[2026-08-01 00:00:00] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 999999", {}),
        ("[2026-08-01 00:00:00] KV Cache skipped (no-op pool). Logical #tokens: 777, x", {}),
        ("[2026-08-01 00:00:00] Use sliding window memory pool. full_layer_tokens=5000, swa_layer_tokens=1000", {}),
        (
            "[2026-08-01 00:00:00] Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, "
            "#tokens: 800000, KV size: 9 GB",
            {"kv.tokens": 800000},
        ),
        (
            "[2026-06-07 11:58:16] max_total_num_tokens=6827, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            "max_running_requests=2048, context_len=32768, available_gpu_mem=8.34 GB",
            {"kv.tokens": 6827, "memory.free": 8.34},
        ),
        ("[2025-01-01 00:00:00 TP0] max_total_num_tokens=100, max_prefill_tokens=16384, x=1", {"kv.tokens": 100}),
        ("[2025-05-29 23:22:53] Attention backend not set. Use fa3 backend by default.", {"backend.attention": "fa3"}),
        (
            "[2025-09-01 00:00:00] Attention backend not explicitly specified. Use flashinfer backend by default.",
            {"backend.attention": "flashinfer"},
        ),
        ("[2026-01-01 00:00:00] Using hybrid linear attention backend for hybrid GDN models.", {}),
        ("[2026-01-01 00:00:00] Multimodal attention backend not set. Use fa3.", {"backend.attention": "fa3"}),
        (
            "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', attention_backend='fa3', "
            "decode_attention_backend='triton', prefill_attention_backend='triton', mm_attention_backend='x')",
            {"engine.model": "m", "backend.attention": "fa3"},
        ),
        (
            "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', attention_backend=None, "
            "decode_attention_backend='triton')",
            {"engine.model": "m"},
        ),
        (
            "[2026-10-01 00:00:00] server_args={'model_path': 'm', 'attention_backend': 'fa3', "
            "'mm_attention_backend': 'x'}",
            {"engine.model": "m", "backend.attention": "fa3"},
        ),
        ("[2026-01-01 00:00:00] MOE_RUNNER_BACKEND is not initialized, the backend will be automatically selected", {}),
        (
            "[2025-01-01 00:00:00 TP0] Capture cuda graph end. Time elapsed: 13.63 s",
            {"graphs.seconds": 13.63},
        ),
        (
            "[2025-04-01 00:00:00 TP0] Capture cuda graph end. Time elapsed: 13.63 s. avail mem=9.19 "
            "GB. mem usage=2.99 GB.",
            {"graphs.seconds": 13.63, "graphs.memory": 2.99},
        ),
        (
            "[2026-01-01 00:00:00 TP0] Capture piecewise CUDA graph end. Time elapsed: 17.55 s. mem "
            "usage=0.75 GB. avail mem=8.45 GB.",
            {"graphs.seconds": 17.55, "graphs.memory": 0.75},
        ),
        (
            "[2026-09-01 00:00:00 TP0] Capture target decode CUDA graph end. bs=[1, 2], elapsed=5.02 "
            "s, mem usage=0.71 GB, avail "
            "mem=9.19 GB.",
            {"graphs.seconds": 5.02, "graphs.memory": 0.71, "graphs.sizes": [1, 2]},
        ),
        ("[2026-01-01 00:00:00 TP0] Capture cuda graph bs [1, 2, 4]", {"graphs.sizes": [1, 2, 4]}),
        ("[2026-01-01 00:00:00 TP0] Compiling a graph for dynamic shape takes 0.38 s", {"compile.range": 0.38}),
        ("Compiling num tokens (num_tokens=4): 100%|####| 58/58 [00:09<00:00,  6.19it/s]", {}),
        ("\rCapturing batches (bs=256 avail_mem=11.99 GB):   0%|          | 0/36 [00:00<?, ?it/s]", {}),
        (
            "\rCapturing batches (bs=1 avail_mem=9.23 GB): 100%|####| 36/36 [00:13<00:00,  2.71it/s]",
            {"graphs.captured": {"kind": "batches", "done": 36, "total": 36}},
        ),
        (
            "\r[AutoTuner]: Tuning trtllm::gemm: 100%|####| 10/10 [01:29<00:00,  8.92s/profile]",
            {"autotune.tuned": {"kind": "trtllm::gemm", "done": 10, "total": 10}},
        ),
        (
            "[2026-01-01 00:00:00 TP0] Running FlashInfer autotune...",
            {"autotune.started": "Running FlashInfer autotune..."},
        ),
        (
            "[2025-01-01 00:00:00 TP0] Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 0, "
            "cache hit rate: 12.50%, token",
            {"cache.prefix_hit_rate": 12.5},
        ),
        (
            "[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 2, #token: 512, token usage: 0.00, cuda graph: True",
            {},
        ),
        ("SGLang Version 0.5.11+05fb6a52", {"engine.version": "0.5.11+05fb6a52"}),
        ("sglang is using nccl==2.27.3", {}),
    ],
)
def test_what_a_line_states(line: str, facts: dict[str, Any]) -> None:
    found = stated(line)
    assert {fact.name: fact.value for fact in found} == facts
    assert len(found) == len(facts)


def test_ranks_are_those_of_the_bracket() -> None:
    (fact, _) = stated(
        "[2026-01-17 10:35:24 DP1 TP4 EP4] Load weight end. type=Q, avail mem=27.52 GB, mem usage=33.25 GB."
    )
    assert fact.rank == "DP1 TP4 EP4"
    assert fact.unit == "GB"


def test_both_halves_of_a_split_backend_are_told_apart() -> None:
    line = "Using hybrid attention backend for decode and prefill: decode_backend=trtllm_mla, prefill_backend=fa3."
    assert {fact.detail["role"]: fact.value for fact in stated(line)} == {"decode": "trtllm_mla", "prefill": "fa3"}


def test_where_memory_was_free() -> None:
    lines = {
        "Load weight begin. avail mem=112.22 GB": "weights-begin",
        "Load weight end. avail mem=13.46 GB": "weights",
        "Memory pool end. avail mem=13.04 GB": "pool",
    }
    for line, at in lines.items():
        assert [fact.detail["at"] for fact in stated(f"[2026-06-07 11:57:10] {line}")] == [at]
