"""Phases as data: the lines that open them, per engine and version."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_startup.record import PHASES

#: Whom an opening line speaks for: the rank that prints it, all ranks of its node or engine core, or the whole engine.
SCOPES = ("rank", "node", "engine")


@dataclass(frozen=True)
class Opener:
    """A wording that shows that a phase has been reached (at the latest now). ``anchor`` is part of every match."""

    engine: str
    phase: str
    anchor: str
    example: str
    counter: str
    pattern: str | None = None
    scope: str = "node"
    versions: str = ""


def _vllm(phase: str, anchor: str, example: str, counter: str, **more: str) -> Opener:
    return Opener("vllm", phase, anchor, example, counter, **more)


def _sglang(phase: str, anchor: str, example: str, counter: str, **more: str) -> Opener:
    return Opener("sglang", phase, anchor, example, counter, **more)


OPENERS: tuple[Opener, ...] = (
    _vllm(
        "device-init",
        "Initializing a",
        "Initializing a V1 LLM engine (v0.31.0) with config: model='m'",
        "Initializing a random tensor",
        pattern=r"Initializing an? (?:V[01] )?LLM engine",
        scope="engine",
        versions="0.6 on; V0: 'an LLM engine'",
    ),
    _vllm(
        "device-init",
        "distributed_init_method=",
        "world_size=2 rank=1 local_rank=1 distributed_init_method=tcp://127.0.0.1:1 backend=nccl",
        "non-default args: {'distributed_init_method': None}",
        pattern=r"world_size=\d+ rank=\d+ local_rank=\d+ distributed_init_method=",
        scope="rank",
    ),
    _vllm(
        "weights",
        "Starting to load model",
        "Starting to load model /models/m...",
        "Model loading took 1 GiB",
        versions="every rank to 0.11.0, global rank 0 after",
    ),
    _vllm("weights", "Loading model from scratch", "Loading model from scratch...", "Loading from scratch"),
    _vllm("weights", "Loading drafter model", "Loading drafter model...", "drafter model loaded"),
    _vllm(
        "weights",
        "Loading ",
        "Loading safetensors checkpoint shards:  56% Completed | 5/9 [00:13<00:11]",
        "Loading tokenizer",
        pattern=r"(?:Loading|Multi-thread loading) (?:\w+ )?(?:checkpoint )?(?:shards|using [\w. ]+):? +\d+%",
        scope="rank",
    ),
    _vllm(
        "preparation",
        "Loading weights took",
        "Loading weights took 2.20 seconds",
        "Reloading and processing weights took 3 seconds",
        scope="rank",
        versions="every rank to 0.11.0, local rank 0 after",
    ),
    _vllm(
        "profiling",
        "Model loading took",
        "Model loading took 14.19 GiB memory and 880.678751 seconds",
        "Starting to load model m",
        pattern=r"[Mm]odel loading took|[Ll]oading model weights took",
        scope="rank",
    ),
    _vllm("profiling", "Loading model weights took", "Loading model weights took 14.2 GB", "x", scope="rank"),
    _vllm(
        "profiling",
        "Encoder cache will be initialized",
        "Encoder cache will be initialized with a budget of 16384 tokens",
        "Encoder cache is off",
    ),
    _vllm(
        "compile",
        "for vLLM's torch.compile",
        "Using cache directory: /c/torch_compile_cache/0a/rank_0_0 for vLLM's torch.compile",
        "vLLM's torch.compile cache is disabled.",
        scope="rank",
    ),
    _vllm(
        "compile",
        "Dynamo bytecode transform time",
        "Dynamo bytecode transform time: 6.93 s",
        "bytecode transform",
        scope="rank",
    ),
    _vllm(
        "compile",
        "Directly load",
        "Directly load AOT compilation from path /c/rank_0_0/model",
        "Cannot directly load",
        pattern=r"Directly load (?:AOT|the compiled graph)",
        scope="rank",
    ),
    _vllm(
        "compile",
        "Warming up model for the compilation",
        "Warming up model for the compilation...",
        "Warming up FlashInfer attention.",
        versions="CPU",
    ),
    _vllm(
        "profiling",
        "torch.compile ta",
        "torch.compile takes 6.93 s in total",
        "torch.compile cache",
        pattern=r"torch\.compile (?:takes|took) [\d.]+ s in total",
        scope="rank",
    ),
    _vllm(
        "profiling",
        "Initial profiling/warmup run took",
        "Initial profiling/warmup run took 0.80 s",
        "profiling run",
        scope="rank",
    ),
    _vllm("profiling", "Memory profiling takes", "Memory profiling takes 3.12 seconds", "profiling", versions="V0"),
    _vllm(
        "profiling",
        "Profiling CUDA graph memory",
        "Profiling CUDA graph memory: PIECEWISE=51 (largest=512), FULL=35 (largest=256)",
        "CUDA graph memory profiling is enabled",
        scope="rank",
    ),
    _vllm(
        "kv-reservation",
        "Available KV cache memory",
        "Available KV cache memory: 8.68 GiB",
        "available KV cache memory (3.00 GiB)",
        scope="rank",
    ),
    _vllm(
        "kv-reservation",
        "memory for KV Cache as specified by",
        "Initial free memory 136.38 GiB, reserved 4.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes",
        "reserved memory",
        scope="rank",
    ),
    _vllm(
        "kv-reservation",
        "GiB for KV cache",
        "Explicitly set (0.25/23.54) GiB for KV cache on node 0.",
        "requested memory for kv (200.0 GiB)",
        scope="rank",
        versions="CPU",
    ),
    _vllm(
        "kv-reservation",
        "KV cache size:",
        "GPU KV cache size: 94,784 tokens",
        "KV cache usage: 0.0%",
        pattern=r"[GC]PU KV cache size: \d",
    ),
    _vllm(
        "kv-reservation", " blocks: ", "# cuda blocks: 2048, # CPU blocks: 512", "blocks", pattern=r"# \w+ blocks: \d"
    ),
    _vllm(
        "warm-up",
        "Autotuning process starts",
        "[Autotuner]: Autotuning process starts ...",
        "Autotuning process ends",
        scope="rank",
    ),
    _vllm(
        "warm-up",
        "Using FlashInfer autotune cache file",
        "Using FlashInfer autotune cache file: /c/autotune_configs.json",
        "autotune",
        scope="rank",
    ),
    _vllm("warm-up", "DeepGEMM warmup", "DeepGEMM warmup: 10%|# | 1/10 [00:01<00:09]", "DeepGEMM is on", scope="rank"),
    _vllm(
        "warm-up",
        "Warming up FlashInfer attention",
        "Warming up FlashInfer attention.",
        "Warming up Mamba2 SSD Triton kernels...",
        scope="rank",
    ),
    _vllm(
        "graph-capture",
        "Capturing ",
        "Capturing CUDA graphs (decode, FULL):  36%|### | 4/11 [00:00<00:00]",
        "Profiling CUDA graph memory",
        pattern=r"Capturing (?:the model for |prefill |decode |\w+ )?CUDA graph",
        scope="node",
    ),
    _vllm(
        "graph-capture",
        "disabled for CUDA graph capture",
        "Rank 0: Torch profiler disabled for CUDA graph capture",
        "Skipping CUDA graph capture.",
    ),
    _vllm(
        "warm-up",
        "Graph capturing finished in",
        "Graph capturing finished in 7 secs, took 0.69 GiB",
        "Graph capture",
        scope="node",
    ),
    _vllm(
        "api",
        "init engine (",
        "init engine (profile, create kv cache, warmup model) took 22.67 seconds",
        "Initializing a V1 LLM engine",
        pattern=r"init engine \([^)]*\) took",
        scope="engine",
    ),
    _vllm(
        "api",
        "Supported",
        "Supported tasks: ['generate']",
        "Unsupported",
        pattern=r"^Supported[_ ]tasks: ",
        scope="engine",
    ),
    _vllm(
        "api",
        "Starting vLLM",
        "Starting vLLM API server 0 on http://0.0.0.0:8000",
        "Starting vLLM Server with memory optimizations...",
        pattern=r"Starting vLLM (?:API )?server (?:\d+ )?on",
        scope="engine",
    ),
    _vllm(
        "api",
        "Started server process",
        "Started server process [1]",
        "server process",
        scope="engine",
        versions="uvicorn; both engines",
    ),
    _vllm(
        "serving",
        "Application startup complete",
        "Application startup complete.",
        "Waiting for application startup.",
        scope="engine",
    ),
    _sglang(
        "device-init",
        "begin.",
        "Init torch distributed begin.",
        "Load weight begin. avail mem=1 GB",
        pattern=r"Init (?:torch distributed|parallel) begin\.",
        scope="rank",
    ),
    _sglang(
        "weights",
        "Load weight begin",
        "Load weight begin. avail mem=112.22 GB",
        "Load weight end.",
        scope="rank",
    ),
    _sglang(
        "kv-reservation",
        "Load weight end",
        "Load weight end. elapsed=21.45 s, type=Q, avail mem=109.00 GB, mem usage=3.22 GB.",
        "Load weight end. Committed real weights after CUDA graph capture in 3 s (x)",
        pattern=r"Load weight end\.(?! Committed)",
        scope="rank",
    ),
    _sglang(
        "kv-reservation",
        "KV Cache is allocated",
        "KV Cache is allocated. #tokens: 6827, K size: 0.09 GB, V size: 0.09 GB",
        "KV Cache skipped",
        scope="rank",
    ),
    _sglang("warm-up", "Memory pool end", "Memory pool end. avail mem=13.04 GB", "Memory pool", scope="rank"),
    _sglang(
        "warm-up",
        "Running FlashInfer autotune",
        "Running FlashInfer autotune with cache: /c/rank_tp0_pp0_dp0.json",
        "FlashInfer autotune completed.",
        scope="rank",
    ),
    _sglang(
        "warm-up",
        "DeepGEMM JIT Pre-Compile",
        "Entering DeepGEMM JIT Pre-Compile session. It may take a long time",
        "DeepGEMM is enabled",
    ),
    _sglang(
        "graph-capture",
        "Capture ",
        "Capture cuda graph begin. This can take up to several minutes. avail mem=12.19 GB",
        "Capture cuda graph end. Time elapsed: 13.63 s.",
        pattern=r"Capture [\w ]*graph begin",
        scope="rank",
    ),
    _sglang(
        "warm-up",
        "Capture ",
        "Capture cuda graph end. Time elapsed: 13.63 s. mem usage=2.99 GB.",
        "Capture cuda graph begin.",
        pattern=r"Capture [\w ]*graph end",
        scope="rank",
    ),
    _sglang(
        "api",
        "max_total_num_tokens=",
        "max_total_num_tokens=6827, chunked_prefill_size=8192, max_prefill_tokens=16384",
        "server_args={'max_total_num_tokens': None}",
        pattern=r"^max_total_num_tokens=\d+, ",
        scope="engine",
    ),
    _sglang(
        "serving",
        "fired up and ready to roll",
        "The server is fired up and ready to roll!",
        "The server is starting",
        scope="engine",
    ),
)


_compiled = functools.cache(re.compile)


class OpenerTable:
    """All openers, found by way of their anchors."""

    def __init__(self, openers: Iterable[Opener] = OPENERS) -> None:
        self._by_anchor: dict[str, list[Opener]] = {}
        for opener in openers:
            self._by_anchor.setdefault(opener.anchor, []).append(opener)
        self.anchors = tuple(self._by_anchor)

    def match(self, message: str) -> Opener | None:
        """The first opener that the message is."""
        for anchor, rows in self._by_anchor.items():
            if anchor in message:
                for opener in rows:
                    if opener.pattern is None or _compiled(opener.pattern).search(message):
                        return opener
        return None


def order(phase: str) -> int:
    """Place of a phase in the usual order."""
    return PHASES.index(phase)
