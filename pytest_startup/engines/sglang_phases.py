"""SGLang: the lines that show that a phase has been reached (0.4.0 to 0.5.23)."""

from __future__ import annotations

from functools import partial

from pytest_startup.engines.phases import Opener

_opener = partial(Opener, "sglang")

OPENERS: tuple[Opener, ...] = (
    _opener(
        "device-init",
        "begin.",
        "Init torch distributed begin.",
        "Load weight begin. avail mem=1 GB",
        pattern=r"Init (?:torch distributed|parallel) begin\.",
        scope="rank",
    ),
    _opener(
        "weights",
        "Load weight begin",
        "Load weight begin. avail mem=112.22 GB",
        "Load weight end.",
        scope="rank",
    ),
    _opener(
        "kv-reservation",
        "Load weight end",
        "Load weight end. elapsed=21.45 s, type=Q, avail mem=109.00 GB, mem usage=3.22 GB.",
        "Load weight end. Committed real weights after CUDA graph capture in 3 s (x)",
        pattern=r"Load weight end\.(?! Committed)",
        scope="rank",
    ),
    _opener(
        "kv-reservation",
        "KV Cache is allocated",
        "KV Cache is allocated. #tokens: 6827, K size: 0.09 GB, V size: 0.09 GB",
        "KV Cache skipped",
        scope="rank",
    ),
    _opener("warm-up", "Memory pool end", "Memory pool end. avail mem=13.04 GB", "Memory pool", scope="rank"),
    _opener(
        "warm-up",
        "Running FlashInfer autotune",
        "Running FlashInfer autotune with cache: /c/rank_tp0_pp0_dp0.json",
        "FlashInfer autotune completed.",
        scope="rank",
    ),
    _opener(
        "warm-up",
        "DeepGEMM JIT Pre-Compile",
        "Entering DeepGEMM JIT Pre-Compile session. It may take a long time",
        "DeepGEMM is enabled",
    ),
    _opener(
        "graph-capture",
        "Capture ",
        "Capture cuda graph begin. This can take up to several minutes. avail mem=12.19 GB",
        "Capture cuda graph end. Time elapsed: 13.63 s.",
        pattern=r"Capture [\w ]*graph begin",
        scope="rank",
    ),
    _opener(
        "warm-up",
        "Capture ",
        "Capture cuda graph end. Time elapsed: 13.63 s. mem usage=2.99 GB.",
        "Capture cuda graph begin.",
        pattern=r"Capture [\w ]*graph end",
        scope="rank",
    ),
    _opener(
        "api",
        "max_total_num_tokens=",
        "max_total_num_tokens=6827, chunked_prefill_size=8192, max_prefill_tokens=16384",
        "server_args={'max_total_num_tokens': None}",
        pattern=r"^max_total_num_tokens=\d+, ",
        scope="engine",
    ),
    _opener(
        "serving",
        "fired up and ready to roll",
        "The server is fired up and ready to roll!",
        "The server is starting",
        scope="engine",
    ),
)
