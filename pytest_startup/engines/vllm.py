"""The dialect of vLLM: its command line, its log, its metrics and its JSON endpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from pytest_startup.engines.base import Endpoints, LogReader
from pytest_startup.engines.reader import Reader
from pytest_startup.engines.registry import tables
from pytest_startup.engines.vllm_metrics import facts_of_metrics
from pytest_startup.record import JSON, Evidence, Fact

#: Parts of ``/server_info`` (development mode) that say what was requested.
_REQUESTED = {
    "cudagraph_mode": "graphs.mode",
    "cudagraph_capture_sizes": "graphs.sizes",
    "kv_cache_dtype": "backend.kv_dtype",
}


class VllmDialect:
    """vLLM 0.8 to 0.33, V1 and V2 runners. Its log's wordings are the tables ``vllm_*.py``."""

    name = "vllm"
    # The header: 0.26.0, ``_get_data_parallel_rank``; a release that does not know it deals requests out as ever.
    endpoints = Endpoints(config="/server_info", engine_header="X-data-parallel-rank")

    def serve_args(self, model: str, host: str, port: int, args: Sequence[str]) -> tuple[str, ...]:
        """``MODEL --host … --port …`` and the profile's own arguments; ``serve`` is part of the launch command."""
        return (model, "--host", host, "--port", str(port), *args)

    def reader(self, where: str = "engine.log") -> LogReader:
        """A reader that knows this engine only."""
        return Reader(tables(self.name), where)

    def metric_facts(self, text: str, where: str, seconds: float | None = None) -> Sequence[Fact]:
        """Facts of a ``/metrics`` answer; see ``vllm_metrics``."""
        return facts_of_metrics(text, where, seconds)

    def config_facts(self, answers: Mapping[str, object]) -> Sequence[Fact]:
        """Facts of ``/version``, ``/v1/models`` and ``/server_info``; what is not there gives no fact.

        ``/server_info`` is the front end's configuration: requested, not resolved by the workers.
        """
        out: list[Fact] = []
        for path, answer in answers.items():
            if isinstance(answer, Mapping):
                out.extend(_facts_of(path, answer))
        return out


def _facts_of(path: str, answer: Mapping[str, object]) -> list[Fact]:
    if path == "/version":
        version = answer.get("version")
        return [_fact("engine.version", version, path, f"version {version}")] if isinstance(version, str) else []
    if path == "/v1/models":
        return _models(path, answer.get("data"))
    if path.startswith("/server_info"):
        return _server_info(path, answer.get("vllm_config"))
    return []


def _models(path: str, data: object) -> list[Fact]:
    out: list[Fact] = []
    for row in data if isinstance(data, list) else []:
        if not isinstance(row, Mapping) or not isinstance(row.get("id"), str):
            continue
        text = json.dumps({key: row.get(key) for key in ("id", "root", "max_model_len")})
        root = row.get("root")
        detail: dict[str, JSON] = {"root": root} if isinstance(root, str) else {}
        out.append(_fact("engine.model", row["id"], path, text, None, detail))
        if isinstance(row.get("max_model_len"), int):
            out.append(_fact("config.max_model_len", row["max_model_len"], path, text, "tokens"))
    return out


def _server_info(path: str, config: object) -> list[Fact]:
    if isinstance(config, str):
        return [_fact("config.requested", config[:4000], path, config)]
    out: list[Fact] = []
    if isinstance(config, Mapping):
        for part in config.values():
            for key, name in _REQUESTED.items():
                value = part.get(key) if isinstance(part, Mapping) else None
                if isinstance(value, (str, int, float, list)):
                    out.append(_fact(name, value, path, f"{key}: {json.dumps(value)}", None, {"requested": True}))
    return out


def _fact(
    name: str,
    value: object,
    path: str,
    text: str,
    unit: str | None = None,
    detail: Mapping[str, JSON] | None = None,
) -> Fact:
    plain = cast("JSON", value)  # it was parsed from JSON
    return Fact(name, plain, Evidence("endpoint", f"GET {path}", text[:400]), unit, detail=detail or {})
