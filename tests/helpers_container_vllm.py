"""The real engine of ``examples/cpu-vllm`` in a container: its installation mounted into the tests' small image."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / ".engine"


def need_vllm(model: str = "facts") -> None:
    """Build the engine if it is not there (minutes, 3 GB); where it can't be built, skip, or fail in CI."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "cpu-vllm" / "make_engine.py"), "--models", model],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = f"the real engine can't be built here: {done.stderr.strip()[-400:]}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def volumes() -> dict[str, str]:
    """Mounts of the engine: the C++ compiler (/usr), its Python, its virtual environment."""
    python = Path(os.path.realpath(ENGINE / "venv" / "bin" / "python"))
    venv = ENGINE / "venv"
    prefix = python.parents[1]
    mounts = {"/usr": "/usr:ro", str(venv): f"{venv}:ro"}
    return mounts if str(prefix) == "/usr" else {**mounts, str(prefix): f"{prefix}:ro"}


def profile_text(
    image: str,
    url: str,
    *,
    cache: str | None,
    restarts: list[str],
) -> str:
    """A profile of the real engine. ``cache``: a volume for the compile cache, None: it stays in the container."""
    model = ENGINE / "models" / "facts"
    mounts = {**volumes(), str(model): "/model:ro", **({cache: "/cache"} if cache else {})}
    rows = "\n".join(f"      {source}: {target}" for source, target in mounts.items())
    steps = ", ".join(restarts)
    return f"""\
schema: 1
name: container-vllm
engine:
  kind: vllm
  version: 0.31.0
  model: /model
  served_name: facts
  args: [--served-model-name, facts, --max-model-len, "1024", --kv-cache-memory-bytes, "268435456"]
  env:
    CPU_VLLM_COMPILE: "1"
    VLLM_CACHE_ROOT: /cache
    HF_HUB_OFFLINE: "1"
    VLLM_NO_USAGE_STATS: "1"
launch:
  container:
    image: {image}
    command: [{ENGINE}/venv/bin/vllm, serve]
    docker_host: {url}
    network: host
    shm_size: 1g
    volumes:
{rows}
  checkpoint: [{model}]
caches:
  compile-cache: {{container: /cache/torch_compile_cache, kind: compile}}
deadlines: {{ready: 20m, stop: 20s}}
restarts: [{steps}]
expect:
  kv: {{tokens: 262144}}
  completion: {{prompt: "The capital of France is", contains: Paris}}
waive:
  - {{check: graphs, reason: "the CPU platform has no CUDA graphs"}}
  - {{check: autotune, reason: "FlashInfer's autotuner runs on CUDA only"}}
  - {{check: backend, reason: "this build never logs its default attention backend"}}
"""
