"""Failure classes as data: every row has an example and a counter-example, every kind has advice."""

from __future__ import annotations

import re

import pytest

from pytest_startup.engines.failure_help import ADVICE, advice
from pytest_startup.engines.failure_table import CLASSES, SIGNS, TABLE, sign_of
from pytest_startup.engines.failures import KINDS, TIERS, FailureClass, FailureTable, summary
from pytest_startup.engines.tracebacks import Frame
from pytest_startup.record import PHASES

IDS = [f"{i}-{row.kind}" for i, row in enumerate(CLASSES)]


@pytest.mark.parametrize("row", CLASSES, ids=IDS)
def test_row_matches_its_example_and_not_its_counter(row: FailureClass) -> None:
    table = FailureTable([row])
    frames = [Frame("/x.py", name) for name in row.functions[:1]]
    assert table.of_error(row.example, frames) is row
    assert table.of_error(row.counter, frames) is None
    assert row.kind in KINDS
    assert row.tier in TIERS
    assert row.phase is None or row.phase in PHASES


@pytest.mark.parametrize("row", CLASSES, ids=IDS)
def test_the_whole_table_gives_the_kind_of_each_example(row: FailureClass) -> None:
    frames = [Frame("/x.py", name) for name in row.functions[:1]]
    found = TABLE.of_error(row.example, frames)
    assert found is not None
    assert found.kind == row.kind


@pytest.mark.parametrize("row", [row for row in CLASSES if row.alone], ids=lambda row: row.kind)
def test_a_row_that_stands_alone_is_found_by_its_anchors(row: FailureClass) -> None:
    assert row.anchors, "without anchors the line would never be shown"
    assert all(len(anchor) >= 6 for anchor in row.anchors)
    found = TABLE.of_line(row.example)
    assert found is not None
    assert found.kind == row.kind
    assert FailureTable([row]).of_line(row.counter) is None


def test_a_row_for_functions_needs_one_of_them() -> None:
    error = "json.decoder.JSONDecodeError: Expecting value: line 1 column 15 (char 14)"
    inside = TABLE.of_error(error, [Frame("/fi/autotuner.py", "load_configs")])
    assert inside is not None
    assert inside.kind == "corrupted-cache"
    assert TABLE.of_error(error, [Frame("/app/config.py", "read_config")]) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out-of-device-memory"),
        ("RuntimeError: CUDA error: out of memory", "out-of-device-memory"),
        ("RuntimeError: NPU out of memory. Tried to allocate", "out-of-device-memory"),
        ("torch._inductor.exc.InductorError: RuntimeError: CUDA out of memory. Tried", "out-of-device-memory"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", "out-of-host-memory"),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456",
            "unsupported-device",
        ),
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
            "unsupported-device",
        ),
        ("RuntimeError: Found no NVIDIA driver on your system.", "device-unavailable"),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has x",
            "device-unavailable",
        ),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11000).", "device-unavailable"),
        ("RuntimeError: Triton Error [CUDA]: device kernel image is invalid", "unsupported-device"),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 3.00G", "out-of-device-memory"),
        ("RuntimeError: Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "device-fault"),
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            "out-of-host-memory",
        ),
        ("RuntimeError: DataLoader worker (pid 41) is killed by signal: Killed.", "killed"),
        ("RuntimeError: FlashInfer requires GPUs with sm75 or higher", "unsupported-device"),
        ("RuntimeError: FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::4096", "out-of-device-memory"),
        ("RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: busy", "device-unavailable"),
        ("AssertionError: 32 is not divisible by 3", "bad-arguments"),
        ("ValueError: User-specified max_model_len (9) is greater than the derived max_model_len", "bad-arguments"),
        ("OSError: meta/x is not a local folder and is not a valid model identifier", "model-not-found"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "model-not-found"),
        ("requests.exceptions.ConnectionError: (MaxRetryError('HTTPSConnectionPool(host=\"x\")'", "download-failed"),
        ("ValueError: Model architectures ['Foo'] failed to be inspected.", "unsupported-model"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "bad-checkpoint"),
        ("ValueError: No available memory for the cache blocks. Try increasing", "kv-too-small"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "kv-too-small"),
        (
            "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
            "memory-in-use",
        ),
        ("OSError: [Errno 98] Address already in use", "port-taken"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:268, unhandled system error", "collective-failed"),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1", "collective-failed"),
        ("torch.distributed.DistStoreError: Timed out after 41 seconds waiting for clients. 1/2", "peer-missing"),
        ("ray.exceptions.RayChannelTimeoutError: System error: Timed out waiting", "hang"),
        ("RuntimeError: Ninja build failed. Ninja output:", "kernel-build"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "kernel-build"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "missing-module"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("NotImplementedError: Only silu activation is supported", "unsupported-backend"),
        ("ValueError: No valid attention backend found for cuda with AttentionSelectorConfig()", "unsupported-backend"),
        ("ValueError: Failed to promote local KV cache specs to one unified type.", "unsupported-backend"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "device-fault"),
        ("KeyboardInterrupt: terminated", "interrupted"),
    ],
)
def test_kinds_of_errors_that_engines_really_print(error: str, kind: str) -> None:
    found = TABLE.of_error(error)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_advice_in_every_phase(kind: str) -> None:
    for phase in (None, *PHASES):
        helps, no_help = advice(kind, phase)
        assert helps
        assert all(text == text.strip() for text in (*helps, *no_help))


def test_advice_is_only_for_known_kinds_and_phases() -> None:
    assert all(kind in KINDS and (phase is None or phase in PHASES) for kind, phase in ADVICE)


def test_before_any_kv_cache_existed_its_settings_cannot_help() -> None:
    for phase in ("weights", "preparation", "device-init"):
        assert any("gpu-memory-utilization" in text for text in advice("out-of-device-memory", phase)[1]), phase
    helps, _ = advice("out-of-device-memory", "preparation")
    assert any("backend" in text for text in helps)
    assert any("gpu-memory-utilization" in text for text in advice("out-of-device-memory", "graph-capture")[0])


def test_summary_of_a_repack_states_what_was_needed() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.90 GiB. GPU 0 has a total "
        "capacity of 141.10 GiB of "
        "which 2.05 GiB is free. Including non-PyTorch memory, this process has 139.00 GiB memory in use."
    )
    assert summary("out-of-device-memory", text) == (
        "out of device memory: 6.90 GiB more were asked for, 2.05 GiB of 141.10 GiB were free; "
        "this process needs about "
        "145.9 GiB, the device has 141.1 GiB"
    )


def test_summary_names_what_other_processes_hold() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total "
        "capacity of 139.80 GiB of "
        "which 1.94 MiB is free. Including non-PyTorch memory, this process has 5.84 GiB memory in use."
    )
    assert summary("out-of-device-memory", text).endswith("other processes hold about 134.0 GiB of it")


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (
            "ValueError: To serve at least one request with the model's max seq len (262144), (23.25 "
            "GiB KV cache is needed, "
            "which is larger than the available KV cache memory (22.5 GiB). Based on the available "
            "memory, the estimated "
            "maximum model length is 253680. Try",
            ("262144", "23.25", "22.5", "253680"),
        ),
        (
            "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens "
            "that can be stored in KV "
            "cache (17280). Try",
            ("32768", "17280"),
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (2048), (1.0 GiB "
            "KV cache is needed, which "
            "is larger than the available KV cache memory (0.5 GiB).",
            ("2048", "1.0", "0.5"),
        ),
    ],
)
def test_summary_of_a_small_kv_cache_has_needed_available_and_longest(text: str, figures: tuple[str, ...]) -> None:
    said = summary("kv-too-small", text)
    assert re.findall(r"\d+(?:\.\d+)?", said) == list(figures)


@pytest.mark.parametrize(
    ("kind", "text", "who"),
    [
        (
            "killed",
            "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
            "VllmWorker-1 (exit code -9)",
        ),
        (
            "killed",
            "Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}",
            "EngineCore (exit code -9)",
        ),
        ("crashed", "Worker TP1 pid 77 died, exit code: -11", "TP1 (exit code -11)"),
        (
            "process-died",
            "Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down",
            "VllmWorker-0 (exit code None)",
        ),
    ],
)
def test_summary_names_who_died_and_how(kind: str, text: str, who: str) -> None:
    assert summary(kind, text) == f"{KINDS[kind]}: {who}"


def test_summary_of_memory_in_use() -> None:
    text = (
        "ValueError: Free memory on device cuda:0 (3.10/139.80 GiB) on startup is less than "
        "desired GPU memory utilization "
        "(0.9, 125.80 GiB). Decrease"
    )
    assert summary("memory-in-use", text).endswith("125.80 GiB wanted, 3.10 of 139.80 GiB free")


@pytest.mark.parametrize("kind", KINDS)
def test_summary_without_figures_is_the_kind_in_words(kind: str) -> None:
    assert summary(kind, "nothing to read here") == KINDS[kind]


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.anchor)
def test_signs_match_their_example_and_not_their_counter(sign: object) -> None:
    from pytest_startup.engines.failure_table import Sign

    assert isinstance(sign, Sign)
    assert sign.anchor in sign.example
    found = sign_of(sign.example, sign.process)
    assert found is not None
    assert found.effect == sign.effect
    assert sign_of(sign.counter, sign.process) is None
