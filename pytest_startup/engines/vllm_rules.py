"""All rules of vLLM in one table, from 0.8 (and V0's leftovers) to 0.33; the wordings stand in ``vllm_*.py``."""

from __future__ import annotations

from pytest_startup.engines import (
    vllm_backends,
    vllm_compile,
    vllm_graphs,
    vllm_kernels,
    vllm_kv,
    vllm_serving,
    vllm_weights,
)
from pytest_startup.engines.rules import Rule

VLLM_RULES: tuple[Rule, ...] = (
    *vllm_weights.IDENTITY,
    *vllm_weights.WEIGHTS,
    *vllm_compile.COMPILE,
    *vllm_compile.ARTIFACTS,
    *vllm_backends.ATTENTION,
    *vllm_backends.COMMUNICATION,
    *vllm_backends.FALLBACK,
    *vllm_kernels.MOE,
    *vllm_kernels.LINEAR,
    *vllm_kv.KV,
    *vllm_kv.MEMORY,
    *vllm_graphs.GRAPHS,
    *vllm_serving.AUTOTUNE,
    *vllm_serving.TIERS,
    *vllm_serving.SERVING,
)
