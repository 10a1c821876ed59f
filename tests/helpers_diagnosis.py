"""Small logs written by hand, and what the reader says of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_startup.engines.base import LogSummary
from pytest_startup.engines.diagnosis import StartTracker
from pytest_startup.engines.framing import frame
from pytest_startup.engines.registry import tables
from pytest_startup.record import Failure


def follow(lines: Iterable[str], first: int = 1, step: int = 1) -> StartTracker:
    """One start, every line of which is shown to the tracker, with the facts of all rule tables.

    ``step`` -1: the numbers fall, as where a log that stands newest first is read backwards.
    """
    tracker = StartTracker("engine.log")
    rules = tables()
    for count, raw in enumerate(lines):
        for line in frame(raw.encode(), first + count * step):
            facts = [fact for _, table in rules for fact in table.facts(line, "engine.log")]
            tracker.line(line, facts)
    return tracker


def told(lines: Iterable[str]) -> LogSummary:
    return follow(lines).finish()


def record(message: str, who: str = "EngineCore pid=7", level: str = "INFO", source: str = "core.py:1") -> str:
    """A record as vLLM prints it."""
    return f"({who}) {level} 11-29 10:00:00 [{source}] {message}"


def frames(*functions: str, package: str = "vllm") -> list[str]:
    """The middle of a traceback: two physical lines per function."""
    out: list[str] = []
    for name in functions:
        out += [f'  File "/opt/lib/{package}/part/{name.strip("_")}.py", line 12, in {name}', "    go(on)"]
    return out


def raised(
    error: str,
    functions: Sequence[str],
    who: str = "EngineCore pid=7",
    head: str = "EngineCore failed to start.",
    **more: str,
) -> list[str]:
    """A traceback logged at ERROR, each physical line with the record header."""
    lines = [head, "Traceback (most recent call last):", *frames(*functions), *error.split("\n")]
    return [record(line, who, "ERROR", **more) for line in lines if line]


def bare(error: str, functions: Sequence[str], who: str | None = None, package: str = "vllm") -> list[str]:
    """A traceback that nobody caught, with the process prefix at most."""
    lines = ["Traceback (most recent call last):", *frames(*functions, package=package), *error.split("\n")]
    return [f"({who}) {line}" if who else line for line in lines]


BEGIN = [
    record("vLLM API server version 0.20.1", "APIServer pid=1", source="utils.py:1"),
    record("non-default args: {'model': 'm'}", "APIServer pid=1", source="utils.py:2"),
    record("Initializing a V1 LLM engine (v0.20.1) with config: model='m'"),
    record("world_size=1 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:1 backend=nccl"),
]
WEIGHTS = [
    record("Starting to load model m..."),
    "(EngineCore pid=7) Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]",
]
LOADED = [
    record("Loading weights took 2.20 seconds"),
    record("Model loading took 14.19 GiB memory and 4.100000 seconds"),
]
COMPILED = [
    record("Using cache directory: /c/torch_compile_cache/0a/rank_0_0/backbone for vLLM's torch.compile"),
    record("Dynamo bytecode transform time: 3.66 s"),
    record("Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 0.320 s"),
    record("torch.compile took 4.10 s in total"),
]
KV = [record("Available KV cache memory: 8.68 GiB"), record("GPU KV cache size: 94,784 tokens")]
CAPTURED = [
    "(EngineCore pid=7) Capturing CUDA graphs (decode, FULL): 100%|##########| 35/35 [00:02<00:00, 14.00it/s]",
    record("Graph capturing finished in 3 secs, took 0.69 GiB"),
]
UP = [
    record("init engine (profile, create kv cache, warmup model) took 22.67 s"),
    record("Starting vLLM server on http://0.0.0.0:8000", "APIServer pid=1"),
    "(APIServer pid=1) INFO:     Started server process [1]",
    "(APIServer pid=1) INFO:     Waiting for application startup.",
    "(APIServer pid=1) INFO:     Application startup complete.",
]
READY = [*BEGIN, *WEIGHTS, *LOADED, *COMPILED, *KV, *CAPTURED, *UP]
GIVEN_UP = bare(
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ["run_server", "build_async_engine_client", "launch_core_engines", "wait_for_engine_startup"],
    "APIServer pid=1",
)

SGLANG = [
    "[2026-06-07 11:57:02] server_args=ServerArgs(model_path='m', attention_backend='fa3')",
    "[2026-06-07 11:57:08 TP0] Init torch distributed begin.",
    "[2026-06-07 11:57:08 TP1] Init torch distributed begin.",
    "[2026-06-07 11:57:10 TP0] Load weight begin. avail mem=16.48 GB",
    "[2026-06-07 11:57:10 TP1] Load weight begin. avail mem=16.48 GB",
]
SGLANG_LOADED = [
    "[2026-06-07 11:57:43 TP0] Load weight end. elapsed=33.49 s, type=Q, avail mem=13.46 GB, mem usage=3.01 GB.",
    "[2026-06-07 11:57:43 TP1] Load weight end. elapsed=33.49 s, type=Q, avail mem=13.46 GB, mem usage=3.01 GB.",
    "[2026-06-07 11:57:43 TP0] KV Cache is allocated. #tokens: 6827, K size: 0.09 GB, V size: 0.09 GB",
    "[2026-06-07 11:57:43 TP1] KV Cache is allocated. #tokens: 6827, K size: 0.09 GB, V size: 0.09 GB",
    "[2026-06-07 11:57:44 TP0] Memory pool end. avail mem=13.04 GB",
    "[2026-06-07 11:57:44 TP1] Memory pool end. avail mem=13.04 GB",
    "[2026-06-07 11:57:45 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=12.19 GB",
    "[2026-06-07 11:57:45 TP1] Capture cuda graph begin. This can take up to several minutes. avail mem=12.19 GB",
]
SGLANG_UP = [
    "[2026-06-07 11:57:57 TP0] Capture cuda graph end. Time elapsed: 13.63 s. mem usage=2.99 GB. avail mem=9.19 GB.",
    "[2026-06-07 11:57:57 TP1] Capture cuda graph end. Time elapsed: 13.63 s. mem usage=2.99 GB. avail mem=9.19 GB.",
    "[2026-06-07 11:58:16 TP0] max_total_num_tokens=6827, chunked_prefill_size=8192, max_prefill_tokens=16384",
    "[2026-06-07 11:58:16] INFO:     Started server process [1]",
    "[2026-06-07 11:58:16] INFO:     Application startup complete.",
    "[2026-06-07 11:58:16] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)",
    '[2026-06-07 11:58:17] INFO:     127.0.0.1:44082 - "GET /model_info HTTP/1.1" 200 OK',
]
SGLANG_READY = [*SGLANG, *SGLANG_LOADED, *SGLANG_UP, "[2026-06-07 11:58:23] The server is fired up and ready to roll!"]


def scheduler(rank: str, error: str, functions: Sequence[str]) -> list[str]:
    """How SGLang's scheduler ends: only the first line of the traceback has the bracket."""
    head = f"[2026-06-07 11:57:51{rank}] Scheduler hit an exception: Traceback (most recent call last):"
    return [head, *frames("run_scheduler_process", *functions, package="sglang/srt"), error, ""]


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.90 GiB. GPU 0 has a total "
    "capacity of 141.10 GiB of which "
    "2.05 GiB is free. Including non-PyTorch memory, this process has 139.00 GiB memory in use."
)
CORE = ["run_engine_core", "__init__"]
KV_SMALL = (
    "ValueError: To serve at least one request with the model's max seq len (2048), (23.25 GiB "
    "KV cache is needed, which is "
    "larger than the available KV cache memory (22.5 GiB). Based on the available memory, the "
    "estimated maximum model length "
    "is 1824."
)
DEAD = raised(
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
    "trace (above) for the root cause.",
    ["output_handler", "get_output_async"],
    "APIServer pid=1",
    "AsyncLLM output_handler failed.",
    source="async_llm.py:704",
)


def failed(summary: LogSummary, lines: list[str], phase: str, kind: str, cause: str, ready: bool = False) -> Failure:
    """The start failed in that phase, and its cause is the first line that holds ``cause``."""
    assert (summary.ready, summary.failed) == (ready, True)
    failure = summary.failure
    assert failure is not None
    assert (failure.phase, failure.kind) == (phase, kind)
    assert failure.cause is not None
    want = next(number for number, line in enumerate(lines, 1) if cause in line)
    assert failure.cause.line == want, f"{failure.cause.line}: {failure.cause.text}"
    assert failure.helps
    return failure


def clean(summary: LogSummary, ready: bool = True) -> None:
    """Nothing failed."""
    assert (summary.ready, summary.failed, summary.failure) == (ready, False, None)
