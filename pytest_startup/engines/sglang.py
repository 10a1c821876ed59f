"""The dialect of SGLang: its command line, its log, its metrics and its JSON endpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_startup.engines.base import Endpoints, LogReader
from pytest_startup.engines.metrics import plain, samples
from pytest_startup.engines.reader import Reader
from pytest_startup.engines.registry import tables
from pytest_startup.record import JSON, Evidence, Fact

#: Series (without ``_total``) → fact and unit. Only attention-TP rank 0 of each DP rank reports, unless the server runs
#: with ``--enable-metrics-for-all-schedulers``; all need ``--enable-metrics``.
_SERIES: Mapping[str, tuple[str, str]] = {
    "sglang:max_total_num_tokens": ("kv.tokens", "tokens"),
    "sglang:cache_hit_rate": ("cache.prefix_hit_rate", "ratio"),
    "sglang:num_running_reqs": ("serving.running", "requests"),
    "sglang:num_queue_reqs": ("serving.waiting", "requests"),
    "sglang:token_usage": ("kv.usage", "ratio"),
    "sglang:prompt_tokens": ("serving.prompt_tokens", "tokens"),
    "sglang:generation_tokens": ("serving.generation_tokens", "tokens"),
    "sglang:spec_accept_length": ("spec.accept_length", "tokens"),
    "sglang:cuda_graph_passes": ("graphs.passes", "passes"),
    "sglang:hicache_host_total_tokens": ("tier.tokens", "tokens"),
    "sglang:hicache_host_used_tokens": ("tier.used", "tokens"),
    "sglang:weight_memory_usage_gb": ("weights.memory", "GB"),
    "sglang:kv_cache_memory_usage_gb": ("kv.reserved", "GB"),
    "sglang:graph_memory_usage_gb": ("graphs.memory", "GB"),
    "sglang:weight_load_duration_seconds": ("weights.load", "s"),
    "process_start_time_seconds": ("process.started", "s since the epoch"),
}
_RANK_LABELS = ("dp_rank", "pp_rank", "tp_rank", "moe_ep_rank")


class SglangDialect:
    """SGLang 0.4.0 to 0.5.23. Its log's wordings are the tables ``sglang_memory.py`` and ``sglang_rules.py``."""

    name = "sglang"
    #: ``/health_generate`` always generates; ``/health`` answers 200 on nodes of rank ≥ 1 and, in 0.4, at once.
    endpoints = Endpoints(health="/health_generate", version="/server_info", config="/server_info")

    def serve_args(self, model: str, host: str, port: int, args: Sequence[str]) -> tuple[str, ...]:
        """``--model-path MODEL --host … --port …`` (behind ``python -m sglang.launch_server`` or ``sglang serve``)."""
        return ("--model-path", model, "--host", host, "--port", str(port), *args)

    def reader(self, where: str = "engine.log") -> LogReader:
        """A reader that knows this engine only."""
        return Reader(tables(self.name), where)

    def metric_facts(self, text: str, where: str, seconds: float | None = None) -> Sequence[Fact]:
        """Facts of a ``/metrics`` answer. Text that does not parse gives the facts before the first bad line."""
        out: list[Fact] = []
        for name, labels, value, proof in samples(text, where, seconds):
            if name in _SERIES and math.isfinite(value):
                fact, unit = _SERIES[name]
                out.append(Fact(fact, plain(value), proof, unit, _rank(labels)))
        return out

    def config_facts(self, answers: Mapping[str, object]) -> Sequence[Fact]:
        """Facts of ``/server_info`` (one internal state per DP rank), ``/model_info`` and ``/v1/models``."""
        out: list[Fact] = []
        for path, answer in answers.items():
            if not isinstance(answer, Mapping):
                continue
            if "server_info" in path:
                out.extend(_server_info(path, answer))
            elif path == "/v1/models":
                data = answer.get("data")
                for row in data if isinstance(data, list) else []:
                    if isinstance(row, Mapping) and isinstance(row.get("id"), str):
                        out.append(_fact("engine.model", row["id"], path))
        return out


def _rank(labels: Mapping[str, str]) -> str | None:
    names = [
        f"{key.removesuffix('_rank').removeprefix('moe_').upper()}{labels[key]}"
        for key in _RANK_LABELS
        if key in labels
    ]
    return " ".join(names) or None


def _server_info(path: str, answer: Mapping[str, object]) -> list[Fact]:
    out: list[Fact] = []
    for key, name in (("version", "engine.version"), ("model_path", "engine.model"), ("revision", "engine.revision")):
        value = answer.get(key)
        if isinstance(value, str):
            out.append(_fact(name, value, path))
    backend = answer.get("attention_backend")
    if isinstance(backend, str):
        out.append(_fact("backend.attention", backend, path))
    states = answer.get("internal_states")
    for index, state in enumerate(states if isinstance(states, list) else []):
        memory = state.get("memory_usage") if isinstance(state, Mapping) else None
        if not isinstance(memory, Mapping):
            continue
        rank = f"DP{index}" if isinstance(states, list) and len(states) > 1 else None
        for key, name, unit in (("token_capacity", "kv.tokens", "tokens"), ("weight", "weights.memory", "GB")):
            value = memory.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                out.append(_fact(name, value, path, unit, rank))
    return out


def _fact(name: str, value: JSON, path: str, unit: str | None = None, rank: str | None = None) -> Fact:
    return Fact(name, value, Evidence("endpoint", f"GET {path}", f"{name} {value}"[:400], rank=rank), unit, rank)
