"""SGLang rules: graphs, compilation, autotuning, and all rules in one table (0.4.0 to 0.5.23)."""

from __future__ import annotations

from pytest_startup.engines import sglang_backends, sglang_memory
from pytest_startup.engines.rules import Rule
from pytest_startup.engines.wording import GIGA, NUM

_CAPTURE_END = r"(?<!\w)Capture (?P<kind>[\w ]*?)\s*(?:cuda|CUDA|npu|cpu|xpu) graph end\."

GRAPHS = (
    Rule(
        "graphs.seconds",
        " graph end.",
        _CAPTURE_END + r" Time elapsed: " + NUM + r" s\b",
        "Capture cuda graph end. Time elapsed: 13.63 s. mem usage=2.99 GB. avail mem=9.19 GB.",
        "Capture cuda graph begin. This can take up to several minutes.",
        "number",
        "s",
        by="R",
        versions="to 0.5.13; piecewise and draft captures too",
    ),
    Rule(
        "graphs.seconds",
        " graph end.",
        _CAPTURE_END + r".*?\belapsed=" + NUM + r" s\b",
        "Capture target decode CUDA graph end. bs=[1, 2], elapsed=5.02 s, mem usage=0.71 GB, avail mem=9.19 GB.",
        "Capture target decode CUDA graph begin. backend=full, bs=[1, 2], avail mem=9.19 GB",
        "number",
        "s",
        by="R",
        versions="0.5.14 on; bs here since 0.5.22",
    ),
    Rule(
        "graphs.memory",
        " graph end.",
        _CAPTURE_END + r".*\bmem usage=" + NUM + GIGA,
        "Capture npu graph end. Time elapsed: 30.02 s. mem usage=9.14 GB. avail mem=9.16 GB.",
        "Capture cuda graph end. Time elapsed: 13.63 s",
        "number",
        "GB",
        by="R",
        versions="0.4.5 on; means GiB; avail before mem in 0.4.5",
    ),
    Rule(
        "graphs.captured",
        "Capturing batches",
        r"Capturing (?P<kind>batches) \([^)]*\):\s+\d+%\|[^|]*\| (?P<done>\d+)/(?P<total>\d+)(?!\.?\d)",
        "Capturing batches (bs=1 avail_mem=9.23 GB): 100%|██████████| 36/36 [00:13<00:00,  2.71it/s]",
        "Capturing batches (bs=256 avail_mem=11.99 GB):   0%|          | 0/36 [00:00<?, ?it/s]",
        "members",
        by="0",
        versions="all; batch sizes, not graphs",
        bar=True,
    ),
    Rule(
        "graphs.captured",
        ("Capturing num tokens", "Capturing prefill shape"),
        r"Capturing (?P<kind>num tokens|prefill shape) \([^)]*\):\s+\d+%\|[^|]*\| "
        r"(?P<done>\d+)/(?P<total>\d+)(?!\.?\d)",
        "Capturing num tokens (num_tokens=4 avail_mem=8.45 GB): 100%|██████████| 58/58 [00:07<00:00, 30.72it/s]",
        "Compiling num tokens (num_tokens=4): 100%|██████████| 58/58 [00:09<00:00,  6.19it/s]",
        "members",
        by="0",
        versions="num tokens 0.5.4 to 0.5.22, prefill shape 0.5.23",
        bar=True,
    ),
    Rule(
        "graphs.sizes",
        "Capture cuda graph ",
        r"Capture cuda graph (?P<kind>bs|num tokens) \[(?P<value>[\d, ]+)\]",
        "Capture cuda graph bs [1, 2, 4, 8]",
        "Capture cuda graph begin.",
        "list",
        by="0",
        versions="0.4.7 to 0.5.13",
    ),
    Rule(
        "graphs.sizes",
        "CUDA graph ",
        r"Capture (?P<role>target|draft)[\w ]*? CUDA graph (?:begin|end)\..*?"
        r"(?:\bbs|num_tokens)=\[(?P<value>[\d, ]+)\]",
        "Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2, 4], avail mem=9.19 GB",
        "Capture target decode CUDA graph end. elapsed=5.02 s",
        "list",
        by="R",
        versions="0.5.14 on; bs in the end line since 0.5.22",
    ),
    Rule(
        "graphs.downgraded",
        ("CUDA graph", "uda graph is disabled"),
        r"Disable (?:\w+ )?(?:piecewise|prefill) CUDA graph because .+|Cuda graph is disabled (?:because|for) .+|"
        r"Disabling (?:\w+ )?(?:prefill|piecewise) CUDA graph .+",
        "Disable piecewise CUDA graph because the model does not support it",
        "Capture piecewise CUDA graph begin. avail mem=9.19 GB",
        by="0, R or M",
        versions="0.5.4 on; decode graphs switched off by the user print nothing",
    ),
    Rule(
        "compile.range",
        "Compiling a graph for ",
        r"Compiling a graph for (?P<range>dynamic shape|shape \S+|general shape) takes " + NUM + r" s\b",
        "Compiling a graph for dynamic shape takes 0.38 s",
        "Compiling a graph",
        "number",
        "s",
        by="R",
        versions="0.5.4 on, piecewise backend; no line tells a cache hit",
    ),
)

AUTOTUNE = (
    Rule(
        "autotune.started",
        "Running FlashInfer autotune",
        r"Running FlashInfer autotune(?:\.\.\.| with cache: (?P<path>\S+)| \(cache reuse DISABLED)?",
        "Running FlashInfer autotune with cache: /c/sm100/0a/rank_tp0_pp0_dp0.json",
        "FlashInfer autotune completed.",
        by="R",
        versions="0.5.6 on; 'with cache' since 0.5.12, whether the file exists or not",
    ),
    Rule(
        "autotune.ended",
        "FlashInfer autotune completed",
        r"FlashInfer autotune completed",
        "FlashInfer autotune completed.",
        "Running FlashInfer autotune...",
        by="R",
        versions="0.5.6 on",
    ),
    Rule(
        "autotune.tuned",
        "[AutoTuner]: Tuning ",
        r"\[AutoTuner\]: Tuning (?P<kind>\S+?):\s+\d+%\|[^|]*\| (?P<done>\d+)/(?P<total>\d+)(?!\.?\d)",
        "[AutoTuner]: Tuning trtllm::fused_moe::gemm1: 100%|██████████| 10/10 [01:29<00:00,  8.92s/profile]",
        "[AutoTuner]: Tuning trtllm::fused_moe::gemm1:   0%|          | 0/10 [00:00<?, ?profile/s]",
        "members",
        by="each tuning rank, without prefix",
        versions="0.5.6 on; the only sign of a miss",
        bar=True,
    ),
    Rule(
        "autotune.discarded",
        "per-rank caches disagree",
        r"per-rank caches disagree, discarding them and tuning from scratch",
        "FlashInfer autotune: per-rank caches disagree, discarding them and tuning from scratch so all ranks agree",
        "FlashInfer autotune: extra EXTEND pass at 8192 tokens (x)",
        by="0",
        versions="0.5.19 on; under EP > 1 at every start after the first",
    ),
    Rule(
        "autotune.skipped",
        "extend autotune skipped",
        r"FlashInfer extend autotune skipped: .+",
        "FlashInfer extend autotune skipped: not enough free memory",
        "FlashInfer autotune completed.",
        by="0",
        versions="0.5.18 on, opt-in",
    ),
    Rule(
        "init.scheduler",
        "Engine startup timings (s): ",
        r"Engine startup timings \(s\): .*\bscheduler_e2e=" + NUM,
        "Engine startup timings (s): load_weight=3.10, kv_cache_allocation=0.20, scheduler_e2e=21.40, cuda_graph={}",
        "Engine startup timings are off",
        "number",
        "s",
        by="M",
        versions="0.5.17 on; maximum over the schedulers, weights included",
    ),
)

SGLANG_RULES: tuple[Rule, ...] = (
    *sglang_memory.IDENTITY,
    *sglang_memory.WEIGHTS,
    *sglang_memory.KV,
    *sglang_memory.TIERS,
    *sglang_backends.ATTENTION,
    *sglang_backends.KERNELS,
    *GRAPHS,
    *AUTOTUNE,
)
