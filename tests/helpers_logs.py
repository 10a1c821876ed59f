"""Small logs of vLLM, written by hand in the forms in which engines print them."""

from __future__ import annotations

COLD = """\
(APIServer pid=7) INFO 11-29 12:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.26.0
(APIServer pid=7) INFO 11-29 12:00:00 [api_utils.py:286] non-default args: {'model': 'm', 'api_key': 'sesame-open-now'}
(EngineCore pid=9) INFO 11-29 12:00:09 [core.py:114] Initializing a V1 LLM engine (v0.26.0) with config: model='m', x=1
(EngineCore pid=9) INFO 11-29 12:00:10 [runner.py:5308] Starting to load model m...
(EngineCore pid=9) INFO 11-29 12:00:10 [c.py:482] Using FLASH_ATTN attention backend out of potential backends: ['X'].
(EngineCore pid=9) INFO 11-29 12:00:12 [default_loader.py:430] Loading weights took 2.10 seconds
(EngineCore pid=9) INFO 11-29 12:00:13 [gpu_model_runner.py:5405] Model loading took 27.67 GiB memory and 3.71 seconds
(EngineCore pid=9) INFO 11-29 12:00:20 [backends.py:1] Using cache directory: /c/0123456789/rank_0_0/backbone for \
vLLM's torch.compile
(EngineCore pid=9) INFO 11-29 12:00:21 [backends.py:1] Cache the graph of compile range (1, 8192) for later use
(EngineCore pid=9) INFO 11-29 12:00:29 [backends.py:1] Compiling a graph for compile range (1, 8192) takes 8.48 s
(EngineCore pid=9) INFO 11-29 12:00:30 [monitor.py:53] torch.compile took 13.70 s in total
(EngineCore pid=9) INFO 11-29 12:00:31 [gpu_worker.py:563] Available KV cache memory: 41.03 GiB
(EngineCore pid=9) INFO 11-29 12:00:31 [kv_cache_utils.py:2235] GPU KV cache size: 292,522 tokens
(EngineCore pid=9) INFO 11-29 12:00:31 [kv_cache_utils.py:2236] Maximum concurrency for 4,096 tokens per request: 71.42x
(EngineCore pid=9) INFO 11-29 12:00:36 [gpu_model_runner.py:1] Graph capturing finished in 5 secs, took 0.35 GiB
(EngineCore pid=9) INFO 11-29 12:00:37 [core.py:259] init engine (profile, create kv cache, warmup model) took 24.1 s
(APIServer pid=7) INFO:     Started server process [7]
(APIServer pid=7) INFO:     Application startup complete.
"""

ACCESS = '(APIServer pid=7) INFO:     10.0.0.7:4242 - "POST /v1/completions HTTP/1.1" 200 OK\n'
STATISTICS = (
    "(APIServer pid=7) INFO 11-29 12:10:00 [loggers.py:310] Engine 000: Avg prompt throughput: 11.0 tokens/s, "
    "Avg generation throughput: 7.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, "
    "Prefix cache hit rate: {}%{}\n"
)
"""Fill in the rate, and what comes behind it."""

FAILED = """\
(EngineCore pid=9) INFO 11-29 12:00:09 [core.py:114] Initializing a V1 LLM engine (v0.26.0) with config: model='m', x=1
(EngineCore pid=9) INFO 11-29 12:00:10 [runner.py:5308] Starting to load model m...
(EngineCore pid=9) ERROR 11-29 12:00:12 [core.py:1349] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-29 12:00:12 [core.py:1349] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-29 12:00:12 [core.py:1349]   File "/v/vllm/v1/worker/gpu_worker.py", line 1, in load_model
(EngineCore pid=9) ERROR 11-29 12:00:12 [core.py:1349] KeyError: 'layers.5.self_attn.qkv_proj.v_proj.weight'
"""


def traffic(count: int, every: int = 10) -> str:
    """Access lines, each ``every``-th a statistics line with its own rate."""
    return "".join(STATISTICS.format(f"{n % 1000 / 10}", "") if n % every == 0 else ACCESS for n in range(1, count + 1))
