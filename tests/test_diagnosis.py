"""What became of a start: hand-written logs of every kind of end, as vLLM and SGLang print them."""

from __future__ import annotations

import pytest
from helpers_diagnosis import (
    BEGIN,
    COMPILED,
    CORE,
    GIVEN_UP,
    KV,
    KV_SMALL,
    LOADED,
    OOM,
    READY,
    SGLANG,
    SGLANG_LOADED,
    UP,
    WEIGHTS,
    bare,
    clean,
    failed,
    raised,
    record,
    scheduler,
    told,
)

# Failures before readiness


@pytest.mark.parametrize(
    ("before", "functions", "error", "phase", "kind"),
    [
        ([], ["load_model", "initialize_model", "create_weights"], OOM, "weights", "out-of-device-memory"),
        (
            WEIGHTS,
            ["load_model", "process_weights_after_loading", "repack_weights"],
            OOM,
            "preparation",
            "out-of-device-memory",
        ),
        (
            [*WEIGHTS, *LOADED],
            ["_initialize_kv_caches", "determine_available_memory", "profile_run", "_dummy_run"],
            OOM,
            "profiling",
            "out-of-device-memory",
        ),
        (
            [*WEIGHTS, *LOADED, *COMPILED],
            ["_initialize_kv_caches", "get_kv_cache_configs", "_check_enough_kv_cache_memory"],
            KV_SMALL,
            "kv-reservation",
            "kv-too-small",
        ),
        (
            [*WEIGHTS, *LOADED, *COMPILED, *KV],
            ["_initialize_kv_caches", "initialize_from_config", "_allocate_kv_cache_tensors"],
            OOM,
            "kv-reservation",
            "out-of-device-memory",
        ),
        (
            [*WEIGHTS, *LOADED, *COMPILED, *KV],
            ["_initialize_kv_caches", "compile_or_warm_up_model", "kernel_warmup"],
            "ModuleNotFoundError: No module named 'flashinfer.comm'",
            "warm-up",
            "missing-module",
        ),
        (
            [*WEIGHTS, *LOADED, *COMPILED, *KV],
            ["_initialize_kv_caches", "compile_or_warm_up_model", "capture_model", "_dummy_run"],
            OOM,
            "graph-capture",
            "out-of-device-memory",
        ),
        (
            WEIGHTS,
            ["load_model", "initialize_model", "get_attn_backend"],
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=80)",
            "weights",
            "unsupported-backend",
        ),
        (
            WEIGHTS,
            ["load_model", "load_weights", "weight_loader"],
            "KeyError: 'layers.5.self_attn.qkv_proj.v_proj.weight'",
            "weights",
            "bad-checkpoint",
        ),
        (
            [],
            ["_init_executor", "init_device", "init_worker_distributed_environment"],
            "torch.distributed.DistStoreError: Timed out after 41 seconds waiting for clients. 1/2 clients joined.",
            "device-init",
            "peer-missing",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_phase_is_what_the_frames_say(
    before: list[str], functions: list[str], error: str, phase: str, kind: str
) -> None:
    lines = [*BEGIN, *before, *raised(error, [*CORE, *functions]), *bare(error, [*CORE, *functions]), *GIVEN_UP]
    failed(told(lines), lines, phase, kind, error)


def test_a_repack_that_does_not_fit_is_no_matter_of_the_kv_budget() -> None:
    lines = [*BEGIN, *WEIGHTS, *raised(OOM, [*CORE, "load_model", "process_weights_after_loading", "repack_weights"])]
    failure = failed(told(lines), lines, "preparation", "out-of-device-memory", OOM)
    assert "145.9 GiB" in failure.summary
    assert any("another backend" in text for text in failure.helps)
    assert any("gpu-memory-utilization" in text for text in failure.no_help)


def test_the_rank_that_failed_first_not_the_one_that_missed_it() -> None:
    one, two = "Worker_TP0 pid=11", "Worker_TP1 pid=12"
    lines = [
        *BEGIN,
        *[record("Starting to load model m...", who) for who in (one, two)],
        *raised(OOM, ["load_model"], two, "WorkerProc failed to start."),
        *raised(
            "BrokenPipeError: [Errno 32] Broken pipe", ["load_model", "barrier"], one, "WorkerProc failed to start."
        ),
        *raised("Exception: WorkerProc initialization failed due to an exception in a background process.", CORE),
        *GIVEN_UP,
    ]
    failure = failed(told(lines), lines, "weights", "out-of-device-memory", OOM)
    assert failure.rank == "TP1"


def test_a_peer_that_speaks_first_does_not_hide_the_cause() -> None:
    one, two = "Worker_TP0 pid=11", "Worker_TP1 pid=12"
    peer = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:45492"
    lines = [
        *BEGIN,
        *raised(peer, ["load_model", "barrier"], one, "WorkerProc failed to start."),
        *raised(OOM, ["load_model"], two, "WorkerProc failed to start."),
        *GIVEN_UP,
    ]
    assert failed(told(lines), lines, "weights", "out-of-device-memory", OOM).rank == "TP1"


def test_the_front_end_only_sees_consequences() -> None:
    peer = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:45492"
    lines = [
        *BEGIN,
        *raised(peer, ["load_model", "barrier"], "Worker_TP0 pid=11", "WorkerProc failed to start."),
        *bare("AttributeError: 'NoneType' object has no attribute 'shutdown'", ["run_server"], "APIServer pid=1"),
    ]
    failed(told(lines), lines, "weights", "collective-failed", peer)


def test_an_engine_core_that_is_named_like_a_rank_is_no_worker() -> None:
    peer = "torch.distributed.DistBackendError: NCCL error in: x.cpp:268, unhandled system error"
    lines = [
        *BEGIN,
        *raised(peer, ["init_device"], "Worker_TP0 pid=11", "WorkerProc failed to start."),
        *raised("RuntimeError: something else broke", CORE, "EngineCore_DP0 pid=7"),
    ]
    failed(told(lines), lines, "device-init", "collective-failed", peer)


def test_interleaved_tracebacks_of_two_ranks_are_told_apart() -> None:
    one = raised(OOM, ["load_model", "initialize_model"], "Worker_TP0 pid=11", "WorkerProc failed to start.")
    two = raised("KeyError: 'w'", ["load_model", "load_weights"], "Worker_TP1 pid=12", "WorkerProc failed to start.")
    mixed = [line for pair in zip(two, one, strict=True) for line in pair]
    lines = [*BEGIN, *WEIGHTS, *mixed]
    failed(told(lines), lines, "weights", "bad-checkpoint", "KeyError: 'w'")


def test_in_a_chain_the_first_printed_exception_is_the_cause_and_the_outer_frames_give_the_phase() -> None:
    inner = [
        "Traceback (most recent call last):",
        '  File "/opt/lib/flashinfer/jit/x.py", line 3, in run_ninja',
        "    run()",
    ]
    lines = [
        *SGLANG,
        *SGLANG_LOADED,
        "[2026-06-07 11:57:51 TP0] Scheduler hit an exception: " + inner[0],
        *inner[1:],
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *bare("RuntimeError: Ninja build failed. Ninja output:", ["capture_one_batch_size"], package="sglang/srt"),
        "[1/4] /usr/local/cuda/bin/nvcc -c x.cu",
        "x.cuh(117): error: no suitable conversion function exists",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *bare("Exception: Capture cuda graph failed: Ninja build failed.", ["init_cuda_graphs"], package="sglang/srt"),
        "[2026-06-07 11:57:52] Received sigquit from a child process. It usually means the child failed.",
    ]
    failure = failed(told(lines), lines, "graph-capture", "kernel-build", "subprocess.CalledProcessError")
    assert failure.rank == "TP0"


def test_an_announced_exception_stands_first_in_the_record_before_its_traceback() -> None:
    text = "The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in "
    text += "KV cache (17280)."
    who = {"who": "EngineCore pid=7", "source": "engine.py:389"}
    lines = [*BEGIN, *raised(f"ValueError: {text}", ["run_mp_engine", "initialize_cache"], head=text, **who)]
    failure = failed(told(lines), lines, "kv-reservation", "kv-too-small", text)
    assert "17280" in failure.summary


def test_the_prefix_that_torch_puts_before_an_uncaught_exception() -> None:
    lines = [
        *BEGIN,
        *[f"[rank0]: {line}" for line in bare("RuntimeError: CUDA error: an illegal memory access", ["profile_run"])],
    ]
    failure = failed(told(lines), lines, "profiling", "device-fault", "RuntimeError: CUDA error")
    assert failure.rank == "rank0"


def test_a_traceback_whose_head_is_cut_off() -> None:
    cut = raised(KV_SMALL, [*CORE, "_initialize_kv_caches"])[5:]
    failed(told(cut), cut, "kv-reservation", "kv-too-small", "ValueError")


def test_a_log_that_was_searched_for_errors() -> None:
    lines = [record(KV_SMALL, level="ERROR"), record("EngineCore failed to start.", level="ERROR")]
    failed(told(lines), lines, "kv-reservation", "kv-too-small", "ValueError")


def test_a_log_inside_the_log_of_another_program() -> None:
    lines = [
        f"2026-06-07 11:57:51,693 - __main__ - INFO - {line}"
        for line in [*SGLANG, *scheduler(" TP0", OOM, ["load_model"])]
    ]
    failed(told(lines), lines, "weights", "out-of-device-memory", "torch.OutOfMemoryError")


def test_errors_of_a_ray_worker_come_before_the_drivers_report() -> None:
    lines = [
        *BEGIN,
        *raised(
            OOM, ["execute_method", "load_model"], "RayWorkerWrapper pid=314, ip=10.0.0.2", "Error executing method."
        ),
        *raised(
            "ray.exceptions.RayTaskError(OutOfMemoryError): ray::RayWorkerWrapper.execute_method() "
            "(pid=314, ip=10.0.0.2)\n"
            '  File "/opt/lib/vllm/worker.py", line 3, in load_model\n' + OOM,
            [*CORE, "_init_workers_ray"],
        ),
        *GIVEN_UP,
    ]
    failed(told(lines), lines, "weights", "out-of-device-memory", OOM)


def test_the_driver_alone_names_the_exception_inside_ray_s_report() -> None:
    lines = [
        *BEGIN,
        *raised(
            "ray.exceptions.RayTaskError(OutOfMemoryError): ray::RayWorkerWrapper.execute_method() "
            "(pid=314, ip=10.0.0.2)\n"
            '  File "/opt/lib/vllm/worker.py", line 3, in load_model\n' + OOM,
            [*CORE, "collective_rpc"],
        ),
    ]
    failed(told(lines), lines, "weights", "out-of-device-memory", OOM)


def test_a_native_error_that_went_unnoticed_explains_the_exception() -> None:
    native = "h:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 33030532 bytes"
    lines = [
        *BEGIN,
        native,
        *raised(
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:268, unhandled system error", ["init_device"]
        ),
    ]
    failed(told(lines), lines, "device-init", "out-of-shared-memory", "NCCL WARN")


def test_a_native_warning_alone_is_no_failure() -> None:
    native = "h:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 33030532 bytes"
    clean(told([*READY[:4], native, *READY[4:]]))


def test_an_asynchronous_fault_is_reported_by_the_watchdog_first() -> None:
    watchdog = (
        "[rank1]:[E520 22:23:46.546600506 ProcessGroupNCCL.cpp:1896] [PG ID 2 PG GUID 3 Rank 1] "
        "Process group watchdog thread "
        "terminated with exception: CUDA error: an illegal memory access was encountered"
    )
    lines = [
        *BEGIN,
        *WEIGHTS,
        *LOADED,
        *KV,
        *UP[:1],
        watchdog,
        "terminate called after throwing an instance of 'c10::Error'",
    ]
    lines += raised("TimeoutError: RPC call to execute_model timed out.", ["run_busy_loop", "execute_model"])
    failed(told(lines), lines, "api", "device-fault", "terminated with exception")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("vllm serve: error: unrecognized arguments: --max-modle-len 3", "bad-arguments"),
        (
            "launch_server.py: error: argument --dtype: invalid choice: 'fp99' (choose from 'auto', 'half')",
            "bad-arguments",
        ),
    ],
)
def test_refused_arguments(line: str, kind: str) -> None:
    lines = ["usage: vllm serve [model_tag] [options]", line]
    failed(told(lines), lines, "launch", kind, line)


def test_a_port_that_is_taken_at_the_beginning() -> None:
    error = "OSError: [Errno 98] Address already in use"
    lines = [*BEGIN[:2], *bare(error, ["run_server", "setup_server", "create_server_socket"])]
    failed(told(lines), lines, "launch", "port-taken", error)


def test_a_port_that_is_taken_after_the_whole_load_was_never_ready() -> None:
    lines = [
        *READY,
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
    ]
    failed(told(lines), lines, "serving", "port-taken", "attempting to bind")


def test_an_engine_core_that_was_killed_while_it_started() -> None:
    last = GIVEN_UP[-1].replace("{}", "{'EngineCore': -9}")
    lines = [*BEGIN, *WEIGHTS, *GIVEN_UP[:-1], last]
    failed(told(lines), lines, "weights", "killed", "-9}")


def test_the_kernels_word_on_the_oom_killer() -> None:
    kernel = "Memory cgroup out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:99kB"
    lines = [*BEGIN, *WEIGHTS, kernel, *GIVEN_UP]
    failed(told(lines), lines, "weights", "killed", kernel)


def test_an_interrupt_while_it_loads() -> None:
    lines = [
        *BEGIN,
        *WEIGHTS,
        *bare("KeyboardInterrupt: terminated", ["load_model", "signal_handler"], "EngineCore pid=7"),
    ]
    failed(told(lines), lines, "weights", "interrupted", "KeyboardInterrupt")


def test_a_stop_before_it_was_up_is_an_interrupted_start() -> None:
    lines = [*BEGIN, *WEIGHTS, record("[shutdown] API server: shutdown triggered", "APIServer pid=1")]
    failed(told(lines), lines, "weights", "interrupted", "shutdown triggered")


def test_a_damaged_cache_is_named_with_its_phase() -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/c/torch_compile_cache/87/rank_0_0/artifact'"
    lines = [*BEGIN, *WEIGHTS, *LOADED, *COMPILED[:1]]
    trace = raised(error, ["determine_available_memory", "profile_run", "__call__"])
    lines += [line.replace("/vllm/part/call", "/vllm/compilation/call") for line in trace]
    failed(told(lines), lines, "compile", "corrupted-cache", error)


def test_an_engine_that_died_without_a_traceback_has_its_last_error_as_the_cause() -> None:
    lines = [
        *BEGIN,
        *WEIGHTS,
        record("Something broke", level="ERROR"),
        record("EngineCore failed to start.", source="x.py:1"),
    ]
    failed(told(lines), lines, "weights", "unknown", "Something broke")


@pytest.mark.parametrize(
    "end",
    [
        GIVEN_UP,
        [record("EngineCore failed to start.", level="ERROR")],
        ["[2026-06-07 11:57:52] Received sigquit from a child process. It usually means the child failed."],
    ],
)
def test_consequences_alone_are_no_cause(end: list[str]) -> None:
    summary = told([*BEGIN, *WEIGHTS, *end])
    assert (summary.ready, summary.failed) == (False, True)
    assert summary.failure is not None
    assert (summary.failure.phase, summary.failure.kind, summary.failure.cause) == ("weights", "unknown", None)
    assert "not why" in summary.failure.summary
    assert "(line " in summary.failure.summary


def test_the_same_error_printed_again_names_the_phase_of_a_cut_traceback() -> None:
    whole = raised(OOM, [*CORE, "determine_available_memory", "profile_run"])
    lines = [whole[-1], *bare(OOM, [*CORE, "determine_available_memory", "profile_run"], "EngineCore pid=7"), *GIVEN_UP]
    failed(told(lines), lines, "profiling", "out-of-device-memory", OOM)


def test_a_warm_up_module_names_the_phase_where_no_function_does() -> None:
    trace = raised("TypeError: type 'array.array' is not subscriptable", ["<module>"])
    lines = [line.replace("vllm/part/", "vllm/model_executor/warmup/") for line in trace]
    failed(told(lines), lines, "warm-up", "missing-module", "TypeError")
