"""SGLang's dialect: command line, metrics, JSON answers, and a whole log through its reader."""

from __future__ import annotations

from helpers_diagnosis import SGLANG_READY

from pytest_startup.engines.registry import dialect
from pytest_startup.engines.sglang import SglangDialect


def test_it_is_registered() -> None:
    assert isinstance(dialect("sglang"), SglangDialect)


def test_arguments_in_the_engine_s_syntax() -> None:
    args = SglangDialect().serve_args("m", "127.0.0.1", 30000, ["--tp", "2"])
    assert args == ("--model-path", "m", "--host", "127.0.0.1", "--port", "30000", "--tp", "2")


def test_facts_of_metrics() -> None:
    text = """# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{model_name="m",tp_rank="0",pp_rank="0",dp_rank="1"} 6827.0
# TYPE sglang:generation_tokens counter
sglang:generation_tokens_total{model_name="m"} 12.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m"} NaN
# TYPE other gauge
other 3
"""
    facts = SglangDialect().metric_facts(text, "GET /metrics", 2.0)
    assert [(f.name, f.value, f.unit, f.rank) for f in facts] == [
        ("kv.tokens", 6827, "tokens", "DP1 PP0 TP0"),
        ("serving.generation_tokens", 12, "tokens", None),
    ]
    assert facts[0].evidence.seconds == 2.0
    assert "6827" in facts[0].evidence.text


def test_metrics_that_do_not_parse_give_what_stands_before() -> None:
    text = "# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs 3\n}{ not a metric\n"
    assert [f.name for f in SglangDialect().metric_facts(text, "GET /metrics")] in ([], ["serving.waiting"])


def test_facts_of_json_answers() -> None:
    answers: dict[str, object] = {
        "/server_info": {
            "version": "0.5.20",
            "model_path": "m",
            "attention_backend": "fa3",
            "internal_states": [
                {"memory_usage": {"weight": 3.01, "token_capacity": 6827}},
                {"memory_usage": {"weight": 3.02, "token_capacity": 6800, "graph": {"decode": 0.1}}},
                {"other": 1},
            ],
        },
        "/v1/models": {"data": [{"id": "served"}, "junk"]},
        "/health": "ok",
    }
    facts = SglangDialect().config_facts(answers)
    assert [(f.name, f.value, f.rank) for f in facts] == [
        ("engine.version", "0.5.20", None),
        ("engine.model", "m", None),
        ("backend.attention", "fa3", None),
        ("kv.tokens", 6827, "DP0"),
        ("weights.memory", 3.01, "DP0"),
        ("kv.tokens", 6800, "DP1"),
        ("weights.memory", 3.02, "DP1"),
        ("engine.model", "served", None),
    ]
    assert SglangDialect().config_facts({"/server_info": {"internal_states": "none"}}) == []


def test_a_whole_log_through_the_reader() -> None:
    reader = SglangDialect().reader()
    facts = [*reader.feed("\n".join([*SGLANG_READY, ""]).encode(), 1.0)]
    rest, (summary,) = reader.close()
    assert (summary.ready, summary.failed, summary.engine) == (True, False, "sglang")
    assert {(f.name, f.rank) for f in [*facts, *rest]} >= {
        ("backend.attention", None),
        ("weights.load", "TP0"),
        ("weights.load", "TP1"),
        ("kv.tokens", "TP0"),
        ("graphs.seconds", "TP1"),
    }
