"""The dialect of vLLM outside its log: arguments, metrics, JSON endpoints, what can be observed."""

from __future__ import annotations

import pytest

from pytest_startup.engines.registry import dialect

METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",kv_cache_size_tokens="262144"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="fp8",engine="1",num_gpu_blocks="100"} 1.0
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 4096.0
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1024.0
# TYPE vllm:external_prefix_cache_hits counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 7168.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.5e+09
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} NaN
"""


def test_the_command_line():
    args = dialect("vllm").serve_args("org/m", "127.0.0.1", 8123, ["--tensor-parallel-size", "2"])
    assert args == ("org/m", "--host", "127.0.0.1", "--port", "8123", "--tensor-parallel-size", "2")


def test_metrics():
    facts = dialect("vllm").metric_facts(METRICS, "GET /metrics", 3.0)
    found = {(f.name, f.engine): f.value for f in facts}
    assert found[("kv.tokens", "0")] == 262144
    assert found[("kv.tokens", "1")] == 1600
    assert found[("cache.prefix_queries", "0")] == 4096
    assert found[("cache.external_hits", "0")] == 7168
    assert found[("backend.kv_dtype", "1")] == "fp8"
    assert found[("process.started", None)] == 1500000000
    assert ("kv.usage", "0") not in found, "a value that is no number is no fact"
    derived = [f.detail.get("derived") for f in facts if f.name == "kv.tokens"]
    assert derived == [None, True]
    assert {f.evidence.source for f in facts} == {"endpoint"}
    assert {f.evidence.seconds for f in facts} == {3.0}


@pytest.mark.parametrize("text", ["", "<html>502</html>", "vllm:cache_config_info{", "a b c d\n"])
def test_an_answer_that_is_no_metrics_gives_nothing(text):
    assert dialect("vllm").metric_facts(text, "GET /metrics") == []


def test_json_endpoints():
    facts = dialect("vllm").config_facts(
        {
            "/version": {"version": "0.31.0"},
            "/v1/models": {"data": [{"id": "m", "root": "/models/m", "max_model_len": 1024}]},
            "/server_info": {
                "vllm_config": {"compilation": {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2]}}
            },
        }
    )
    found = {f.name: (f.value, f.evidence.where) for f in facts}
    assert found == {
        "engine.version": ("0.31.0", "GET /version"),
        "engine.model": ("m", "GET /v1/models"),
        "config.max_model_len": (1024, "GET /v1/models"),
        "graphs.mode": ("FULL", "GET /server_info"),
        "graphs.sizes": ([1, 2], "GET /server_info"),
    }


@pytest.mark.parametrize(
    "answers",
    [{}, {"/version": None}, {"/version": {}}, {"/v1/models": {"data": "x"}}, {"/server_info": {}}, {"/x": {"a": 1}}],
)
def test_answers_of_another_shape_give_nothing(answers):
    assert dialect("vllm").config_facts(answers) == []
