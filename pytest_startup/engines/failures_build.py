"""Failure classes as data: compiled artifacts, backends, builds of the engine and its kernels."""

from __future__ import annotations

from pytest_startup.engines.failures import FailureClass

_AOT = ("_try_load_aot_compiled_fn", "load_aot_compiled_function", "finalize_loading", "deserialize_compile_artifacts")

ARTIFACTS: tuple[FailureClass, ...] = (
    FailureClass(
        "corrupted-cache",
        (
            "Bytes object is corrupted, checksum does not match",
            "torch_compile_cache/",
            "torch_aot_compile/",
            "artifact_compile_range",
            "Compile cache file corrupted",
            "triton/cache/",
            r"\.triton/cache",
            r"torchinductor_\w+/",
            r"inductor_cache/\S+.{0,40}(?:[Nn]o such file|invalid|truncated)",
            "autotune_configs",
            r"rank_tp\d+_pp\d+_dp\d+\.json",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: "
            "'/c/torch_compile_cache/87/rank_0_0/backbone/artifact_compile_r'"
        ),
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/m/config.json'",
    ),
    FailureClass(
        "corrupted-cache",
        (
            "JSONDecodeError",
            "UnpicklingError",
            "EOFError",
            "UnicodeDecodeError",
            "BadZipFile",
            r"zlib\.error",
        ),
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 15 (char 14)",
        "ValueError: no value",
        functions=("load_configs", "autotune", "flashinfer_autotune", "_flashinfer_autotune", "load_from_file", *_AOT),
    ),
    FailureClass(
        "corrupted-cache",
        (r"^\w",),
        "AttributeError: 'X' object has no attribute 'finalize_loading'",
        "",
        functions=_AOT,
    ),
)

BACKENDS: tuple[FailureClass, ...] = (
    FailureClass(
        "unsupported-backend",
        (
            r"No valid (?:\w+ )?attention backend found",
            "Selected backend .{0,80}is not valid for",
            "supports? the deployment configuration",
            "[Aa]ctivation .{0,60}(?:not supported|unsupported)",
            "[Uu]nsupported (?:FusedMoe |MoE )?activation",
            "[Oo]nly .{0,20}(?:silu|gelu|SiLU).{0,30}(?:activation|supported)",
            (
                "[Uu]nsupported (?:attention |MoE |quantization )?(?:backend|head[_ ]size|dtype|quantization|kv "
                "cache dtype|layout)"
            ),
            "(?:is|are) not (?:yet )?supported (?:with|by|for|on|in|when|yet)",
            "(?:does|do) not support",
            "not supported by",
            "(?:is|are) (?:currently )?only supported (?:on|for|with)",
            "not implemented for",
            "NotImplementedError",
            r"No (?:\w+ ){0,3}kernel (?:exists|found|supports)",
            "Failed to find a kernel",
            "[Ii]nvalid (?:attention|MoE) backend",
            "[Hh]ead size .{0,40}not supported",
            "is not supported$",
            r"is not supported\.",
            r"not support \w+ (?:backend|quant)",
            "Failed to promote local KV cache specs",
            "no (?:valid|suitable|supported) (?:MoE )?(?:backend|kernel)",
        ),
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=80)",
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
    ),
)

BUILDS: tuple[FailureClass, ...] = (
    FailureClass(
        "kernel-build",
        (
            "Ninja build failed",
            "No such file or directory: '[^']*(?:ninja|nvcc|gcc|ptxas)'",
            "ninja: (?:build stopped|error)",
            r"\['ninja'",
            r"'[^']*/(?:nvcc|gcc|g\+\+|cc|clang|ptxas|cicc)'",
            "nvcc fatal",
            "CompilationError",
            "PassManager::run failed",
            "Failed to find C compiler",
            "Could not find nvcc",
            "CUDA_HOME environment variable is not set",
            "LoweringException",
            "InductorError",
            "BackendCompilerFailed",
            r"torch\._dynamo\.exc",
            "TorchRuntimeError",
            "NVRTC",
            "[Ee]rror building extension",
            r"Python\.h: No such file",
            "PTXASError",
            "ptxas fatal",
            "CppCompileError",
            r"triton\.compiler\.errors",
            r"cannot find -l\w+",
            "DSLRuntimeError",
            "DSLCudaRuntimeError",
            "TileLang .{0,40}compil",
            "LLVM ERROR",
        ),
        "RuntimeError: Ninja build failed. Ninja output:",
        "RuntimeError: Failed to load",
    ),
    FailureClass(
        "missing-module",
        (
            r"^(?:ModuleNotFoundError|ImportError)\b",
            "undefined symbol",
            "cannot open shared object file",
            r"GLIBC(?:XX)?_[\d.]+' not found",
            "is not subscriptable$",
            "No module named",
            "version mismatch",
            "VersionConflict",
            "PackageNotFoundError",
            r"has no attribute '\w+'.{0,40}(?:circular|partially)",
            r"numpy\.dtype size changed",
            "[Pp]lease install",
            "is not installed",
        ),
        "ModuleNotFoundError: No module named 'flash_attn'",
        "ValueError: no module",
    ),
)
