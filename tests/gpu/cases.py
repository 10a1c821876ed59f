"""The cases: how each engine is started, what is done to it, which checks must be red at which start, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors import Armed, Event, damage, hog, kill, take_port

BASE = ("--max-model-len", "8192", "--max-num-seqs", "64")
#: A fixed KV cache: several engines fit on one GPU, and every start has exactly the same capacity.
KV = ("--kv-cache-memory-bytes", "4G", "--gpu-memory-utilization", "0.1")
CUTLASS = ("--moe-backend", "flashinfer_cutlass")
#: Two ranks without NVLink multicast, which not every host may create.
PAIR = ("--tensor-parallel-size", "2", "-cc", '{"pass_config":{"fuse_allreduce_rms":false}}')
PAIR_ENV = {
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
AOT = "torch_compile_cache/torch_aot_compile/**/rank_{rank}_0/model"
RECORDS = "flashinfer_autotune_cache/**/autotune_configs*.json"
LOADING = r"Loading safetensors checkpoint shards:|Loading model from scratch|Starting to load model"
CAPTURE = r"Capturing CUDA graphs"
SERVED = r"POST /v1/completions"
QUALITY = {
    "prompts": [{"prompt": "def main(argv):"}, {"prompt": "import os", "max_tokens": 48}],
    "loops": "allow",
}

Restart = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One run of the gate.

    ``red``: start → check → words that its message must hold; every other check must be green, but for those that
    ``may`` be red too (a consequence). ``fails``: the start that must fail, after which nothing is judged. ``refused``:
    nothing may be started at all, and the output holds these words. ``alone``: needs a GPU for itself. ``cache``: the
    case whose compile cache is used (default: its own, empty at the reference start). ``seconds``: about how long.
    ``noticed``: limit in seconds from the last event to the moment at which the gate knew. ``nodes``: each GPU is a
    node of its own, reached as a node is (by our part over there, which asks NVML there).
    """

    name: str
    title: str
    model: str = "dense"
    args: tuple[str, ...] = (*BASE, *KV)
    env: Mapping[str, str] = field(default_factory=dict)
    restarts: Sequence[Restart] = ()
    expect: Mapping[str, Any] = field(default_factory=dict)
    waive: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[Event] = ()
    red: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    may: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fails: str | None = None
    refused: str | None = None
    gpus: int = 1
    alone: bool = False
    fixed_port: bool = False
    cache: str | None = None
    watch: bool = True
    own_tests: str | None = None
    noticed: float | None = None
    nodes: bool = False
    seconds: float = 150.0


def change(*args: str, **env: str) -> Restart:
    return {"kind": "process", "change": {**({"args": list(args)} if args else {}), **({"env": env} if env else {})}}


WARM: Restart = {"kind": "process"}
#: A dense model has nothing to tune; the autotuner opens and closes empty.
DENSE = {"autotune": "a dense model of this precision has no op that is tuned"}
#: Random weights: the last bits of a sum decide tokens, so that two GPUs, the batches of two engines with experts, or
#: other reduction kernels give other greedy answers now and then.
RANDOM_MAY = ("quality",)
#: Steps of the GPU, not requests of ours, are what takes the time: two rounds of 20 long answers from the wide model.
NOISE = {
    "throughput": {"concurrency": [20], "output_tokens": 192, "requests": 40, "repeats": 7},
    "quality": QUALITY,
}
WIDE = ("--max-model-len", "8192", "--max-num-seqs", "20", *KV)
#: 600 MB of KV cache are 5,200 tokens: eight sessions of 1,500 do not fit, and come back from the host's memory.
OFFLOAD = (
    *("--max-model-len", "4096", "--max-num-seqs", "16", "--kv-cache-memory-bytes", "600M"),
    *("--gpu-memory-utilization", "0.1", "--kv-offloading-size", "8", "--kv-offloading-backend", "native"),
)
_hog_load, _hog_capture, _hog_kv = Armed(0.6), Armed(0.05), Armed(60.0)

CASES = (
    *(
        Case(
            f"steady-{lane}",
            "identical warm restarts: no false alarm",
            restarts=[{**WARM, "times": 4}],
            expect={"quality": QUALITY},
            waive=DENSE,
            seconds=300,
        )
        for lane in range(1, 6)
    ),
    Case(
        "warm",
        "cold start, three warm restarts",
        restarts=[{**WARM, "times": 3}],
        expect={"quality": QUALITY},
        waive=DENSE,
        # A cold start may choose other reduction kernels than the first warm one, which then keeps them.
        may={f"restart-{n}": RANDOM_MAY for n in (1, 2, 3)},
        seconds=300,
    ),
    Case(
        "changes",
        "eager; half the KV memory; another attention backend",
        restarts=[
            change("--enforce-eager"),
            change("--kv-cache-memory-bytes", "2G"),
            change("--attention-backend", "TRITON_ATTN"),
        ],
        waive=DENSE,
        red={
            "restart-1": {"graphs": ["no CUDA graph was captured"]},
            "restart-2": {"kv": ["less than the reference start"]},
            "restart-3": {"backend": ["FLASH_ATTN", "TRITON_ATTN"]},
        },
        may={
            "restart-1": ("artifacts", "identity", "backend", "quality"),
            "restart-2": ("artifacts",),
            "restart-3": ("artifacts", "identity", "graphs", "quality"),
        },
        seconds=300,
    ),
    Case(
        "graphs",
        "capture sizes 1, 2, 4 only; piecewise graphs only",
        restarts=[
            change("--cudagraph-capture-sizes", "1", "2", "4"),
            change("-cc", '{"cudagraph_mode":"PIECEWISE"}'),
        ],
        waive=DENSE,
        red={
            "restart-1": {"graphs": ["3 of 19 PIECEWISE", "3 of 11 FULL"]},
            "restart-2": {"graphs": ["0 of 11 FULL"]},
        },
        may={"restart-1": ("artifacts", "identity"), "restart-2": ("artifacts", "identity")},
        seconds=250,
    ),
    Case(
        "aot",
        "AOT model of the only rank deleted, then truncated",
        restarts=[WARM, WARM],
        waive=DENSE,
        events=[
            Event("reference", "stopped", damage(AOT.format(rank=0), "delete")),
            Event("restart-1", "stopped", damage(AOT.format(rank=0), "truncate")),
        ],
        red={
            "restart-1": {"artifacts": ["missing, corrupt or refused artifact", "written during a warm start"]},
            "restart-2": {"artifacts": ["missing, corrupt or refused artifact", "written during a warm start"]},
        },
        seconds=230,
    ),
    Case(
        "artifact",
        "a compiled artifact with 64 wrong bytes",
        restarts=[WARM],
        waive=DENSE,
        events=[Event("reference", "stopped", damage("torch_compile_cache/**/artifact_compile_range*", "garble"))],
        red={"restart-1": {"ready": []}},
        may={"restart-1": ("artifacts",)},
        fails="restart-1",
        seconds=180,
    ),
    Case(
        "moe",
        "experts on FlashInfer CUTLASS: records hit; deleted; another MoE backend; damaged",
        model="moe",
        args=(*BASE, *KV, *CUTLASS),
        restarts=[WARM, WARM, change("--moe-backend", "triton"), WARM],
        expect={
            "backend": {"moe": "FLASHINFER_CUTLASS"},
            "autotune": {"ranks": 1, "records_per_rank": 42, "ops": ["gemm1", "gemm2"]},
        },
        events=[
            Event("restart-1", "stopped", damage(RECORDS, "delete")),
            Event("restart-3", "stopped", damage(RECORDS, "break-json")),
        ],
        red={
            "restart-2": {"autotune": ["tuned again"]},
            "restart-3": {"backend": ["FLASHINFER_CUTLASS"]},
            "restart-4": {"ready": ["JSONDecodeError"]},
        },
        may={
            "restart-1": RANDOM_MAY,
            "restart-2": RANDOM_MAY,
            "restart-3": ("autotune", "artifacts", "identity", "kv", "quality"),
            "restart-4": ("autotune", "artifacts"),
        },
        fails="restart-4",
        seconds=380,
    ),
    Case(
        "offload-idle",
        "native KV offload configured and not exercised",
        args=OFFLOAD,
        waive=DENSE,
        red={"reference": {"tiers": ["external cache tier is configured"]}},
        seconds=140,
    ),
    Case(
        "offload-used",
        "native KV offload exercised by sessions that come back",
        args=OFFLOAD,
        cache="offload-idle",
        restarts=[WARM],
        expect={"tiers": {"external": 0.5, "sessions": {"count": 8, "prompt_tokens": 1500}}},
        waive=DENSE,
        seconds=200,
    ),
    Case(
        "graphs-served",
        "which graphs serving used, by the engine's own statistics",
        model="moe",
        args=(*BASE, *KV, *CUTLASS, "--cudagraph-metrics"),
        restarts=[WARM],
        expect={"throughput": {"concurrency": [16], "output_tokens": 256, "repeats": 9, "tolerance": "50%"}},
        waive={"throughput": "the GPU may be shared with other cases"},
        may={"restart-1": ("throughput",), "reference": ("throughput",)},
        seconds=220,
    ),
    Case(
        "sleep",
        "sleep and wake, level 1 and 2",
        args=(*BASE, *KV, "--enable-sleep-mode"),
        env={"VLLM_SERVER_DEV_MODE": "1"},
        waive=DENSE,
        own_tests="sleep_checks.py",
        seconds=140,
    ),
    Case(
        "kill-load",
        "engine core killed while weights load",
        cache="warm",
        watch=False,
        events=[kill("reference", LOADING, "EngineCore")],
        red={"reference": {"ready": []}},
        fails="reference",
        noticed=1.0,
        seconds=60,
    ),
    Case(
        "kill-capture",
        "engine core killed while graphs are captured",
        cache="warm",
        watch=False,
        events=[kill("reference", CAPTURE, "EngineCore")],
        red={"reference": {"ready": []}},
        fails="reference",
        noticed=1.0,
        seconds=70,
    ),
    Case(
        "kill-serving",
        "engine core killed while it serves the workload",
        cache="warm",
        watch=False,
        expect={"throughput": {"concurrency": [8], "output_tokens": 256, "repeats": 9}},
        events=[kill("reference", SERVED, "EngineCore")],
        red={"reference": {"ready": []}},
        fails="reference",
        seconds=70,
    ),
    Case(
        "port-before",
        "the port is taken before anything starts",
        cache="warm",
        watch=False,
        fixed_port=True,
        events=[Event("reference", "now", take_port)],
        refused="already taken",
        seconds=15,
    ),
    Case(
        "port-later",
        "the port is taken while the engine starts, and answers 200",
        cache="warm",
        watch=False,
        fixed_port=True,
        events=[Event("reference", "launched", take_port)],
        red={"reference": {"ready": ["Errno 98"]}},
        may={"reference": ("cleanup",)},
        fails="reference",
        seconds=50,
    ),
    Case(
        "pair-moe",
        "two ranks, expert parallel: tuned again at every start; a worker killed while serving",
        model="moe",
        args=(*BASE, *KV, *CUTLASS, *PAIR, "--enable-expert-parallel"),
        env=PAIR_ENV,
        restarts=[WARM, WARM],
        expect={
            "autotune": {"ranks": 2, "records_per_rank": 42},
            "throughput": {"concurrency": [8], "output_tokens": 128, "repeats": 7, "tolerance": "50%"},
        },
        waive={"throughput": "the GPUs are shared with other cases"},
        events=[kill("restart-2", SERVED, "Worker_TP1_EP1")],
        red={"restart-1": {"autotune": ["tuned again"]}, "restart-2": {"ready": []}},
        may={"restart-2": ("autotune",), "restart-1": ("throughput", *RANDOM_MAY)},
        fails="restart-2",
        noticed=1.0,
        gpus=2,
        seconds=330,
    ),
    Case(
        "pair-dense",
        "two ranks: warm; rank 1's AOT model deleted",
        args=(*BASE, *KV, *PAIR),
        env=PAIR_ENV,
        restarts=[WARM, WARM],
        waive=DENSE,
        events=[Event("restart-1", "stopped", damage(AOT.format(rank=1), "delete"))],
        red={"restart-2": {"artifacts": ["rank TP1"]}},
        may={f"restart-{n}": RANDOM_MAY for n in (1, 2)},
        gpus=2,
        seconds=240,
    ),
    Case(
        "pair-kill",
        "two ranks: a worker killed while weights load",
        args=(*BASE, *KV, *PAIR),
        env=PAIR_ENV,
        watch=False,
        events=[kill("reference", LOADING, "Worker_TP1")],
        red={"reference": {"ready": ["Worker_TP1"]}},
        fails="reference",
        noticed=1.0,
        gpus=2,
        seconds=60,
    ),
    Case(
        "pair-kill-capture",
        "two ranks: a worker killed while graphs are captured",
        args=(*BASE, *KV, *PAIR),
        env=PAIR_ENV,
        cache="pair-dense",
        watch=False,
        events=[kill("reference", CAPTURE, "Worker_TP1")],
        red={"reference": {"ready": ["Worker_TP1"]}},
        fails="reference",
        noticed=1.0,
        gpus=2,
        seconds=110,
    ),
    Case(
        "pair-damage",
        "two ranks: rank 1's AOT model truncated",
        args=(*BASE, *KV, *PAIR),
        env=PAIR_ENV,
        restarts=[WARM],
        waive=DENSE,
        events=[Event("reference", "stopped", damage(AOT.format(rank=1), "truncate"))],
        red={"restart-1": {"artifacts": ["missing, corrupt or refused artifact", "written during a warm start"]}},
        may={"restart-1": RANDOM_MAY},
        gpus=2,
        seconds=200,
    ),
    Case(
        "dp-offload",
        "two data-parallel engines: each one's KV offload",
        args=(*OFFLOAD, "--data-parallel-size", "2"),
        env=PAIR_ENV,
        restarts=[WARM],
        expect={"tiers": {"external": 0.5, "sessions": {"count": 16, "prompt_tokens": 1500}}},
        waive=DENSE,
        gpus=2,
        seconds=240,
    ),
    Case(
        "dp-graphs",
        "two data-parallel engines with experts: each one's graphs, by its own statistics; one killed while serving",
        model="moe",
        args=(*BASE, *KV, *CUTLASS, "--data-parallel-size", "2", "--api-server-count", "1", "--cudagraph-metrics"),
        env={**PAIR_ENV, "VLLM_LOG_STATS_INTERVAL": "1"},
        restarts=[WARM, WARM],
        expect={"throughput": {"concurrency": [16], "output_tokens": 256, "repeats": 9, "tolerance": "50%"}},
        waive={"throughput": "the GPUs may be shared with other cases"},
        events=[kill("restart-2", SERVED, "EngineCore_DP1")],
        red={"restart-1": {"autotune": ["tuned again"]}, "restart-2": {"ready": ["EngineCore_DP1"]}},
        may={"reference": ("throughput",), "restart-1": ("throughput", "artifacts", *RANDOM_MAY)},
        fails="restart-2",
        noticed=1.0,
        gpus=2,
        seconds=330,
    ),
    Case(
        "noise",
        "identical warm restarts under load: noise of throughput, NVML",
        model="wide",
        args=WIDE,
        alone=True,
        restarts=[{**WARM, "times": 10}],
        expect=NOISE,
        waive={**DENSE, "throughput": "noise: whether a drop shows is what this case measures"},
        may={f"restart-{n}": ("throughput",) for n in range(1, 11)},
        seconds=800,
    ),
    Case(
        "slower",
        "one place less than is asked for at once; piecewise graphs; no scheduling ahead",
        model="wide",
        args=WIDE,
        alone=True,
        restarts=[
            change("--max-num-seqs", "19"),
            change("-cc", '{"cudagraph_mode":"PIECEWISE"}'),
            change("--no-async-scheduling"),
        ],
        expect=NOISE,
        waive=DENSE,
        red={"restart-1": {"throughput": ["below the reference start"]}, "restart-2": {"graphs": ["FULL"]}},
        may={
            "restart-1": ("artifacts", "graphs", "identity", "kv", "quality"),
            "restart-2": ("throughput", "artifacts", "identity", "kv", "quality"),
            "restart-3": ("throughput", "artifacts", "identity", "kv", "quality"),
        },
        seconds=400,
    ),
    Case(
        "node-pair",
        "one engine over two nodes with a GPU each: NVML of each node, restarted warm",
        args=(*BASE, *KV, *PAIR, "--nnodes", "2", "--master-port", "29611", "--disable-custom-all-reduce"),
        env={**PAIR_ENV, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"},
        restarts=[WARM],
        waive=DENSE,
        may={"restart-1": RANDOM_MAY},
        gpus=2,
        alone=True,
        nodes=True,
        seconds=230,
    ),
    Case(
        "hog-kv",
        "another process takes memory before the KV cache is sized",
        args=(*BASE, "--gpu-memory-utilization", "0.9"),
        cache="warm",
        watch=False,
        alone=True,
        restarts=[WARM],
        waive=DENSE,
        events=[
            Event("restart-1", "launched", _hog_kv.ready),
            Event("restart-1", r"Model loading took", _hog_kv.strike),
        ],
        red={"restart-1": {"kv": ["less than the reference start"]}},
        may={"restart-1": ("memory",)},
        seconds=120,
    ),
    Case(
        "free-memory",
        "another process holds the memory before the start",
        args=BASE,
        cache="warm",
        watch=False,
        alone=True,
        events=[Event("reference", "now", hog(20.0))],
        refused="of others",
        seconds=50,
    ),
    Case(
        "hog-load",
        "another process takes the memory while weights load",
        cache="warm",
        watch=False,
        alone=True,
        events=[
            Event("reference", "launched", _hog_load.ready),
            Event("reference", r"Using V\d Model Runner|Initializing a V1 LLM engine", _hog_load.strike),
        ],
        red={"reference": {"ready": []}},
        fails="reference",
        seconds=60,
    ),
    Case(
        "hog-capture",
        "another process takes the memory while graphs are captured",
        args=(*BASE, *KV, "--max-num-seqs", "512"),
        cache="warm",
        watch=False,
        alone=True,
        events=[
            Event("reference", "launched", _hog_capture.ready),
            Event("reference", CAPTURE, _hog_capture.strike),
        ],
        red={"reference": {"ready": []}},
        fails="reference",
        seconds=70,
    ),
)
