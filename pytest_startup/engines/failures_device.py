"""Failure classes as data: the device and its driver."""

from __future__ import annotations

from pytest_startup.engines.failures import FailureClass

DEVICE: tuple[FailureClass, ...] = (
    FailureClass(
        "unsupported-device",
        (
            "no kernel image is available",
            "cudaErrorNoKernelImageForDevice",
            "compiled with an unsupported toolchain",
            "Unsupported gpu architecture",
            "not compatible with the current PyTorch installation",
            r"Value '?sm_\w+'? is not defined for option",
            "out of resource: (?:shared memory|threads)",
            "compute capability .{0,60}(?:required|requires|at least|is not supported|but)",
            r"requires? (?:GPU with |a GPU with )?(?:compute capability|device capability|sm_?\d+)",
            "only supported on GPUs with compute capability",
            r"Minimum capability: \d+",
            "No supported CUDA architectures found",
            "invalid device function",
            r"(?:only )?support(?:ed|s)? (?:only )?(?:on )?(?:Hopper|Blackwell|SM ?\d+)",
        ),
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    FailureClass(
        "device-fault",
        (
            "illegal memory access",
            "device-side assert",
            "misaligned address",
            "unspecified launch failure",
            "an illegal instruction was encountered",
            "uncorrectable ECC",
            "CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)",
            "CUDNN_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
            "cudaError(?:IllegalAddress|LaunchFailure|Assert)",
            "hipError(?:LaunchFailure|IllegalAddress)",
            "Memory access fault by GPU",
            "CUDA error: (?:invalid argument|operation not permitted|an internal error|invalid configuration)",
            "NVRM: Xid",
            "GPU has fallen off the bus",
            "operation failed due to a previous error during capture",
            "operation not permitted when stream is capturing",
        ),
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ),
    FailureClass(
        "device-fault",
        (
            "terminated with exception: CUDA error",
            "Memory access fault by GPU",
            "NVRM: Xid",
            "Failed: Cuda error .{0,200}'(?!out of memory)",
            "CUDA error at .{0,120}illegal",
        ),
        (
            "[PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception: CUDA error: "
            "an illegal memory access was encountered"
        ),
        "[PG ID 2] Process group watchdog started",
        alone=True,
        anchors=(
            "terminated with exception: CUDA",
            "Memory access fault by GPU",
            "NVRM: Xid",
            "Failed: Cuda error",
            "CUDA error at",
        ),
    ),
    FailureClass(
        "device-unavailable",
        (
            "No CUDA GPUs are available",
            "[Ff]ound no NVIDIA driver",
            "CUDA driver version is insufficient",
            "forward compatibility was attempted on non supported HW",
            "system (?:has )?not yet (?:been )?initialized",
            "Failed to infer device type",
            "CUDA unknown error",
            "no CUDA-capable device",
            "Torch not compiled with CUDA enabled",
            "cudaErrorInsufficientDriver",
            r"CUDA-capable device\(s\) is/are busy or unavailable",
            "NVML(?:Error|_)",
            "initialization error.{0,40}cuda",
            "Cannot re-initialize CUDA in forked subprocess",
            "Can't communicate with driver",
        ),
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ),
    FailureClass(
        "bad-arguments",
        (
            "invalid device ordinal",
            "(?:local )?world[_ ]size .{0,80}(?:larger|greater|exceeds) .{0,60}(?:GPUs|devices)",
            "number of (?:required|requested) GPUs exceeds",
            "tensor_parallel_size.{0,60}cannot be larger than",
        ),
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "RuntimeError: No CUDA GPUs are available",
    ),
)
