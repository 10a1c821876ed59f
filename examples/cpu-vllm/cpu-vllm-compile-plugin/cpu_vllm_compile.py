def register():
    """Active only when asked for, so that one venv serves both set-ups."""
    import os

    if os.environ.get("CPU_VLLM_COMPILE") == "1":
        return "cpu_vllm_compile_platform.CpuVllmCompilePlatform"
    return None
