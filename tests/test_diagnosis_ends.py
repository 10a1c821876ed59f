"""What became of a start: clean ends, silent ends, readiness, failures in serving, reuse, phases and progress."""

from __future__ import annotations

import pytest
from helpers_diagnosis import (
    BEGIN,
    CAPTURED,
    COMPILED,
    DEAD,
    GIVEN_UP,
    KV,
    LOADED,
    OOM,
    READY,
    SGLANG,
    SGLANG_LOADED,
    SGLANG_READY,
    SGLANG_UP,
    UP,
    WEIGHTS,
    bare,
    clean,
    failed,
    follow,
    raised,
    record,
    scheduler,
    told,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup.engines.anchors import ANCHORS

# Starts that just end, and starts that did not fail


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        ([*BEGIN, *WEIGHTS], "weights"),
        ([*BEGIN, *WEIGHTS, *LOADED], "profiling"),
        ([*BEGIN, *WEIGHTS, *LOADED, *COMPILED[:1]], "compile"),
        ([*BEGIN, *WEIGHTS, *LOADED, *COMPILED, *KV], "kv-reservation"),
        ([*BEGIN, *WEIGHTS, *LOADED, *COMPILED, *KV, CAPTURED[0]], "graph-capture"),
        ([*BEGIN, *WEIGHTS, *LOADED, *COMPILED, *KV, *CAPTURED, *UP[:2]], "api"),
        (SGLANG, "weights"),
        ([*SGLANG, *SGLANG_LOADED], "graph-capture"),
        ([*SGLANG, *SGLANG_LOADED, *SGLANG_UP], "api"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_log_that_stops_died_silently_or_still_runs(lines: list[str], phase: str) -> None:
    summary = told(lines)
    assert (summary.ready, summary.failed, summary.last_phase) == (None, None, phase)
    assert summary.failure is not None
    assert (summary.failure.kind, summary.failure.phase, summary.failure.cause) == ("stopped", phase, None)
    assert "died silently or still running" in summary.failure.summary


def test_a_head_that_waits_for_its_peer_says_so() -> None:
    summary = told(BEGIN)
    assert summary.failed is None
    assert summary.failure is not None
    assert summary.failure.kind == "peer-missing"
    assert "wait for its peers" in summary.failure.summary


@pytest.mark.parametrize(
    "tail",
    [
        [],
        [record("[shutdown] API server: shutdown triggered", "APIServer pid=1"), *DEAD],
        ["(APIServer pid=1) INFO:     Shutting down", "(APIServer pid=1) INFO:     Finished server process [1]", *DEAD],
        [
            record(
                "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.", "APIServer pid=1", "ERROR"
            ),
            *DEAD,
            record("Shutting down FastAPI HTTP server.", "APIServer pid=1", source="launcher.py:110"),
        ],
        bare("KeyboardInterrupt", ["run_server"], "APIServer pid=1") + DEAD,
        ["Exception ignored in: <function Foo.__del__ at 0x7f>", *bare("AttributeError: x", ["__del__"])],
        [
            "(APIServer pid=1) ERROR:    Exception in ASGI application",
            *bare("ValueError: bad request", ["handle"], "APIServer pid=1"),
        ],
        raised("ValueError: no such adapter", ["add_lora"], head="Invocation of add_lora method failed"),
        [record("Segmentation fault is what you asked about", "APIServer pid=1")],
    ],
)
def test_after_readiness_only_a_death_is_a_failure(tail: list[str]) -> None:
    clean(told([*READY, *tail]))


@pytest.mark.parametrize(
    "recovered",
    [
        raised("OSError: no such file", ["maybe_load"], head="Failed to read the cache"),
        [record("Compiling model again due to a load failure", level="WARNING")],
        raised("RuntimeError: x", ["profile"], "EngineCore pid=7", "Something failed")[:-1],
        [
            "Exception in thread Thread-2 (_report_usage_worker):",
            *bare("ConnectionError: HTTPSConnectionPool", ["_report"]),
        ],
        bare("json.decoder.JSONDecodeError: Expecting value", ["poll"], package="scripts"),
        ["/start.sh: line 3: nvidia-smi: command not found"],
        ["[W1129 16:31:15.27 socket.cpp:464] [c10d] bind failed (errno: 98 - Address already in use)."],
    ],
)
def test_what_was_recovered_is_no_failure(recovered: list[str]) -> None:
    clean(told([*BEGIN, *recovered, *READY[4:]]))
    half = told([*BEGIN, *recovered, *WEIGHTS, *LOADED])
    assert half.failed is None, half.failure


def test_a_warning_with_a_traceback_is_no_failure() -> None:
    trace = [
        line.replace("ERROR", "WARNING")
        for line in raised("ImportError: no module", ["import_kernels"], head="No kernels")
    ]
    assert told([*BEGIN, *WEIGHTS, *trace]).failed is None


def test_a_traceback_in_a_native_warning_is_no_failure() -> None:
    head = "W0607 11:56:57.513000 1 torch/_dynamo/x.py:3] Traceback (most recent call last):"
    assert told([*BEGIN, *WEIGHTS, head, *bare("RuntimeError: recompiled", ["f"], package="torch")[1:]]).failed is None


def test_the_error_of_an_earlier_attempt_is_not_this_one_s() -> None:
    assert told([*GIVEN_UP, *GIVEN_UP, *BEGIN[2:], *WEIGHTS, *LOADED]).failed is None


def test_a_node_without_api_server_that_is_stopped_did_not_fail() -> None:
    stop = record("[shutdown] Executor: waiting for worker exit count=1", "MainProcess pid=3", source="x.py:1")
    summary = told([*BEGIN, *WEIGHTS, *LOADED, *COMPILED, *KV[:1], stop])
    assert (summary.ready, summary.failed, summary.failure) == (None, None, None)


def test_nothing_at_all() -> None:
    summary = told([])
    assert (summary.ready, summary.failed, summary.failure, summary.phases) == (None, None, None, ())


# Readiness


def test_ready_is_the_engines_own_claim() -> None:
    assert told(READY).ready_line == len(READY)
    assert told(SGLANG_READY).ready_line == len(SGLANG_READY)


def test_sglang_s_http_server_is_not_readiness() -> None:
    assert told([*SGLANG, *SGLANG_LOADED, *SGLANG_UP]).ready is None


def test_an_answer_of_the_server_is_a_claim() -> None:
    answer = '(APIServer pid=1) INFO:     127.0.0.1:52880 - "GET /health HTTP/1.1" 200 OK'
    assert told([*READY[:-3], answer]).ready is True
    assert told([*READY[:-3], answer.replace("/health", "/metrics")]).ready is True
    own = answer.replace("(APIServer pid=1) ", "[2026-06-07 11:58:17] ")
    assert told([*SGLANG, own]).ready is True
    assert told([*SGLANG, own.replace("/health", "/get_model_info")]).ready is None
    assert told([*READY[:-3], 'probe said: "GET /health HTTP/1.1" 200']).ready is None
    assert told([*READY[:-3], answer.replace("200 OK", "503 Service Unavailable")]).ready is None


def test_a_claim_of_readiness_outweighs_the_death_of_an_attempt_before_it() -> None:
    attempt = [record("EngineCore failed to start.", level="ERROR"), *raised("ValueError: x", ["load_model"])]
    clean(told([*attempt, *UP]))


# Failures in serving


def test_a_crash_in_serving_is_ready_and_failed() -> None:
    error = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    fatal = raised(error, ["run_busy_loop", "execute_model"], head="EngineCore encountered a fatal error.")
    lines = [*READY, *fatal, *DEAD, "(APIServer pid=1) INFO:     Shutting down"]
    failed(told(lines), lines, "serving", "device-fault", error, ready=True)


def test_a_killed_worker_in_serving() -> None:
    died = record("Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.", level="ERROR")
    fatal = raised("RuntimeError: cancelled", ["run_busy_loop"], head="EngineCore encountered a fatal error.")
    lines = [*READY, died, *fatal, *DEAD]
    failed(told(lines), lines, "serving", "killed", "died unexpectedly", ready=True)


def test_an_engine_core_that_is_gone() -> None:
    gone = record(
        "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup", "APIServer pid=1", "WARNING"
    )
    lines = [*READY, gone, *DEAD, "(APIServer pid=1) INFO:     Shutting down"]
    failed(told(lines), lines, "serving", "process-died", "exited unexpectedly", ready=True)


def test_an_old_request_error_is_not_the_cause_of_a_later_death() -> None:
    early = raised("ValueError: one request", ["execute_model"], "EngineCore pid=7", "request failed")
    traffic = [record("Engine 000: Avg prompt throughput: 1.0 tokens/s", "APIServer pid=1")] * 3200
    error = "torch.AcceleratorError: CUDA error: device-side assert triggered"
    lines = [*READY, *early, *traffic, *raised(error, ["run_busy_loop"], head="EngineCore encountered a fatal error.")]
    failed(told(lines), lines, "serving", "device-fault", error, ready=True)


def test_a_wake_up_that_fails() -> None:
    native = "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62"
    lines = [*READY, native]
    failed(told(lines), lines, "serving", "out-of-device-memory", native, ready=True)


def test_sglang_dies_in_serving() -> None:
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    lines = [*SGLANG_READY, *scheduler(" TP1", error, ["event_loop_overlap", "run_batch"])]
    failure = failed(told(lines), lines, "serving", "device-fault", error, ready=True)
    assert failure.rank == "TP1"


def test_sglang_s_watchdog() -> None:
    line = "[2026-06-07 12:30:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"
    lines = [*SGLANG_READY, line, "[2026-06-07 12:30:05] SIGQUIT received. signum=3, frame=None. It usually means"]
    failed(told(lines), lines, "serving", "hang", line, ready=True)


def test_sglang_stops_when_it_is_told_to() -> None:
    clean(
        told([*SGLANG_READY, "[2026-06-07 12:30:00] SIGTERM received. signum=None frame=None. Draining requests and"])
    )


def test_memory_that_could_not_be_registered_is_why_the_first_transfer_fails() -> None:
    native = (
        "E0529 23:22:59.553362 67580 rdma_context.cpp:203] Failed to register memory 0x7c1cda000000: Bad address [14]"
    )
    clean(told([*SGLANG, native, *SGLANG_READY[len(SGLANG) :]]))
    lines = [*SGLANG, native, *SGLANG_READY[len(SGLANG) :]]
    lines.append(
        "[2026-06-07 12:00:00] Prefill transfer failed for request rank=0 req.rid='a' with exception KVTransferError(1)"
    )
    failed(told(lines), lines, "serving", "transfer-failed", "Failed to register memory", ready=True)


def test_line_numbers_that_fall_do_not_turn_the_order_of_time() -> None:
    error = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    lines = [*READY, *raised(error, ["run_busy_loop"], head="EngineCore encountered a fatal error."), *DEAD]
    summary = follow(lines, step=-1, first=len(lines)).finish()
    assert summary.failure is not None
    assert summary.failure.cause is not None
    assert "illegal memory access" in summary.failure.cause.text


# Reuse of compilation, phases, progress


@pytest.mark.parametrize(
    ("lines", "reused"),
    [
        ([], None),
        (["Using cache directory: /c/torch_compile_cache/0a/rank_0_0 for vLLM's torch.compile"], None),
        (["Dynamo bytecode transform time: 3.66 s", "torch.compile took 4.10 s in total"], None),
        (["Directly load the compiled graph for shape None from the cache"], True),
        (["Directly load AOT compilation from path /c/torch_aot_compile/0a/rank_0_0/model"], True),
        (["Cache the graph of compile range (1, 8192) for later use"], False),
        (["Compiling a graph for dynamic shape takes 4.87 s"], False),
        (["saved AOT compiled function to /c/torch_aot_compile/0a/rank_0_0/model"], False),
        (
            [
                "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 0.3 s",
                "saved AOT compiled function to /c/torch_aot_compile/0a/rank_0_0/model",
            ],
            "partial",
        ),
    ],
)
def test_reuse_of_compilation(lines: list[str], reused: bool | str | None) -> None:
    assert told([*BEGIN, *[record(line) for line in lines]]).compile_reused == reused


@pytest.mark.parametrize(("loading", "reused"), [((0, 1), True), ((0,), "partial")])
def test_a_rank_that_loads_nothing_is_only_seen_by_its_silence(loading: tuple[int, ...], reused: bool | str) -> None:
    lines = [
        record(
            f"world_size=2 rank={r} local_rank={r} distributed_init_method=tcp://h:1 backend=nccl", f"Worker pid={r}"
        )
        for r in (0, 1)
    ]
    lines += [
        record(
            f"Directly load AOT compilation from path /c/torch_aot_compile/0a/rank_{r}_0/model", f"Worker_TP{r} pid={r}"
        )
        for r in loading
    ]
    assert told([*BEGIN[:3], *lines]).compile_reused == reused


def test_sglang_prints_the_same_for_a_compilation_and_a_hit() -> None:
    assert (
        told([*SGLANG, "[2026-06-07 11:57:59 TP0] Compiling a graph for dynamic shape takes 0.38 s"]).compile_reused
        is None
    )


def test_phases_have_lines_and_stated_durations() -> None:
    spans = told(READY).phases
    names = [span.phase for span in spans]
    assert names[0] == "launch"
    assert names[-1] == "serving"
    for name in (
        "device-init",
        "weights",
        "preparation",
        "profiling",
        "compile",
        "kv-reservation",
        "graph-capture",
        "api",
    ):
        assert name in names
    weights = next(span for span in spans if span.phase == "weights")
    assert (weights.seconds, weights.source) == (4.1, "stated")
    assert READY[(weights.first_line or 0) - 1] == WEIGHTS[0]
    assert all((span.first_line or 0) <= (span.last_line or 0) for span in spans)


def test_weights_reloaded_while_serving_do_not_go_back_a_phase() -> None:
    assert told([*READY, record("Starting to load model m...")]).last_phase == "serving"


def test_progress_is_that_of_the_rank_furthest_behind() -> None:
    lines = [*SGLANG, SGLANG_LOADED[0], SGLANG_LOADED[2]]
    progress = follow(lines).progress()
    assert (progress.phase, progress.rank) == ("weights", "TP1")
    assert progress.line is not None
    assert progress.line.line == 5
    done = follow(SGLANG_READY).progress()
    assert (done.phase, done.rank) == ("serving", None)


def test_a_line_for_the_node_moves_ranks_that_print_nothing_more() -> None:
    lines = [
        record(f"world_size=2 rank={r} local_rank={r} distributed_init_method=tcp://h:1", f"Worker_TP{r} pid={r}")
        for r in (0, 1)
    ]
    assert follow([*BEGIN, *lines]).progress().phase == "device-init"
    assert (
        follow([*BEGIN, *lines, record("Starting to load model m...", "Worker_TP0 pid=0")]).progress().phase
        == "weights"
    )


# Robustness


def test_anchors_leave_traffic_alone() -> None:
    traffic = [
        'INFO:     172.17.0.1:60610 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        'INFO:     172.17.0.1:60610 - "GET /health HTTP/1.1" 200 OK',
        "(APIServer pid=1) INFO 11-29 10:00:00 [loggers.py:248] Engine 000: Avg prompt throughput: "
        "0.0 tokens/s, Avg generation "
        "throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, "
        "Prefix cache hit rate: 0.0%",
        "(APIServer pid=1) INFO 11-29 10:00:00 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.10",
        "[2026-01-17 10:36:59 DP0 TP0] Decode batch, #running-req: 2, #token: 512, token usage: 0.00, cuda graph: True",
        "[2026-01-17 10:36:59 DP0 TP0] Prefill batch, #new-seq: 1, #new-token: 128, #cached-token: "
        "0, token usage: 0.00",
    ]
    for line in traffic:
        assert not [anchor for anchor in ANCHORS if anchor in line], line


PIECES = [
    *READY,
    *DEAD,
    *GIVEN_UP,
    *SGLANG_READY,
    *scheduler(" TP0", OOM, ["load_model"]),
    "",
    "\x00\xff",
    "  File",
    OOM,
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=40), max_size=60))
def test_any_mixture_of_lines_gives_a_summary_that_agrees_with_itself(lines: list[str]) -> None:
    tracker = follow(lines)
    tracker.progress()
    summary = tracker.finish()
    if summary.failed:
        assert summary.failure is not None
    if summary.failure is not None and summary.failure.cause is not None:
        number = summary.failure.cause.line
        assert number is not None
        assert 1 <= number <= len(lines)
    if summary.ready:
        assert summary.ready_line is not None


def test_memory_stays_constant_over_a_long_start() -> None:
    tracker = follow([*READY, *[line for _ in range(400) for line in raised("ValueError: x", ["handle"], head="bad")]])
    assert len(tracker._candidates) <= 32
