"""Failure classes as data: memory of device, host and /dev/shm, KV cache, disks."""

from __future__ import annotations

from pytest_startup.engines.failures import FailureClass

MEMORY: tuple[FailureClass, ...] = (
    FailureClass(
        "kv-too-small",
        (
            "To serve at least one request with the model's max seq len",
            "No available memory for the cache blocks",
            "larger than the maximum number of tokens that can be stored in KV cache",
            r"[Nn]ot enough (?:GPU )?memory\. Please try to increase --mem-fraction-static",
            "Loaded weights leave no GPU memory for the KV cache",
        ),
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "INFO Available KV cache memory: 8.68 GiB",
        phase="kv-reservation",
        versions="vLLM 0.6 on, SGLang all",
    ),
    FailureClass(
        "kv-too-small",
        (
            "on kv cache allocation is less than requested memory for kv",
            "[Nn]ot enough GPU memory for hybrid",
            "state cache is too small to serve any requests",
            "KV cache (?:memory|size) .{0,60}(?:is )?(?:too small|not enough|insufficient)",
            "num_gpu_blocks_override .{0,40}too small",
            "SWA pool .{0,80}(?:too small|at least)",
        ),
        (
            "ValueError: Available memory on node 0 (15.61/23.54 GiB) on kv cache allocation is less than "
            "requested memory for kv (200.0 GiB)."
        ),
        "reserved 4.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config",
        phase="kv-reservation",
    ),
    FailureClass(
        "memory-in-use",
        (
            "(?:Free memory on device|Available memory on node) .{0,80} on startup is less than desired",
            r"The memory capacity is unbalanced\. Some GPUs may be occupied",
            r"Error in memory profiling\. Initial free memory",
        ),
        (
            "ValueError: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less than desired GPU "
            "memory utilization (0.9, 125.8 GiB). Decrease"
        ),
        (
            "Free memory on device cuda:0 (138.1/139.8 GiB) on startup. Desired GPU memory utilization is "
            "(0.9, 125.8 GiB)."
        ),
    ),
    FailureClass(
        "out-of-shared-memory",
        (
            "open shm in SHMManager failed",
            (
                "(?:failed to extend|Error while creating shared memory segment|unable to "
                r"(?:open|mmap|resize|allocate) shared memory|No space left on device.{0,80}) ?\S*/dev/shm"
            ),
            "unable to (?:open|mmap|resize|allocate) shared memory",
            "insufficient shared memory",
            r"out of shared memory\. Please try to raise your shared memory limit",
            r"\S*/dev/shm\S*.{0,60}No space left on device",
        ),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"),
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456",
    ),
    FailureClass(
        "out-of-shared-memory",
        ("NCCL WARN (?:Error: failed to extend|Error while creating shared memory segment|.*/dev/shm/nccl)",),
        ("h:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 33030532 bytes"),
        "h:1:2 [0] NCCL INFO Using network Socket",
        tier="latent",
        alone=True,
        anchors=("NCCL WARN",),
    ),
    FailureClass(
        "out-of-device-memory",
        ("NCCL WARN .*Cuda failure .*out of memory",),
        "h:1:2 [0] include/alloc.h:99 NCCL WARN Cuda failure 2 'out of memory'",
        "h:1:2 [0] NCCL WARN NET/IB : No device found.",
        tier="latent",
        alone=True,
        anchors=("NCCL WARN",),
    ),
    FailureClass(
        "collective-failed",
        (
            (
                "NCCL WARN (?:Cuda failure|Call to (?:connect|bind|ibv)|.*(?:[Ss]ystem error|failed with error|"
                r"[Cc]onnect to \S+ (?:failed|returned)|Connection (?:refused|closed)|"
                "Bootstrap : no socket interface|invalid usage|Duplicate GPU))"
            ),
        ),
        "h:1:2 [0] NCCL WARN Bootstrap : no socket interface found",
        "h:1:2 [0] NCCL WARN NET/IB : No device found.",
        tier="latent",
        alone=True,
        anchors=("NCCL WARN",),
    ),
    FailureClass(
        "out-of-device-memory",
        (r"out of memory occurred when warming up sampler",),
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
        "RuntimeError: CUDA out of memory.",
        phase="warm-up",
        versions="vLLM 0.8 on",
    ),
    FailureClass(
        "out-of-device-memory",
        (r"CUDA Error: out of memory at \S+",),
        "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
        "CUDA Error: invalid argument at /workspace/csrc/cumem_allocator.cpp:119",
        alone=True,
        anchors=("CUDA Error: out of memory at",),
        versions="vLLM, sleep mode: wake-up",
    ),
    FailureClass(
        "out-of-device-memory",
        ("Failed to load model - not enough GPU memory",),
        (
            "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization (original "
            "error: CUDA out of memory)"
        ),
        "Failed to load model",
        alone=True,
        anchors=("not enough GPU memory",),
        fatal=False,
        versions="vLLM 0.9 on",
    ),
    FailureClass(
        "out-of-device-memory",
        (
            "(?:CUDA|HIP|NPU|XPU|MUSA) out of memory",
            r"^(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b",
            r"torch\.OutOfMemoryError",
            "CUDA error: out of memory",
            "cudaErrorMemoryAllocation",
            "CU(?:BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "Cuda failure .{0,8}out of memory",
            r"\bUR_RESULT_ERROR_OUT_OF_(?:DEVICE_)?RESOURCES",
            "alloc_req_slots runs out of memory",
            "[Oo]ut of memory error .{0,40}device",
            "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
            "RESOURCE_EXHAUSTED: ",
            "Ran out of memory in memory space",
            "PT_DEVMEM Allocation failed",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.90 GiB. GPU 0 has a total "
            "capacity of 139.80 GiB"
        ),
        "RuntimeError: not enough host memory",
        versions="torch.cuda.OutOfMemoryError to torch 2.5, torch.OutOfMemoryError after",
    ),
    FailureClass(
        "out-of-host-memory",
        (
            r"^MemoryError\b",
            "std::bad_alloc",
            "DefaultCPUAllocator: can't allocate memory",
            "[Cc]annot allocate memory",
            "Not enough host memory available",
            "not enough (?:host|CPU|system) memory",
            "Insufficient (?:host|CPU|pinned) memory",
            "ArrayMemoryError",
            "node running low on memory",
            "exceeds the memory usage threshold",
        ),
        "ValueError: Not enough host memory available. Requesting 400.00 GB but only have 251.30 GB free.",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ),
    FailureClass(
        "out-of-host-memory",
        (r"[1-9]\d* Workers? \(tasks / actors\) killed due to memory pressure",),
        "(raylet) node_manager.cc:3100: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 crashed",
        "(raylet) node_manager.cc:3100: 0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 crashed",
        alone=True,
        anchors=("killed due to memory pressure",),
        versions="Ray 2",
    ),
    FailureClass(
        "killed",
        (
            "(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process",
            r"\boom[-_]kill(?:er)?\b.*(?:invoked|event|task=)",
            r"\"?OOMKilled\"?:? ?(?:true)?$",
            "OOM killed",
            "reason: OOMKilled",
        ),
        "Memory cgroup out of memory: Killed process 4242 (VLLM::EngineCore)",
        "a later OOM is likely",
        alone=True,
        anchors=("ut of memory: Kill", "oom-kill", "oom_kill", "OOMKilled", "OOM killed"),
    ),
    FailureClass(
        "disk-full",
        (
            "No space left on device",
            "Disk quota exceeded",
            "Not enough (?:free )?disk space",
        ),
        "OSError: [Errno 28] No space left on device: '/cache/x'",
        "OSError: [Errno 30] Read-only file system: '/cache/x'",
    ),
    FailureClass(
        "not-writable",
        (
            "Read-only file system",
            "PermissionError",
            "Permission denied",
        ),
        "OSError: [Errno 30] Read-only file system: '/cache/flashinfer_jit.log'",
        "OSError: [Errno 2] No such file or directory",
    ),
)
