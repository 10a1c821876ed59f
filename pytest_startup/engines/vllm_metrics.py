"""What vLLM's ``/metrics`` tells: KV capacity per engine, and the counters of a workload window."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_startup.engines.metrics import plain, samples
from pytest_startup.record import JSON, Evidence, Fact

#: Counters and gauges (names without ``_total``, which the client library adds) → fact and unit. Cumulative since the
#: start of the process: two readings round a workload give what it did. Old names were in use to about 0.11.
_SERIES: Mapping[str, tuple[str, str]] = {
    "vllm:prefix_cache_queries": ("cache.prefix_queries", "tokens"),
    "vllm:prefix_cache_hits": ("cache.prefix_hits", "tokens"),
    "vllm:gpu_prefix_cache_queries": ("cache.prefix_queries", "tokens"),
    "vllm:gpu_prefix_cache_hits": ("cache.prefix_hits", "tokens"),
    "vllm:external_prefix_cache_queries": ("cache.external_queries", "tokens"),
    "vllm:external_prefix_cache_hits": ("cache.external_hits", "tokens"),
    "vllm:spec_decode_num_draft_tokens": ("spec.drafted", "tokens"),
    "vllm:spec_decode_num_accepted_tokens": ("spec.accepted", "tokens"),
    "vllm:spec_decode_num_drafts": ("spec.drafts", "drafts"),
    "vllm:prompt_tokens": ("serving.prompt_tokens", "tokens"),
    "vllm:generation_tokens": ("serving.generation_tokens", "tokens"),
    "vllm:num_requests_running": ("serving.running", "requests"),
    "vllm:num_requests_waiting": ("serving.waiting", "requests"),
    "vllm:num_preemptions": ("serving.preemptions", "requests"),
    "vllm:kv_cache_usage_perc": ("kv.usage", "ratio"),
    "vllm:gpu_cache_usage_perc": ("kv.usage", "ratio"),
    "vllm:engine_sleep_state": ("memory.sleep_state", "state"),
    "vllm:kv_offload_load_bytes": ("tier.loaded", "bytes"),
    "vllm:kv_offload_store_bytes": ("tier.stored", "bytes"),
    "vllm:kv_offload_total_bytes": ("tier.moved", "bytes"),
    "vllm:kv_offload_size": ("tier.moved", "bytes"),
    "process_start_time_seconds": ("process.started", "s since the epoch"),
}


def facts_of_metrics(text: str, where: str, seconds: float | None = None) -> list[Fact]:
    """Facts of a Prometheus text. Text that does not parse gives the facts before the first bad line.

    ``kv.tokens`` is ``kv_cache_size_tokens`` where the engine states it (0.24 on, that of the first engine to answer);
    else ``num_gpu_blocks × block_size``, which is wrong for hybrid models and summed over DP engines: ``detail`` says
    ``derived``.
    """
    out: list[Fact] = []
    for name, labels, value, proof in samples(text, where, seconds):
        engine = labels.get("engine") or None
        if name == "vllm:cache_config_info":
            out.extend(_capacity(labels, proof, engine))
        elif name in _SERIES and math.isfinite(value):
            fact, unit = _SERIES[name]
            detail: dict[str, JSON] = {k: v for k, v in labels.items() if k not in ("engine", "model_name")}
            out.append(Fact(fact, plain(value), proof, unit, None, None, engine, 0, detail))
    return out


#: What says something of capacity among the labels of ``cache_config_info``, of which 0.31 has about thirty.
_CAPACITY = (
    "kv_cache_size_tokens",
    "num_gpu_blocks",
    "block_size",
    "kv_cache_max_concurrency",
    "cache_dtype",
    "engine",
)


def _capacity(labels: Mapping[str, str], whole: Evidence, engine: str | None) -> list[Fact]:
    told = ",".join(f'{name}="{labels[name]}"' for name in _CAPACITY if name in labels)
    proof = replace(whole, text=f"vllm:cache_config_info{{{told},…}}")

    def fact(name: str, value: JSON, unit: str | None = None, **detail: JSON) -> Fact:
        return Fact(name, value, proof, unit, None, None, engine, 0, detail)

    out: list[Fact] = []
    tokens = _label(labels, "kv_cache_size_tokens", int)
    blocks = _label(labels, "num_gpu_blocks", int)
    size = _label(labels, "block_size", int)
    if tokens is not None:
        out.append(fact("kv.tokens", tokens, "tokens"))
    elif blocks is not None and size is not None:
        out.append(fact("kv.tokens", blocks * size, "tokens", derived=True))
    if blocks is not None:
        detail: dict[str, JSON] = {} if size is None else {"block_size": size}
        out.append(fact("kv.blocks", blocks, "blocks", **detail))
    concurrency = _label(labels, "kv_cache_max_concurrency", float)
    if concurrency is not None:
        out.append(fact("kv.max_concurrency", concurrency, "x"))
    if labels.get("cache_dtype"):
        out.append(fact("backend.kv_dtype", labels["cache_dtype"]))
    return out


def _label(labels: Mapping[str, str], key: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(labels[key])
    except (KeyError, ValueError):
        return None
