"""What helps and what cannot help against a kind of failure, given the phase in which it happened."""

from __future__ import annotations

Advice = tuple[tuple[str, ...], tuple[str, ...]]

_BEFORE_KV = (
    "kv.tokens, gpu-memory-utilization, kv-cache-memory and mem-fraction-static: no KV cache existed yet",
    "max-model-len and max-num-seqs: they size what comes later",
)
_FEWER_LAYERS = "more ranks (tensor or pipeline parallel) or a smaller or more quantized checkpoint"
#: Where the engine's own words show it, this goes before all else.
HELD_BY_OTHERS = "ending what else holds memory of the device (nvidia-smi names it): the same start may fit without it"

#: By kind and phase; the phase None holds for every phase that has no row of its own.
ADVICE: dict[tuple[str, str | None], Advice] = {
    ("out-of-device-memory", "weights"): (
        (_FEWER_LAYERS, "nothing else on the device: look for processes that hold memory", "CPU offload of weights"),
        _BEFORE_KV,
    ),
    ("out-of-device-memory", "preparation"): (
        (
            "another backend: this one repacks the weights and needs a second copy while it does",
            _FEWER_LAYERS,
        ),
        _BEFORE_KV,
    ),
    ("out-of-device-memory", "device-init"): (
        ("nothing else on the device: look for processes that hold memory",),
        (*_BEFORE_KV, "a smaller checkpoint: nothing was loaded yet"),
    ),
    ("out-of-device-memory", "profiling"): (
        ("fewer max-num-batched-tokens or max-num-seqs", "a shorter or smaller multimodal budget", _FEWER_LAYERS),
        ("a lower KV budget: the activations of one step do not fit, KV blocks come after",),
    ),
    ("out-of-device-memory", "compile"): (
        ("fewer max-num-batched-tokens", "inductor autotuning off (it benchmarks on the device)", _FEWER_LAYERS),
        ("a lower KV budget: KV blocks come after compilation",),
    ),
    ("out-of-device-memory", "kv-reservation"): (
        ("a lower gpu-memory-utilization, mem-fraction-static or kv-cache-memory", "nothing else on the device"),
        ("fewer CUDA graph sizes: none was captured yet",),
    ),
    ("out-of-device-memory", "warm-up"): (
        ("a lower gpu-memory-utilization or mem-fraction-static", "fewer max-num-seqs (sampler) or batched tokens"),
        ("a longer start-up deadline",),
    ),
    ("out-of-device-memory", "graph-capture"): (
        ("a lower gpu-memory-utilization or mem-fraction-static", "fewer or smaller capture sizes"),
        ("eager mode: it starts, but without the graphs that were validated", "a longer start-up deadline"),
    ),
    ("out-of-device-memory", "serving"): (
        ("a lower gpu-memory-utilization or mem-fraction-static", "fewer max-num-seqs or batched tokens"),
        ("a restart with the same settings: the same load meets the same limit",),
    ),
    ("out-of-device-memory", None): (("nothing else on the device", _FEWER_LAYERS), ()),
    ("out-of-host-memory", "weights"): (
        ("a loader that streams or maps the checkpoint", "more host memory, or fewer ranks loading at once"),
        ("GPU memory settings: the host ran out", *_BEFORE_KV),
    ),
    ("out-of-host-memory", None): (
        (
            "less KV offload per engine (it counts per engine)",
            "a higher memory limit of the container",
            "more host memory",
        ),
        ("gpu-memory-utilization and other GPU memory settings: the host ran out",),
    ),
    ("out-of-shared-memory", None): (
        ("a larger /dev/shm (--shm-size, --ipc host)", "removing stale files in /dev/shm"),
        ("GPU memory settings", "more host memory: /dev/shm has its own limit"),
    ),
    ("memory-in-use", None): (
        (
            "waiting for, or ending, the process that still holds the memory (often the engine of the last start)",
            "a lower gpu-memory-utilization",
        ),
        ("a smaller model or a shorter max-model-len: the check compares free memory with the share asked for",),
    ),
    ("kv-too-small", None): (
        (
            "a shorter max-model-len",
            "more gpu-memory-utilization or mem-fraction-static",
            "a smaller KV dtype",
            "more ranks",
        ),
        ("fewer max-num-seqs: one single request does not fit", "a longer start-up deadline"),
    ),
    ("disk-full", None): (("free space, or another volume for caches and models",), ("GPU memory settings",)),
    ("not-writable", None): (
        ("a writable volume for the caches, owned by the engine's user",),
        ("GPU memory settings", "another backend"),
    ),
    ("unsupported-backend", None): (
        ("another backend, or none requested (auto)", "a build that supports this combination"),
        ("GPU memory settings: this is not about memory", "a longer start-up deadline"),
    ),
    ("unsupported-device", None): (
        ("a build whose kernels were compiled for this device", "another backend"),
        ("GPU memory settings", "wiping the caches"),
    ),
    ("device-unavailable", None): (
        ("the device in the container (--gpus), driver and visible devices",),
        ("engine arguments: no device was reached",),
    ),
    ("unsupported-model", None): (
        ("a newer engine or transformers, or trust-remote-code where it is meant",),
        ("GPU memory settings",),
    ),
    ("bad-checkpoint", None): (
        (
            "comparing sizes and hashes with the pinned revision and downloading again",
            "quantization settings of this checkpoint",
        ),
        ("GPU memory settings", "a longer start-up deadline"),
    ),
    ("model-not-found", None): (
        ("path, name and revision of the model", "access (token, licence), or the files mounted where offline"),
        ("GPU memory settings", "a restart without a change"),
    ),
    ("download-failed", None): (
        ("network, proxy and hub mirror; or weights that lie on the machine",),
        ("GPU memory settings",),
    ),
    ("bad-arguments", None): (("the argument that the message names",), ("a restart without a change",)),
    ("launch-failed", None): (
        ("image, command and devices of the launch",),
        ("engine arguments: the engine did not run",),
    ),
    ("port-taken", None): (
        ("ending whoever listens there (often the engine of the last start), or another port",),
        ("a restart before the port is free", "GPU memory settings"),
    ),
    ("collective-failed", None): (
        ("the log of the other ranks and nodes: one of them usually failed first", "interfaces and NCCL/GLOO settings"),
        ("GPU memory settings", "disabling CUDA graphs"),
    ),
    ("collective-timeout", None): (
        ("finding the rank that did not come: ranks that tune or load while others wait",),
        ("a longer timeout, if one rank never arrives", "GPU memory settings"),
    ),
    ("peer-missing", None): (
        ("starting every node", "master address and port, network interface, firewall"),
        ("GPU memory settings", "a longer timeout, if the peer was never started"),
    ),
    ("device-fault", None): (
        (
            "another backend for the kernel named in the traceback",
            "CUDA_LAUNCH_BLOCKING=1 to find it; the device's error log",
        ),
        ("GPU memory settings: an access fault is not a lack of memory",),
    ),
    ("crashed", None): (
        ("the native stack above the cause", "another backend or a matching build"),
        ("GPU memory settings",),
    ),
    ("killed", None): (
        ("the kernel's log (OOM killer) and the container's memory limit", "who else may have sent the signal"),
        ("GPU memory settings: they do not lower host memory",),
    ),
    ("daemon-lost", None): (
        ("the container engine's own log (journalctl -u docker), and who restarted it", "its option live-restore"),
        ("engine arguments", "GPU memory settings"),
    ),
    ("process-died", None): (
        ("the kernel's log (OOM killer), exit codes, logs of the other nodes",),
        ("the last traceback: it comes from who noticed, not from who died",),
    ),
    ("corrupted-cache", None): (
        ("wiping the cache that the path names, and a cold start",),
        ("a restart without wiping it", "GPU memory settings"),
    ),
    ("kernel-build", None): (
        ("a compiler and CUDA toolkit that fit (nvcc, gcc, ninja)", "another backend", "prebuilt kernels"),
        ("GPU memory settings and fewer graphs: the kernel does not compile at all",),
    ),
    ("missing-module", None): (
        ("the package that is missing or does not fit, in the image",),
        ("GPU memory settings",),
    ),
    ("transfer-failed", None): (
        ("connector, RDMA device and memory-lock limit", "the peer's address"),
        ("GPU memory settings",),
    ),
    ("hang", None): (
        ("stacks of all ranks at that moment (py-spy), and which rank is missing",),
        ("waiting longer, once the deadline of the phase has passed",),
    ),
    ("interrupted", None): (("finding who stopped it (deadline, orchestrator, user)",), ("engine arguments",)),
    ("stopped", None): (
        ("whether the process still runs; its exit code; the kernel's log", "the logs of the other ranks and nodes"),
        (),
    ),
    ("unknown", None): (("reading the cause and the lines before it",), ()),
}


def advice(kind: str, phase: str | None) -> Advice:
    """What helps, and what cannot help in that phase."""
    return ADVICE.get((kind, phase)) or ADVICE[kind, None]
