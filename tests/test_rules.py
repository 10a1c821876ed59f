"""The whole rule tables as data: examples match, counter-examples do not, anchors hold."""

from __future__ import annotations

import re

import pytest

from pytest_startup.engines.lines import Line
from pytest_startup.engines.registry import NAMES, UnknownEngine, dialect, table, tables
from pytest_startup.engines.rules import Rule, RuleTable, broken, number, shortened

RULES = [(name, rule) for name, found in tables() for rule in found.rules]


def line(text: str, **more: object) -> Line:
    return Line(1, text.encode(), text, text, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", NAMES)
def test_every_rule_matches_its_example_and_not_its_counter_example(engine):
    assert broken(table(engine).rules) == []


@pytest.mark.parametrize(("engine", "rule"), RULES, ids=lambda x: getattr(x, "fact", x))
def test_a_rule_says_who_or_when_and_states_only_what_its_line_holds(engine, rule):
    assert rule.by or rule.versions or engine == "sglang", f"{rule.fact}: neither who prints it nor versions"
    facts = [f for f in RuleTable([rule]).facts(line(rule.example), "x") if f.name == rule.fact]
    assert facts
    plain = rule.example.replace(",", "")
    for fact in facts:
        values = fact.value.values() if isinstance(fact.value, dict) else [fact.value]
        for value in values:
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found = {number(n) for n in re.findall(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", plain)}
                assert value in found or float(value) in found, (value, rule.example)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"example": "nothing"}, "example does not match"),
        ({"counter": "took 3 s"}, "counter-example is missing or matches"),
        ({"counter": ""}, "counter-example is missing or matches"),
        ({"anchor": "ok"}, "fewer than 5"),
        ({"kind": "figure"}, "expected one of"),
        ({"fact": "Weights"}, "no fact name"),
    ],
)
def test_a_bad_rule_is_told(change, fault):
    good = {"fact": "weights.read", "anchor": "took ", "pattern": r"took (?P<value>\d+) s", "example": "took 3 s"}
    rule = Rule(**{**good, "counter": "took long", "kind": "number", **change})
    assert any(fault in text for text in broken([rule]))


def test_the_same_statement_by_two_rules_counts_once():
    rule = Rule("a.b", "took ", r"took (?P<value>\d+)", "took 3", "x", "number")
    both = RuleTable([rule, rule]).facts(line("took 3"), "x")
    assert [f.value for f in both] == [3]


def test_members_that_say_not_applicable_are_left_out():
    fact = next(
        f
        for f in table("vllm").facts(
            line("rank 1 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 1, EP rank N/A"), "x"
        )
        if f.name == "rank.assigned"
    )
    assert fact.value == {"world": 2, "dp": 0, "pp": 0, "pcp": 0, "tp": 1}


def test_repeats_and_process_are_details():
    found = table("vllm").facts(
        line("Loading weights took 2.0 seconds", process="RayWorkerWrapper", repeated=7, node="10.0.0.2"), "x"
    )
    assert found[0].detail == {"repeated": 7, "process": "RayWorkerWrapper"}
    assert found[0].node == "10.0.0.2"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234,567", 1234567),
        ("-5.90", -5.9),
        ("0.0", 0.0),
        ("1e3", 1000.0),
        ("seven", None),
        ("", None),
        ("1.2.3", None),
        ("9" * 5000, None),
    ],
)
def test_numbers(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "non-default args: {'api_key': ['sesame-open-now']}",
        "HF_TOKEN=sesame-open-now",
        "Authorization: Bearer sesame-open-now",
        "Authorization: Basic sesame1234open",
        "downloading with hf_sesameOPENnow1",
        "vllm serve m --api-key sesame-open-now",
        "proxy http://me:sesame@host:8080/v1",
        "the password: sesame",
    ],
)
def test_evidence_never_holds_a_secret(text):
    assert "sesame" not in shortened(text)


def test_evidence_is_short():
    assert len(shortened("x" * 10_000)) == 400


def test_an_unknown_engine_is_told_with_the_nearest_name():
    with pytest.raises(UnknownEngine, match=r"unknown engine 'vlm'; did you mean 'vllm'\? \(known: vllm, sglang\)"):
        dialect("vlm")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("Loading weights took 4.10 secon", "weights.read", 4.1),
        ("Loading weights took 4.10 se", "weights.read", 4.1),
        ("Directly load the compiled graph(s) for", "compile.cache_loaded", "Directly load the compiled graph(s) for"),
        ("Directly load the compi", "compile.cache_loaded", "Directly load the compi"),
        ("Using TRITON backend for Unquantized MoE", "backend.moe", "TRITON"),
        ("Using FlashInfer CUTLASS backend for Unquantized MoE", "backend.moe", "FlashInfer CUTLASS"),
    ],
)
def test_lines_that_a_terminal_cut_and_other_spellings(text, name, value):
    assert [(f.name, f.value) for f in table("vllm").facts(line(text), "x") if f.name == name] == [(name, value)]


def test_a_kernel_for_a_gemm_is_one_statement():
    said = table("vllm").facts(line("Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM"), "x")
    assert [f.name for f in said] == ["backend.linear"]
