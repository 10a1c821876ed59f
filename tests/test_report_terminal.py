"""The texts and the verdict of a run, as pure functions of its results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers_gate import FAILURE, start_record
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.checks.base import Finding, Outcome, Verdict
from pytest_startup.profile.model import Engine, Launch, Profile
from pytest_startup.record import Evidence, Fact, Failure, ThroughputSample
from pytest_startup.report import rows, terminal
from pytest_startup.report.results import PREFLIGHT, ItemResult, ProfileResult, StartRow, to_wire

KEYS = [(s, c) for s in ("reference", "restart-1") for c in ("ready", "kv")]


def run_of(outcomes: dict[tuple[str, str], ItemResult]) -> ProfileResult:
    result = ProfileResult("x.yaml", "demo", expected=KEYS, selected=KEYS)
    result.results.update(outcomes)
    return result


def passed(*keys: tuple[str, str]) -> dict[tuple[str, str], ItemResult]:
    return {key: ItemResult(*key, "passed") for key in keys}


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ({}, "INCOMPLETE"),
        (passed(*KEYS), "ACCEPTED"),
        (passed(*KEYS[:3]), "INCOMPLETE"),
        ({**passed(*KEYS[:3]), KEYS[3]: ItemResult(*KEYS[3], "failed")}, "REJECTED"),
        ({KEYS[3]: ItemResult(*KEYS[3], "failed")}, "REJECTED"),
        ({**passed(*KEYS[:3]), KEYS[3]: ItemResult(*KEYS[3], "not exercised")}, "REJECTED"),
        ({**passed(*KEYS[:3]), KEYS[3]: ItemResult(*KEYS[3], "not observable")}, "REJECTED"),
        ({**passed(*KEYS[:3]), KEYS[3]: ItemResult(*KEYS[3], "error")}, "REJECTED"),
        ({**passed(*KEYS[:3]), KEYS[3]: ItemResult(*KEYS[3], "not observable", waived="by design")}, "ACCEPTED"),
        ({KEYS[3]: ItemResult(*KEYS[3], "not observable", waived="by design")}, "INCOMPLETE"),
    ],
)
def test_only_a_whole_green_gate_is_accepted(outcomes: dict[tuple[str, str], ItemResult], status: str) -> None:
    result = run_of(outcomes)
    assert result.status == status
    assert terminal.verdict_line(result).startswith(f"{status}  ")


@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from([o.value for o in Outcome] + ["error", "waived"])))
def test_counts_add_up_and_a_waiver_is_never_counted_as_passed(outcomes: dict[tuple[str, str], str]) -> None:
    items = {
        key: ItemResult(*key, "not observable", waived="w") if o == "waived" else ItemResult(*key, o)
        for key, o in outcomes.items()
    }
    result = run_of(items)
    counts = result.counts()
    assert sum(counts.values()) == len(KEYS)
    assert counts["passed"] == list(outcomes.values()).count("passed")
    assert (result.status == "ACCEPTED") == (
        len(outcomes) == len(KEYS) and set(outcomes.values()) <= {"passed", "waived"}
    )


def test_the_line_names_start_check_and_ranks() -> None:
    items = {
        **passed(KEYS[0], KEYS[2]),
        KEYS[1]: ItemResult(*KEYS[1], "failed", ranks=("TP0", "TP1")),
        KEYS[3]: ItemResult(*KEYS[3], "not exercised"),
    }
    assert terminal.verdict_line(run_of(items)) == (
        "REJECTED  reference: kv (TP0, TP1); restart-1: kv."
        " 2 passed, 1 failed, 1 not exercised, 0 not observable, 0 waived."
    )


def test_a_check_that_no_start_shows_is_told_with_its_waiver() -> None:
    unseen = {key: ItemResult(*key, "not observable") for key in KEYS if key[1] == "kv"}
    others = passed(*(key for key in KEYS if key[1] != "kv"))
    assert terminal.unseen_lines(run_of({**others, **unseen})) == [
        "no start shows kv: where this engine never can, the profile says so: waive: [{check: kv, reason: …}]"
    ]
    lost = {**others, **unseen, ("reference", "kv"): ItemResult("reference", "kv", "passed")}
    assert terminal.unseen_lines(run_of(lost)) == [], "evidence that was lost is nothing to waive"
    waived = {key: replace(item, waived="by design") for key, item in unseen.items()}
    assert terminal.unseen_lines(run_of({**others, **waived})) == []


def test_preflight_is_a_status_of_its_own() -> None:
    result = ProfileResult("x.yaml", "demo", expected=[PREFLIGHT])
    assert terminal.verdict_line(result) == "PREFLIGHT  the host was not looked at"
    result.results[PREFLIGHT] = ItemResult(*PREFLIGHT, "failed")
    assert terminal.verdict_line(result) == "PREFLIGHT  the host is not fit"


def test_the_table_shows_a_dash_for_what_nothing_stated() -> None:
    lines = terminal.table(
        [
            StartRow(
                "reference", "p", 241.31, {"weights": 61.2, "graph-capture": 69.0}, "338,624", {"1": 19.8, "8": 61.4}
            ),
            StartRow(
                "restart-1", "p", 98.7, {"weights": 3.0}, "338,624", {"8": 61.2}, note="a drop ≥ 2.1 % would show"
            ),
            StartRow("restart-2", "p", None, {}, None, {}, failed="start failed in phase weights: no"),
        ]
    )
    assert lines == [
        "           weights  graphs   ready  KV tokens  tok/s c1  tok/s c8",
        "reference    61.2s   69.0s  241.3s    338,624      19.8      61.4",
        "restart-1     3.0s       –   98.7s    338,624         –      61.2  (a drop ≥ 2.1 % would show)",
        "restart-2        –       –       –          –         –         –  (start failed in phase weights: no)",
    ]


def test_rows_take_the_slowest_rank_and_the_endpoint_before_the_log() -> None:
    record = start_record("restart-1")
    assert rows.start_row(record).phases == {"weights": 4.5}
    metrics = Evidence("endpoint", "GET /metrics", "num_gpu_blocks 512")
    facts = (*record.facts, Fact("kv.tokens", 8192, metrics), Fact("kv.tokens", 8000, metrics))
    assert rows.start_row(replace(record, facts=facts)).kv_tokens == "8,000 … 8,192"


def test_a_capacity_that_was_only_multiplied_out_is_not_shown_where_the_log_states_one() -> None:
    record = start_record("restart-1")
    blocks = Fact("kv.tokens", 8192, Evidence("endpoint", "GET /metrics", "x"), detail={"derived": True})
    assert rows.start_row(replace(record, facts=(*record.facts, blocks))).kv_tokens == "4,096"
    assert rows.start_row(replace(record, facts=(blocks,))).kv_tokens == "8,192"


def test_throughput_is_the_median_of_whole_batches() -> None:
    samples = tuple(ThroughputSample(8, i, 8, failed, tokens, 10.0) for i, (failed, tokens) in
                    enumerate([(0, 800), (0, 900), (0, 1000), (1, 5)]))  # fmt: skip
    assert rows.throughput(start_record("x", throughput=samples)) == {"8": 90.0}


def test_the_row_says_what_drop_would_have_shown() -> None:
    seen = Evidence("workload", "throughput", "x")
    numbers = {"tok/s c1": 20.0, "smallest visible drop c1 %": 1.2, "smallest visible drop c8 %": 2.08}
    verdict = Verdict("throughput", Outcome.PASSED, evidence=(seen,), numbers=numbers)
    assert rows.start_row(start_record("restart-1"), {"throughput": verdict}).note == "a drop ≥ 2.1 % would show"
    assert rows.start_row(start_record("restart-1")).note == ""


def test_a_row_shows_only_the_beginning_of_a_long_failure() -> None:
    failure = Failure("weights", "killed", "VLLM::Worker_TP1 (pid 7) was killed by SIGKILL; " + "and so on " * 30)
    row = rows.start_row(start_record("reference", failure=failure))
    assert row.failed is not None
    (_, line) = terminal.table([row])
    assert "(start failed in phase weights: VLLM::Worker_TP1 (pid 7) was killed by SIGKILL; and" in line
    assert line.endswith("…)")
    assert len(line) < len(row.failed)


def test_the_identity_line_names_only_what_was_seen_or_pinned(tmp_path: Path) -> None:
    def fact(name: str, value: str | int, **detail: int) -> Fact:
        return Fact(name, value, Evidence("gpu", "NVML"), detail=detail)

    path = tmp_path / "x.yaml"
    path.write_text("schema: 1\n")
    profile = Profile(path, "x", Engine("vllm", "org/m", version="0.31.0", revision="0123456789"), Launch())
    facts = (
        fact("engine.version", "0.31.0"),
        fact("gpu.name", "GH200", gpu=0),
        fact("gpu.name", "GH200", gpu=1),
        fact("gpu.driver", "580.65"),
        fact("host.page_size", 65536),
    )
    seen = rows.identity(profile, [start_record("reference", facts=facts)])
    assert terminal.identity_line(seen) == ("vllm 0.31.0 · org/m @ 0123456 · 2 × GH200 · driver 580.65 · 64 KiB pages")
    unseen = rows.identity(profile, [])
    assert terminal.identity_line(unseen) == "vllm 0.31.0 (pinned, not seen) · org/m @ 0123456"


def test_a_failed_start_without_a_line_that_explains_it_shows_the_last_lines() -> None:
    last = Evidence("log", "head/engine.log", "Loading weights: 3/11", line=88)
    failure = Failure("weights", "hang", "the log stopped", after_seconds=300.0, last_lines=(last,))
    assert terminal.start_failure_text(start_record("restart-1", failure)) == (
        "start failed in phase weights after 300 s: the log stopped\n"
        "  cause     no line explains it; the last lines were\n"
        "            restart-1/head/engine.log:88  Loading weights: 3/11"
    )


def test_evidence_names_the_start_that_saw_it() -> None:
    seen = Evidence("log", "head/engine.log", "KV 4096", line=7, node="head")
    before = start_record("reference", facts=(Fact("kv.tokens", 4096, seen),))
    after = start_record("restart-1", facts=())
    records = {"reference": before, "restart-1": after}
    assert terminal.evidence_line(seen, "restart-1", records) == "reference/head/engine.log:7  KV 4096"
    other = Evidence("endpoint", "GET /metrics", "x", node="worker")
    assert terminal.evidence_line(other, "restart-1", records) == "GET /metrics  (node worker)  x"


@given(st.text())
def test_nothing_printed_can_steer_a_terminal(text: str) -> None:
    finding = Finding(text, text, (text,), (Evidence("log", "a", text),), (text,))
    verdict = Verdict("kv", Outcome.FAILED, (finding,))
    profile = Profile(Path("x.yaml"), "x", Engine("vllm", "m"), Launch())
    out = terminal.verdict_text(verdict, profile, "restart-1", {})
    assert all(c.isprintable() or c == "\n" for c in out)
    assert out.count("\n") >= 3


@given(st.text(), st.dictionaries(st.text(min_size=1), st.one_of(st.integers(), st.floats(allow_nan=False), st.text())))
def test_a_result_travels_unchanged(text: str, numbers: dict[str, float | int | str]) -> None:
    item = ItemResult("restart-1", "kv", "failed", text, text, ranks=("TP0",), numbers=numbers, line=3)
    result = ProfileResult("x.yaml", "x", expected=KEYS)
    assert result.add(to_wire(item, [StartRow("restart-1", failed=text)], {"engine": "vllm"}, None)) == item
    assert result.rows["restart-1"].failed == text


@pytest.mark.parametrize(
    ("last", "named"), [(2, "reference, restart-1, restart-2"), (20, "reference, restart-1 … restart-20: 21 starts")]
)
def test_a_waiver_names_the_starts_for_which_it_was_needed(last: int, named: str) -> None:
    starts = ["reference", *(f"restart-{n}" for n in range(1, last + 1))]
    result = ProfileResult("x.yaml", "x", expected=tuple((start, "graphs") for start in starts))
    for start in starts:
        item = ItemResult(start, "graphs", "not observable", "", "", waived="a CPU")
        result.add(to_wire(item, [], {}, None))
    assert terminal.waived_lines(result) == [f"waived    graphs: not observable ({named}): a CPU"]


def test_sticky_text_is_one_line() -> None:
    text = terminal.sticky_text(start_record("restart-1", FAILURE))
    assert "\n" not in text
    assert text == "restart-1: start failed in phase preparation on rank TP0 after 41 s: out of device memory"
