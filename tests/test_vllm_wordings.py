"""The traps of vLLM's wordings, version by version: what a line states, and what it does not."""

from __future__ import annotations

import pytest

from pytest_startup.engines.lines import Line
from pytest_startup.engines.registry import table


def facts(text: str, **more: object) -> dict[str, object]:
    line = Line(1, text.encode(), text, text, **more)  # type: ignore[arg-type]
    return {f.name: f.value for f in table("vllm").facts(line, "engine.log")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # two wordings of the KV capacity
        (
            "GPU KV cache size: 338,624 tokens, Maximum concurrency for 8,192 tokens per request: 41.34x",
            {"kv.tokens": 338624, "kv.max_concurrency": 41.34},
        ),
        ("GPU KV cache size: 94,784 tokens", {"kv.tokens": 94784}),
        ("Maximum concurrency for 6,144 tokens per request: 15.43x", {"kv.max_concurrency": 15.43}),
        # the two runners, and the old spelling
        (
            "Model loading took 56.9342 GiB and 13.398206 seconds",
            {"weights.memory": 56.9342, "weights.load": 13.398206},
        ),
        ("Model loading took 13.7193 GiB memory and 26.7 seconds", {"weights.memory": 13.7193, "weights.load": 26.7}),
        ("Loading model weights took 14.9888 GB", {"weights.memory": 14.9888}),
        # a cut tail counts, a cut number does not
        (
            "Model loading took 62.72 GiB memory and 262.445080 sec",
            {"weights.memory": 62.72, "weights.load": 262.44508},
        ),
        ("Model loading took 62.72 GiB memory and 262.4", {"weights.memory": 62.72}),
        ("Model loading took 62.7", {}),
        # compile, by version
        ("Cache the graph of shape None for later use", {"compile.cache_written": "Cache the graph of shape None"}),
        ("Compiling a graph for general shape takes 40.72 s", {"compile.range": 40.72}),
        ("torch.compile takes 6.93 s in total", {"compile.total": 6.93}),
        ("torch.compile took 30.44 s in total", {"compile.total": 30.44}),
        ("torch.compile and initial profiling run took 9.00 s in total", {"compile.total": 9.0}),
        ("torch.compile and initial profiling/warmup run together took 32.60 s in total", {"compile.total": 32.6}),
        ("[backbone] Dynamo bytecode transform time: 5.55 s", {"compile.dynamo": 5.55}),
        # graphs: memory may be negative, the encoder's capture is another
        ("Graph capturing finished in 5 secs, took -5.90 GiB", {"graphs.seconds": 5, "graphs.memory": -5.9}),
        ("Encoder graph capturing finished in 3 secs, took 0.10 GiB (4 graphs)", {}),
        ("CUDA graph pool memory: 0.35 GiB (actual), 0.13 GiB (estimated), difference: 0.22 GiB (62.9%).", {}),
        # memory: the success summary and its error twin begin alike
        (
            "Free memory on device (139.0/141.1 GiB) on startup. Desired GPU memory utilization is (0.9, 126.99 GiB).",
            {"memory.free": 139.0},
        ),
        (
            "Free memory on device cuda:0 (1.5/141.1 GiB) on startup is less than desired GPU memory utilization "
            "(0.9, 126.99 GiB). Decrease GPU memory utilization",
            {"memory.free": 1.5},
        ),
        # CPU
        ("Explicitly set (0.25/11.65) GiB for KV cache", {"kv.reserved": 0.25}),
        ("Auto set (4.66/11.65) GiB for KV cache", {"kv.available": 4.66}),
        ("CPU KV cache size: 262,144 tokens", {"kv.tokens": 262144}),
        # init: old and new, with a dash that is not ASCII
        ("init engine (profile, create kv cache, warmup model) took 22.67 seconds", {"init.engine": 22.67}),
        (
            "init engine (profile, create kv cache, warmup model) took 9.1 s (compilation: 4.0 s — language_model: "
            "3.0 s, encoder: 1.0 s)",
            {"init.engine": 9.1},
        ),
        # attention: chosen, not candidates; drafters and encoders too
        (
            "Using TRITON_ATTN attention backend out of potential backends: ('TRITON_ATTN',)",
            {"backend.attention": "TRITON_ATTN"},
        ),
        ("Using AttentionBackendEnum.FLASH_ATTN backend.", {"backend.attention": "AttentionBackendEnum.FLASH_ATTN"}),
        ("Using Flash Attention backend on V1 engine.", {"backend.attention": "Flash Attention"}),
        ("Using XFormers backend.", {"backend.attention": "XFormers"}),
        ("Using FlashAttention-2 backend.", {"backend.attention": "FlashAttention-2"}),
        (
            "Cannot use FlashAttention-2 backend for Volta and Turing GPUs.",
            {"backend.fallback": "Cannot use FlashAttention-2 backend for Volta and Turing GPUs."},
        ),
        (
            "model weights take 7.17GiB; non_torch_memory takes 0.01GiB; PyTorch activation peak memory takes 1.83GiB; "
            "the rest of the memory reserved for KV Cache is 26.59GiB.",
            {"kv.available": 26.59},
        ),
        ("# cuda blocks: 27104, # CPU blocks: 2048", {"kv.blocks": 27104}),
        ("Using FlashAttention version 3", {"backend.attention_version": "3"}),
        ("Using HND KV cache layout for CPU_ATTN backend.", {}),
        ("Using FlashInfer for top-p & top-k sampling.", {}),
        ("Using triton Mamba SSU backend.", {}),
        ("Using MoEPrepareAndFinalizeNoDPEPModular", {}),
        # MoE and linear
        ("Using TRITON Fp8 MoE backend out of potential backends: ['AITER'].", {"backend.moe": "TRITON"}),
        ("Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN'].", {"backend.moe": "MARLIN"}),
        (
            "Using FlashInfer CUTLASS Unquantized MoE backend out of potential backends: ['x'].",
            {"backend.moe": "FlashInfer CUTLASS"},
        ),
        ("Using Marlin backend", {"backend.moe": "Marlin"}),
        (
            "Using CutlassBlockScaledGroupedGemm kernels for Fp8MoEMethod.",
            {"backend.moe": "CutlassBlockScaledGroupedGemm"},
        ),
        ("Using CompressedTensorsWNA16MarlinMoEMethod", {}),
        ("Using MarlinLinearKernel for CompressedTensorsWNA16", {"backend.linear": "MarlinLinearKernel"}),
        # autotune
        (
            "[Autotuner]: Saved 42 configs to /c/a.json (42 new, 0 from previous config)",
            {"autotune.saved": 42},
        ),
        ("[Autotuner]: Loaded 0 configs from /c/a.json", {"autotune.loaded": 0}),
        (
            "FlashInfer autotune cache loaded on rank 0 from /c/a.json.",
            {"autotune.cache": "autotune cache loaded on rank 0 from /c/a.json."},
        ),
        # a worker's profiling is no user override, but it is stated
        (
            "Overriding num_gpu_blocks=0 with num_gpu_blocks_override=16",
            {"kv.override": {"found": 0, "forced": 16}},
        ),
        # hints hold numbers that nobody measured
        ("The estimated maximum model length is 8192. Try --kv-cache-memory=1000000000", {}),
        ("Replace gpu_memory_utilization config with `--kv-cache-memory=15600000000` (14.53 GiB)", {}),
        # versions of others
        ("Using CUDA 13.1 driver version 590.48.01 with kernel driver version 580.95.05.", {}),
        ("Patched attention_base.py to disable flash attention", {}),
    ],
)
def test_what_a_line_states(text, expected):
    found = facts(text)
    assert found == expected


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("vLLM API server version 0.29.1rc1.dev449+geb8798058", "0.29.1rc1.dev449+geb8798058"),
        (" ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.26.0", "0.26.0"),
        ("vLLM server version 0.17.1rc0, serving model m", "0.17.1rc0"),
        (
            "Initializing a V1 LLM engine (v0.1.dev16581+gdda4668b5.d20260528) with config: model='m'",
            "0.1.dev16581+gdda4668b5.d20260528",
        ),
        ("Initializing an LLM engine (v0.6.3) with config: model='m'", "0.6.3"),
        ("Initializing a V0 LLM engine (v0.8.5.post1) with config: model='m'", "0.8.5.post1"),
        (
            "Dumping input data for V1 LLM engine (v0.9.1.dev18+g0c15c2e48) with config: model='m'",
            "0.9.1.dev18+g0c15c2e48",
        ),
        ("vLLM Version 0.13.0+faa43dbf", "0.13.0+faa43dbf"),
    ],
)
def test_versions(text, version):
    assert str(facts(text)["engine.version"]).lstrip("v") == version


def test_units_stay_as_printed():
    text = "Loading model weights took 14.9888 GB"
    line = Line(1, text.encode(), text, text)
    assert [f.unit for f in table("vllm").facts(line, "x")] == ["GB"]


def test_roles():
    for text, role in (
        ("Using backend AttentionBackendEnum.FLASH_ATTN for vit attention", "encoder"),
        ("Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].", "model"),
    ):
        line = Line(1, text.encode(), text, text)
        assert [f.detail["role"] for f in table("vllm").facts(line, "x")] == [role]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Pooling models do not support full cudagraphs. Overriding cudagraph_mode to PIECEWISE.", True),
        ("CUDAGraphMode.FULL is not supported with X backend (support: NEVER); setting cudagraph_mode=PIECEWISE", True),
        ("CUDAGraphMode.FULL is not supported with X backend (support: NEVER); please try cudagraph_mode=NONE", False),
        ("Dynamic speculative decoding changes the length. Overriding cudagraph_mode from FULL to PIECEWISE", True),
        ("Initializing a V1 LLM engine (v0.26.0) with config: {'cudagraph_mode': <CUDAGraphMode.FULL: 2>}", False),
    ],
)
def test_downgrades_of_graphs(text, told):
    assert ("graphs.downgraded" in facts(text)) is told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Using AITER TRITON MLA backend.", {"backend.attention": "AITER TRITON MLA"}),
        ("Using Rocm/Aiter Attention backend on V1 engine.", {"backend.attention": "Rocm/Aiter Attention"}),
        ("Using FlexAttention backend for head_size=80 on V1 engine.", {"backend.attention": "FlexAttention"}),
        ("Using Flash Attention MLA backend on XPU.", {"backend.attention": "Flash Attention MLA"}),
        ("Using BlocksparseFlashAttention backend.", {"backend.attention": "BlocksparseFlashAttention"}),
        ("Using FlashAttentionDiffKVBackend for attention.", {"backend.attention": "FlashAttentionDiffKVBackend"}),
        ("Using HND KV cache layout for FLASHINFER backend.", {}),
        ("Using Transformers backend.", {}),
        ("Using TRTLLM attention (query is quantized).", {}),
        ("Using FlashInfer for draft model non-causal attention; TRTLLM can still be used", {}),
        ("Using FlashInfer FP8 MoE CUTLASS backend for SM90/SM100", {"backend.moe": "FlashInfer FP8 MoE CUTLASS"}),
        ("Using FlashInfer kernels for NVFP4 path.", {"backend.moe": "FlashInfer"}),
        ("Using AITER backend for Quark MXFP8 (W8A8) MoE.", {"backend.moe": "AITER"}),
        ("Using ARK XPU WNA16 MoE kernel.", {"backend.moe": "ARK XPU WNA16"}),
        ("Using ipex marlin backend on XPU", {"backend.moe": "ipex marlin"}),
        ("Using CompressedTensorsWNA16MarlinMoEMethod", {}),
        ("Using cutlass backend for MXFP8 GEMM", {"backend.linear": "cutlass"}),
        ("VLLM_CPU_KVCACHE_SPACE not set. Using 4.00 GiB for KV cache.", {"kv.available": 4.0}),
        ("Online quantization as part of model loading took 3.20 seconds", {}),
        ("# GPU blocks: 27104, # CPU blocks: 2048", {"kv.blocks": 27104}),
    ],
)
def test_wordings_of_other_releases_and_hardware(text, expected):
    assert facts(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Capturing CUDA graphs (PIECEWISE):  48%|████▊    x.py:260] set (0.25/23.54) GiB",
        "[AutoTuner]: Tuning op:  48%|████▊    x.py:260] set (0.25/23.54) GiB",
        "Loading safetensors checkpoint shards:  50% Completed | x 0.5/9.5 [",
    ],
)
def test_a_bar_cut_short_takes_no_digits_of_another_number(text):
    assert facts(text) == {}


def test_bars_of_different_graphs_are_apart():
    from pytest_startup.engines.reader import Reader, read
    from pytest_startup.engines.registry import tables

    bar = "Capturing {}CUDA graphs (FULL): 100%|██| {}/{} [00:0{}<00:00, 9it/s]\n"
    log = (
        bar.format("", 3, 3, 5)
        + bar.format("", 3, 3, 5)  # printed again when it ends
        + bar.format("", 3, 3, 2)  # another one: it took less time
        + bar.format("prefill ", 3, 3, 2)
        + bar.format("decode ", 4, 4, 2)
    )
    found, _ = read([log.encode()], Reader(tables("vllm")))
    assert sorted(f.evidence.line for f in found if f.name == "graphs.captured") == [2, 3, 4, 5]


def test_an_engine_that_no_line_names_is_known_by_its_facts():
    from pytest_startup.engines.reader import Reader, read
    from pytest_startup.engines.registry import tables

    _, (start,) = read(
        [b"(Worker_PP1 pid=3) INFO 11-29 12:00:00 [x.py:1] Loading weights took 2.10 seconds\n"], Reader(tables())
    )
    assert start.engine == "vllm"
