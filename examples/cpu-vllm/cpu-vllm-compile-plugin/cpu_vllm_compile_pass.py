"""The post-grad passes of vLLM without the one that names operators of CUDA builds only (vLLM skips it on XPU too)."""

from vllm.compilation.passes.pass_manager import PostGradPassManager
from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass


class NoFixFunctionalization(FixFunctionalizationPass):
    def __call__(self, _graph):
        return


class CpuPostGradPassManager(PostGradPassManager):
    def configure(self, config):
        super().configure(config)
        self.fix_functionalization = NoFixFunctionalization(config)
