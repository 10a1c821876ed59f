"""Phases as data: the functions whose presence in a traceback tells what a rank was doing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_startup.engines.tracebacks import Frame


@dataclass(frozen=True)
class FrameRule:
    """A function (in a file whose path holds ``file``) whose presence in a traceback names the phase.

    The innermost frame with a rule counts. ``weak`` ones only where no other frame has a rule: they occur in several
    phases.
    """

    phase: str
    functions: tuple[str, ...]
    file: str = ""
    weak: bool = False


FRAMES: tuple[FrameRule, ...] = (
    FrameRule(
        "launch",
        (
            "create_engine_config",
            "create_model_config",
            "from_cli_args",
            "parse_args",
            "parse_known_args",
            "prepare_server_args",
            "check_server_args",
            "validate_parsed_serve_args",
            "create_server_socket",
            "setup_server",
            "make_arg_parser",
            "get_hf_config",
            "init_tokenizer_from_configs",
            "init_tokenizer_manager",
        ),
    ),
    FrameRule("launch", ("__post_init__",), file="server_args"),
    FrameRule("launch", ("__init__",), file="tokenizer_manager"),
    FrameRule("launch", ("__init__",), file="config/vllm.py", weak=True),
    FrameRule("launch", ("get_tokenizer", "init_tokenizer", "cached_get_tokenizer", "_launch_subprocesses"), weak=True),
    FrameRule(
        "device-init",
        (
            "init_device",
            "init_worker_distributed_environment",
            "init_distributed_environment",
            "initialize_model_parallel",
            "ensure_model_parallel_initialized",
            "init_torch_distributed",
            "init_parallel",
            "request_memory",
            "_init_workers_ray",
            "initialize_ray_cluster",
            "_get_placement_groups",
        ),
    ),
    FrameRule(
        "weights",
        (
            "load_model",
            "load_weights",
            "download_model",
            "initialize_model",
            "_initialize_model",
            "get_all_weights",
            "_prepare_weights",
            "safetensors_weights_iterator",
            "load_weights_and_postprocess",
            "download_weights_from_hf",
        ),
    ),
    FrameRule(
        "preparation",
        (
            "process_weights_after_loading",
            "_process_weights_after_loading",
            "repack_weights",
            "post_load_weights",
            "init_attention_backend",
        ),
    ),
    FrameRule(
        "profiling",
        (
            "determine_available_memory",
            "profile_run",
            "determine_num_available_blocks",
            "profile_multimodal",
            "warming_up_model",
        ),
    ),
    FrameRule(
        "kv-reservation",
        (
            "_initialize_kv_caches",
            "initialize_from_config",
            "initialize_kv_cache",
            "initialize_kv_cache_tensors",
            "_allocate_kv_cache_tensors",
            "get_kv_cache_config",
            "get_kv_cache_configs",
            "check_enough_kv_cache_memory",
            "_check_enough_kv_cache_memory",
            "initialize_cache",
            "raise_if_cache_size_invalid",
            "register_kv_caches",
            "init_memory_pool",
            "profile_max_num_token",
            "_init_cache_engine",
            "init_cache_engine",
            "configure_kv_cache",
            "init_kv_cache",
            "handle_max_mamba_cache",
        ),
    ),
    FrameRule(
        "warm-up",
        (
            "compile_or_warm_up_model",
            "kernel_warmup",
            "flashinfer_autotune",
            "_flashinfer_autotune",
            "deep_gemm_warmup",
            "warm_up_sampler",
        ),
    ),
    FrameRule(
        "graph-capture",
        (
            "capture_model",
            "_capture_cudagraphs",
            "profile_cudagraph_memory",
            "_warmup_and_capture",
            "init_cuda_graphs",
            "init_device_graphs",
            "init_piecewise_cuda_graphs",
            "init_prefill_cuda_graph",
            "capture_one_batch_size",
            "_capture_one_stream",
            "capture_graphs",
        ),
    ),
    FrameRule("graph-capture", ("capture", "__init__"), file="graph_runner"),
    FrameRule(
        "api",
        (
            "init_static_loras",
            "process_lora_modules",
            "init_app_state",
            "build_app",
            "serve_http",
            "_wait_and_warmup",
            "_execute_server_warmup",
        ),
    ),
    FrameRule("api", ("startup", "bind_sockets"), file="uvicorn"),
    FrameRule(
        "serving",
        (
            "run_busy_loop",
            "_process_engine_step",
            "event_loop_normal",
            "event_loop_overlap",
            "event_loop_pp",
            "event_loop_pdmux",
            "event_loop_normal_disagg_prefill",
            "event_loop_overlap_disagg_prefill",
            "event_loop_pp_disagg_prefill",
            "event_loop_normal_disagg_decode",
            "event_loop_overlap_disagg_decode",
            "event_loop_pp_disagg_decode",
            "run_engine_loop",
            "wake_up",
        ),
    ),
    FrameRule("serving", ("execute_model", "sample_tokens", "output_handler", "run_batch", "handle_loop"), weak=True),
)


def _frame_index(rules: Iterable[FrameRule]) -> dict[str, list[FrameRule]]:
    index: dict[str, list[FrameRule]] = {}
    for rule in rules:
        for function in rule.functions:
            index.setdefault(function, []).append(rule)
    return index


#: Files whose presence names a phase where no function does.
FILES: tuple[tuple[str, str], ...] = (
    ("vllm/model_executor/warmup/", "warm-up"),
    ("torch/_inductor/compile_fx.py", "compile"),
    ("torch/_dynamo/convert_frame.py", "compile"),
)
_BY_FUNCTION = _frame_index(FRAMES)


def phase_of_frames(frames: Iterable[Frame]) -> tuple[str | None, bool]:
    """The phase that the innermost telling frame names, and whether that frame is weak. Frames come outermost first."""
    strong: str | None = None
    weak: str | None = None
    for frame in frames:
        for part, phase in FILES:
            if part in frame.file:
                weak = phase
        for rule in _BY_FUNCTION.get(frame.function.rsplit(".", 1)[-1], ()):
            if rule.file and rule.file not in frame.file:
                continue
            if rule.weak:
                weak = rule.phase
            else:
                strong = rule.phase
    return (strong, False) if strong else (weak, True)
