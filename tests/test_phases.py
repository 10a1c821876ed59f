"""Phases as data: opening lines of both engines, and the frames that name a phase."""

from __future__ import annotations

import pytest

from pytest_startup.engines.frames import FRAMES, phase_of_frames
from pytest_startup.engines.phase_table import OPENERS, TABLE
from pytest_startup.engines.phases import SCOPES, Opener, OpenerTable, order
from pytest_startup.engines.tracebacks import Frame
from pytest_startup.record import PHASES


@pytest.mark.parametrize("opener", OPENERS, ids=lambda o: f"{o.phase}-{o.anchor}")
def test_opener_matches_its_example_and_not_its_counter(opener: Opener) -> None:
    table = OpenerTable([opener])
    assert opener.anchor in opener.example
    assert len(opener.anchor) >= 5
    assert table.match(opener.example) is opener
    assert table.match(opener.counter) is None
    assert opener.phase in PHASES
    assert opener.scope in SCOPES


@pytest.mark.parametrize("opener", OPENERS, ids=lambda o: f"{o.phase}-{o.anchor}")
def test_all_openers_together_give_the_same_phase(opener: Opener) -> None:
    found = TABLE.match(opener.example)
    assert found is not None
    assert (found.engine, found.phase) == (opener.engine, opener.phase)


@pytest.mark.parametrize(
    "line",
    [
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 0 reqs, GPU KV cache usage: "
        "0.0%, Prefix cache hit rate: 0.0%",
        '127.0.0.1:52880 - "GET /health HTTP/1.1" 200 OK',
        "Decode batch, #running-req: 2, #token: 512, token usage: 0.00, cuda graph: True, gen "
        "throughput (token/s): 0.51",
        "Starting vLLM Server with memory optimizations...",
        "Overriding num_gpu_blocks=0 with num_gpu_blocks_override=16",
        "No available shared memory broadcast block found in 60 seconds.",
    ],
)
def test_lines_that_open_nothing(line: str) -> None:
    assert TABLE.match(line) is None


def test_every_phase_of_a_start_can_be_opened_by_both_engines() -> None:
    for engine in ("vllm", "sglang"):
        phases = {o.phase for o in OPENERS if o.engine == engine}
        assert {"device-init", "weights", "kv-reservation", "warm-up", "graph-capture", "api", "serving"} <= phases


@pytest.mark.parametrize("rule", FRAMES, ids=lambda r: f"{r.phase}-{r.functions[0]}")
def test_frame_rules_name_their_phase(rule: object) -> None:
    from pytest_startup.engines.frames import FrameRule

    assert isinstance(rule, FrameRule)
    for function in rule.functions:
        phase, weak = phase_of_frames([Frame(f"/lib/{rule.file}/x.py", function)])
        assert (phase, weak) == (rule.phase, rule.weak)


@pytest.mark.parametrize(
    ("functions", "phase"),
    [
        (("load_model", "process_weights_after_loading", "repack"), "preparation"),
        (("_initialize_kv_caches", "determine_available_memory", "profile_run", "_dummy_run"), "profiling"),
        (("determine_available_memory", "profile_cudagraph_memory", "_dummy_run"), "graph-capture"),
        (("_initialize_kv_caches", "get_kv_cache_configs"), "kv-reservation"),
        (("compile_or_warm_up_model", "kernel_warmup"), "warm-up"),
        (("compile_or_warm_up_model", "capture_model", "_dummy_run"), "graph-capture"),
        (("profile_run", "execute_model"), "profiling"),
        (("worker_busy_loop", "execute_model"), "serving"),
        (("run_engine_core", "run_busy_loop", "step", "execute_model"), "serving"),
        (("main", "nothing"), None),
    ],
)
def test_the_innermost_telling_frame_counts(functions: tuple[str, ...], phase: str | None) -> None:
    assert phase_of_frames([Frame("/lib/vllm/x.py", name) for name in functions])[0] == phase


def test_a_rule_for_a_file_needs_that_file() -> None:
    assert phase_of_frames([Frame("/lib/sglang/srt/cuda_graph_runner.py", "capture")])[0] == "graph-capture"
    assert phase_of_frames([Frame("/lib/app/screen.py", "capture")])[0] is None


def test_order_is_that_of_the_record() -> None:
    assert [order(phase) for phase in PHASES] == list(range(len(PHASES)))
