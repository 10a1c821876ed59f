"""What native code, Ray, containers and service managers say of an end, outside of any traceback."""

from __future__ import annotations

import pytest
from helpers_diagnosis import SGLANG, SGLANG_LOADED, bare, record, scheduler, told

from pytest_startup.engines.reader import Reader, read
from pytest_startup.engines.registry import tables


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("realloc(): invalid pointer", "crashed"),
        ("munmap_chunk(): invalid pointer", "crashed"),
        ("corrupted double-linked list", "crashed"),
        ("*** stack smashing detected ***: terminated", "crashed"),
        ("Illegal instruction", "crashed"),
        ("(EngineCore pid=7) (RayWorkerProc pid=9, ip=192.0.2.7) Fatal Python error: Aborted", "crashed"),
        ("(EngineCore pid=7) (RayWorkerProc pid=9, ip=192.0.2.7) Bus error", "crashed"),
        ("vllm-1 exited with code 139", "crashed"),
        ("Mar 04 05:06:07 n7 systemd[1]: v.service: Main process exited, code=dumped, status=11/SEGV", "crashed"),
        ("Mar 04 05:06:07 n7 systemd[1]: v.service: Main process exited, code=killed, status=9/KILL", "killed"),
        (
            "Mar 04 05:06:07 n7 systemd[1]: v.service: A process of this unit has been killed by the OOM killer.",
            "killed",
        ),
        ("HW Exception by GPU node-2 (Agent handle: 0x5c) reason :GPU Hang", "device-fault"),
        (
            ":0:rocdevice.cpp :2900: 77d us: Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: x",
            "device-fault",
        ),
        (
            "(raylet) [2026-05-06 07:08:09,1 E 4 4] (raylet) node_manager.cc:3100: "
            "1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
            "out-of-host-memory",
        ),
    ],
)
def test_what_native_code_and_ray_say_outside_of_tracebacks(line: str, kind: str) -> None:
    loading = [record("Initializing a V1 LLM engine (v0.21.0) with config: x"), record("Starting to load model m...")]
    end = bare("RuntimeError: Engine core initialization failed. See root cause above.", ["main"], "APIServer pid=1")
    failure = told([*loading, line, *end]).failure
    assert failure is not None
    assert (failure.kind, failure.phase) == (kind, "weights")
    assert failure.cause is not None
    assert failure.cause.line == len(loading) + 1


def test_a_job_that_slurm_cancels_while_it_loads_was_interrupted_and_after_that_stopped() -> None:
    loading = [record("Initializing a V1 LLM engine (v0.21.0) with config: x"), record("Starting to load model m...")]
    cancelled = "slurmstepd: error: *** STEP 41.0 ON n7 CANCELLED AT 2026-05-06T07:08:09 DUE TO TIME LIMIT ***"
    failure = told([*loading, cancelled]).failure
    assert failure is not None
    assert (failure.kind, failure.phase) == ("interrupted", "weights")
    assert told([*loading, "(APIServer pid=1) INFO:     Application startup complete.", cancelled]).failed is False


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("vllm-1 exited with code 1", True),
        ("Mar 04 05:06:07 n7 systemd[1]: v.service: Main process exited, code=exited, status=1/FAILURE", True),
        ("vllm-1 exited with code 0", None),
        ("vllm-1 exited with code 143", None),
    ],
)
def test_the_exit_status_is_a_cause_only_where_nothing_else_was_said(line: str, failed: bool | None) -> None:
    loading = [record("Initializing a V1 LLM engine (v0.21.0) with config: x"), record("Starting to load model m...")]
    assert told([*loading, line]).failed is failed
    reason = bare("ValueError: no shard", ["load_model"], "EngineCore pid=7")
    failure = told([*loading, *reason, line]).failure
    assert failure is not None
    assert failure.cause is not None
    assert "no shard" in (failure.cause.text or "")
    serving = [*loading, "(APIServer pid=1) INFO:     Application startup complete.", line]
    assert told(serving).failed is False


def test_a_container_s_banner_begins_another_start_where_the_log_level_hides_the_engine_s_own() -> None:
    log = "\n".join(
        [
            "Starting vLLM v0.26.0",
            *bare("ValueError: not free", ["init_device"], "Worker pid=4"),
            "Starting vLLM v0.26.0",
            "(APIServer pid=1) INFO:     Application startup complete.",
            "",
        ]
    )
    facts, starts = read([log.encode()], Reader(tables()))
    assert [start.failed for start in starts] == [True, False]
    assert [(fact.value, fact.start) for fact in facts if fact.name == "engine.version"] == [
        ("0.26.0", 0),
        ("0.26.0", 1),
    ]


CORE_UP = [
    record("Initializing a V1 LLM engine (v0.21.0) with config: x"),
    record("init engine (profile, create kv cache, warmup model) took 12.00 s"),
]


@pytest.mark.parametrize(
    "use",
    [
        "Processed prompts:  10%|#         | 1/10 [00:01<00:10,  1.10s/it]",
        record("Sleep mode freed 46.90 GiB memory, 1.80 GiB memory is still in use."),
        record("Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s"),
    ],
)
def test_an_engine_without_a_server_is_in_use_though_it_never_says_that_it_is_ready(use: str) -> None:
    up = told(CORE_UP)
    assert (up.ready, up.last_phase) == (None, "api")
    summary = told([*CORE_UP, use, *bare("RuntimeError: boom", ["generate"])])
    assert (summary.ready, summary.failed) == (False, True)
    assert summary.failure is not None
    assert summary.failure.phase == "serving"


def test_a_paste_that_begins_amid_the_traffic_fails_in_serving() -> None:
    answer = '(APIServer pid=1) INFO:     192.0.2.7:4 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    failure = told([answer, "CUDA Error: out of memory at /src/cumem_allocator.cpp:139"]).failure
    assert failure is not None
    assert (failure.kind, failure.phase) == ("out-of-device-memory", "serving")


@pytest.mark.parametrize(
    ("native", "error", "kind"),
    [
        (
            "n7:27:27 [2] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 192.0.2.9<433> failed : aborted",
            "RuntimeError: NCCL error: unhandled system error",
            "collective-failed",
        ),
        (
            "[1777.1] [n7:27 :0]  ib_md.c:1100 UCX  ERROR mlx5_7: ibv_modify_qp(QP 0x9b) failed to modify to RTR",
            "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND",
            "transfer-failed",
        ),
    ],
)
def test_what_a_network_library_said_before_is_the_cause(native: str, error: str, kind: str) -> None:
    begin = record("Initializing a V1 LLM engine (v0.21.0) with config: x")
    failure = told([begin, native, *bare(error, ["init_device"], "EngineCore pid=7")]).failure
    assert failure is not None
    assert failure.kind == kind
    assert failure.cause is not None
    assert failure.cause.line == 2


@pytest.mark.parametrize(
    ("end", "failed"),
    [
        (["vllm exited with code 137"], True),
        (["prometheus exited with code 137"], False),
        (["Gracefully Stopping... press Ctrl+C again to force", "vllm exited with code 137"], False),
    ],
)
def test_only_the_end_of_the_engine_s_own_service_counts_and_not_after_a_stop(end: list[str], failed: bool) -> None:
    begin = record("Initializing a V1 LLM engine (v0.21.0) with config: x")
    up = [f"vllm  | {line}" for line in (begin, "(APIServer pid=1) INFO:     Application startup complete.")]
    assert told([*up, *end]).failed is failed


@pytest.mark.parametrize("loop", ["event_loop_normal_disagg_prefill", "event_loop_overlap_disagg_decode"])
def test_a_node_of_sglang_that_never_claims_to_be_ready_fails_in_its_loop(loop: str) -> None:
    lost = scheduler(" TP22 EP22", "RuntimeError: [pair.cc:544] Connection closed by peer [192.0.2.9]:15", [loop])
    failure = told([*SGLANG, *SGLANG_LOADED, *lost]).failure
    assert failure is not None
    assert (failure.phase, failure.rank) == ("serving", "TP22 EP22")
