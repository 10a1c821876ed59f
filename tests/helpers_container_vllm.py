"""The real engine of ``examples/cpu-vllm`` in a container: its installation mounted into the tests' small image."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_startup.profile.units import size

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / ".engine"
#: Minutes of a real engine beyond what every commit is given.
LONG = pytest.mark.skipif(
    os.environ.get("STARTUP_TEST_REAL") != "1", reason="takes many minutes: STARTUP_TEST_REAL=1, or tox run -e real"
)
#: Of a profile: what this engine can't show.
WAIVED = """\
waive:
  - {check: graphs, reason: "the CPU platform has no CUDA graphs"}
  - {check: autotune, reason: "FlashInfer's autotuner runs on CUDA only"}
  - {check: backend, reason: "this build never logs its default attention backend"}
"""


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


def heavy(folder: Path, gib: int) -> Path:
    """The demo's model with MLPs so wide that its checkpoint has ``gib`` GiB, all zeros: a file with a hole, written at
    once. Loading it takes the memory all the same."""
    source = ENGINE / "models" / "facts"
    config = json.loads((source / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    wide = (gib << 30) // (3 * layers * hidden * 2)
    narrow, config["intermediate_size"] = config["intermediate_size"], wide
    header: dict[str, Any] = {}
    end = 0
    for shard in sorted(source.glob("*.safetensors")):
        with shard.open("rb") as file:
            tensors = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        tensors.pop("__metadata__", None)
        for name, tensor in tensors.items():
            shape = [wide if ".mlp." in name and length == narrow else length for length in tensor["shape"]]
            begin, end = end, end + 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    made = folder / "heavy"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(config))
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, made)
    text = json.dumps(header).encode()
    with (made / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return made


def profile_text(
    image: str,
    url: str,
    *,
    cache: str | None,
    restarts: list[str],
    model: Path = ENGINE / "models" / "facts",
    memory: str = "",
) -> str:
    """A profile of the real engine. ``cache``: a volume for the compile cache, None: it stays in the container.
    ``memory``: its limit, swap included."""
    mounts = {**volumes(), str(model): "/model:ro", **({cache: "/cache"} if cache else {})}
    # Read as a whole: a mapped checkpoint is file cache, which the kernel takes back for ever instead of killing.
    more = ", --safetensors-load-strategy, eager" if memory else ""
    limit = f"memory: {memory}\n    engine_options: {{MemorySwap: {size(memory)}}}" if memory else "init: false"
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
  args: [--served-model-name, facts, --max-model-len, "1024", --kv-cache-memory-bytes, "268435456"{more}]
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
    {limit}
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
{WAIVED}"""
