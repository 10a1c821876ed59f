"""vLLM's CPU platform turns mode=VLLM_COMPILE into DYNAMO_TRACE_ONCE; its AOT artifact then
cannot be loaded back (0.31.0). Keeping VLLM_COMPILE makes the real cache code run on CPU."""

from vllm.platforms.cpu import CpuPlatform


class CpuVllmCompilePlatform(CpuPlatform):
    @classmethod
    def check_and_update_config(cls, vllm_config):
        from vllm.config import CompilationMode

        cc = vllm_config.compilation_config
        mode, backend, wrap = cc.mode, cc.backend, cc.ir_enable_torch_wrap
        super().check_and_update_config(vllm_config)
        if mode == CompilationMode.VLLM_COMPILE and cc.mode == CompilationMode.DYNAMO_TRACE_ONCE:
            cc.mode, cc.backend, cc.ir_enable_torch_wrap = mode, backend or "inductor", wrap
            if cc.compile_sizes is None:  # set only by the CUDA graph set-up, which CPU skips
                cc.compile_sizes = []

    @classmethod
    def get_pass_manager_cls(cls):
        return "cpu_vllm_compile_pass.CpuPostGradPassManager"
