"""Failure classes as data: ports, peers that do not come or are lost, transfers between them."""

from __future__ import annotations

from pytest_startup.engines.failures import FailureClass

PORTS: tuple[FailureClass, ...] = (
    FailureClass(
        "port-taken",
        (
            "[Aa]ddress already in use",
            "EADDRINUSE",
            r"at port \d+ is not available in",
            r"port .{0,20}is not available in \d+ seconds",
            r"[Pp]ort \d+ (?:is |was )?already (?:in use|allocated)",
        ),
        "OSError: [Errno 98] Address already in use",
        "Using port 8000",
    ),
    FailureClass(
        "port-taken",
        (
            "error while attempting to bind on address",
            "port is already allocated",
            "[Aa]ddress already in use",
        ),
        "[Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use",
        "Uvicorn running on http://0.0.0.0:30000",
        alone=True,
        anchors=("error while attempting to bind", "port is already allocated", "ddress already in use"),
    ),
)

PEERS: tuple[FailureClass, ...] = (
    FailureClass(
        "peer-missing",
        (
            r"Timed out after \d+ seconds waiting for clients",
            r"\d+/\d+ clients joined",
            "not all (?:ranks|clients) joined",
            "waiting for (?:the )?(?:other|all) (?:nodes|ranks).{0,40}time",
            "Timed? ?out .{0,40}placement group",
            "(?:Cannot|Unable to) provide a placement group",
            "does not have enough (?:GPUs|resources)",
            "Not enough GPUs? .{0,40}(?:cluster|node)",
            "Current node has no GPU available",
            "could not (?:reach|find) .{0,20}master",
            "no (?:other )?node joined",
        ),
        ("torch.distributed.DistStoreError: Timed out after 41 seconds waiting for clients. 1/2 clients joined."),
        "Timed out waiting 1800000ms for recv operation to complete",
    ),
    FailureClass(
        "collective-timeout",
        (
            "Watchdog caught collective operation timeout",
            "[Cc]ollective operation timeout",
            r"Timed out waiting \d+ms for (?:recv|send)",
            r"wait timeout after \d+ ?ms",
            "Socket Timeout",
            "monitoredBarrier",
            "[Tt]imed out .{0,60}(?:barrier|allreduce|all_reduce|broadcast|collective)",
            "Application timeout caused pair closure",
            "could finish the model loading, but there are other ranks",
            "[Tt]imed out initializing process group",
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
            "1800000ms for recv operation"
        ),
        "RPC call to execute_model timed out.",
        tier="peer",
    ),
    FailureClass(
        "collective-timeout",
        ("reached monitoredBarrier, but received errors", "failed to pass monitoredBarrier"),
        "Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from 0.",
        "Rank 3 reached the barrier",
        tier="peer",
        alone=True,
        anchors=("monitoredBarrier",),
    ),
    FailureClass(
        "collective-timeout",
        ("Watchdog caught collective operation timeout",),
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)",
        "Watchdog started",
        tier="peer",
        alone=True,
        anchors=("Watchdog caught collective operation timeout",),
    ),
    FailureClass(
        "hang",
        (
            r"RPC call to \w+ timed out",
            "RayChannelTimeoutError",
            "RAY_CGRAPH_get_timeout",
            "GetTimeoutError",
            "Timed out waiting for (?:the )?[Ee]ngine",
            "did not (?:start|respond) (?:within|in time)",
            "Engine (?:process|core) .{0,40}timed? ?out",
            "[Ss]erver warmup .{0,30}timed? ?out",
            r"^TimeoutError\b",
        ),
        "TimeoutError: RPC call to execute_model timed out.",
        "Keep-alive timeout 5",
    ),
    FailureClass(
        "hang",
        (r"[Ww]atchdog timeout \(self\.watchdog_timeout=[\d.]+(?:\)|, self\.soft=False)",),
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)",
        alone=True,
        anchors=("atchdog timeout (self.watchdog_timeout",),
    ),
    FailureClass(
        "collective-failed",
        (
            "NCCL error",
            "nccl(?:System|Internal|UnhandledCuda|Remote|InvalidUsage|InvalidArgument)Error",
            "DistBackendError",
            "NCCL_?ERROR",
            "unhandled (?:system|cuda) error",
            "RCCL error",
            "gloo.{0,200}(?:Connection|Read error|Write error|closed|refused)",
            "Connection closed by peer",
            "Connection reset by peer",
            "connectFullMesh failed",
            "DistNetworkError",
            "DistStoreError",
            "TCPStore",
            "recvValue failed",
            "Broken pipe",
            "^BrokenPipeError",
            "^ConnectionRe(?:set|fused)Error",
            "HCCL",
            r"ERR0\d{4}",
            "NVSHMEM",
            "nvshmem",
            "DeepEP error",
            "No such process group",
        ),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error"),
        "vLLM is using nccl==2.28.9",
        tier="peer",
    ),
    FailureClass(
        "collective-failed",
        (
            "Failed: (?:NCCL|Cuda) error .{0,200}",
            r"\bC10D? error\b.{0,100}abort",
            "terminated with exception: NCCL error",
        ),
        "Failed: NCCL error /build/x.cpp:12 'unhandled system error'",
        "Failed over",
        tier="peer",
        alone=True,
        anchors=("Failed: NCCL error", "Failed: Cuda error", "terminated with exception: NCCL"),
    ),
)

TRANSFERS: tuple[FailureClass, ...] = (
    FailureClass(
        "transfer-failed",
        ("Failed to register memory 0x",),
        "rdma_context.cpp:203] Failed to register memory 0x7c1cda000000: Bad address [14]",
        "registered memory 0x7c1cda000000",
        tier="latent",
        alone=True,
        anchors=("Failed to register memory",),
    ),
    FailureClass(
        "transfer-failed",
        (
            "KVTransferError",
            r"nixl\w*Error",
            "NIXL_ERR",
            "[Tt]ransfer (?:engine|failed)",
            "Failed to send kv chunk",
            "(?:KV|kv).{0,20}(?:transfer|connector).{0,60}(?:fail|error)",
        ),
        "KVTransferError: Failed to send kv chunk of 1 to 10.0.0.9:44781",
        "KV Transfer metrics: n=1",
    ),
    FailureClass(
        "transfer-failed",
        (
            "(?:Prefill|Decode) transfer failed for request",
            "Prefill bootstrap failed for request",
            "Decode handshake failed for request",
        ),
        ("Prefill transfer failed for request rank=0 req.rid='a' with exception KVTransferError(bootstrap_room=1)"),
        "Prefill transfer done",
        alone=True,
        anchors=("transfer failed for request", "bootstrap failed for request", "handshake failed for request"),
        phase="serving",
    ),
)
