#!/usr/bin/env python3
"""Let FlashInfer's own autotuner write tuning-record files, without a GPU: how the data of tests/data/caches was made.

usage: flashinfer_caches.py OUT [--ranks N] [--store v1|v2] [--shared] [--again] [--seed N]

Needs torch, and flashinfer-python (any version from 0.6.7) on PYTHONPATH; run it with that environment's Python. Real
are: choose_one, its profiles and buckets, the keys, save, load, merge and the log lines. Stubs are: the runner (with
the extras that the CUTLASS MoE runner of that version puts into its key), the clock (a hash instead of a measurement),
the GPU's name. Each rank runs in its own process, as in an engine.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import os
import subprocess
import sys

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 8192)
OPS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
TACTICS = 24
GPU = "NVIDIA H200"


def extras(version: tuple[int, ...], torch, ranks: int, rank: int) -> tuple:
    """What CUTLASS MoERunner.get_cache_key_extras of this version gives for BF16 and expert parallel (MoE TP is 1)."""
    dtype = torch.bfloat16
    flags = (False, False, False, False, False, False, False, 3, False, True)
    if (0, 6, 18) <= version < (0, 7, 2):
        return (dtype, dtype, dtype, 2, 1, 0, ranks, rank, 1, 0, *flags)
    if version >= (0, 7, 2):
        return (dtype, dtype, dtype, 2, 1, ranks, 1, *flags)
    return ()


def tune(out: str, ranks: int, rank: int, store: str, seed: int) -> None:
    import flashinfer.autotuner as tuner_module
    import torch

    tuner_file = sys.modules.get("flashinfer.autotuner.autotuner", tuner_module)
    stated = tuner_file._flashinfer_version
    version = tuple(int(p) for p in stated.split(".")[:3] if p.isdigit())
    torch.cuda.get_device_name = lambda *_: GPU
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_current_stream_capturing = lambda: False

    def clock(self, runner, inputs, tactic, *_, **__):
        text = f"{seed} {rank} {runner.op} {tactic} {tuple(inputs[0].shape)}"
        return 1.0 + int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32

    auto = tuner_module.AutoTuner
    auto._profile_single_kernel = clock
    auto._prepare_input_tensors = lambda self, profile, inputs: [
        torch.empty(shape, dtype=torch.bfloat16) for shape in profile.get_opt_shapes()
    ]
    if hasattr(auto, "_prepare_input_tensors_with_batches"):
        auto._prepare_input_tensors_with_batches = lambda self, tensors, *_: [tensors]

    class MoERunner(tuner_module.TunableRunner):
        def __init__(self, op):
            self.op = op

        def get_valid_tactics(self, inputs, profile):
            return list(range(TACTICS))

        def get_cache_key_extras(self, inputs):
            return extras(version, torch, ranks, rank)

        def forward(self, inputs, tactic=-1, do_preparation=False, **kwargs):
            return inputs[0]

        def __hash__(self):
            return hash(self.op)

    config = tuner_module.TuningConfig(
        dynamic_tensor_specs=(
            tuner_module.DynamicTensorSpec(
                input_idx=(0,),
                dim_idx=(0,),
                gen_tuning_buckets=BUCKETS,
                map_to_tuning_buckets=lambda x: min((b for b in BUCKETS if b >= x), default=BUCKETS[-1]),
            ),
        )
    )
    experts = 8 // ranks
    inputs = [
        torch.empty(s, dtype=torch.bfloat16) for s in ((8192, 64), (experts, 96, 64), (0,), (experts, 64, 48), (0,))
    ]
    if store == "v2":
        from flashinfer.autotune_cache import autotune_v2

        names = inspect.signature(autotune_v2).parameters
        context = autotune_v2(**{"cache_root" if "cache_root" in names else "root": out})
    else:
        context = tuner_module.autotune(True, cache=out)
    with context:
        for op in OPS:
            auto.get().choose_one(op, [MoERunner(op)], config, inputs)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("out")
    options.add_argument("--ranks", type=int, default=1)
    options.add_argument("--store", choices=("v1", "v2"), default="v1")
    options.add_argument("--shared", action="store_true", help="all ranks save into one file (else one file per rank)")
    options.add_argument("--again", action="store_true", help="keep what is there: a warm start")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--rank", type=int, default=None, help=argparse.SUPPRESS)
    a = options.parse_args()
    if a.rank is not None:
        return tune(a.out, a.ranks, a.rank, a.store, a.seed)
    os.makedirs(a.out, exist_ok=True)
    for rank in range(a.ranks):
        name = "autotune_configs.json" if a.shared or a.ranks == 1 else f"autotune_configs_dp0_rank{rank}.json"
        out = a.out if a.store == "v2" else os.path.join(a.out, name)
        if a.store == "v1" and not a.shared and not a.again and os.path.exists(out):
            os.unlink(out)
        argv = [sys.executable, __file__, out, "--rank", str(rank), "--ranks", str(a.ranks), "--store", a.store]
        subprocess.run([*argv, "--seed", str(a.seed)], check=True)
    return None


if __name__ == "__main__":
    main()
