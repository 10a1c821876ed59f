"""The real engine in a container: cold, same and fresh container, with and without a cache volume; out of memory."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from helpers_container_vllm import ENGINE, need_vllm, profile_text
from helpers_docker import gate, gate_env, need_engine

#: A model of two billion parameters: 3.6 GB of zeros, as a file with holes. So much more than the limit, that the
#: kernel does not try for minutes to make room.
LAYERS = 40
BIG = {
    "hidden_size": 2048,
    "num_hidden_layers": LAYERS,
    "layer_types": ["full_attention"] * LAYERS,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
#: More than the engine needs before it loads weights, less than it needs with them.
LIMIT = 2 << 30


@pytest.fixture(scope="session")
def built():
    """The real engine, built where the network is: not inside the container engine's."""
    need_engine()
    need_vllm()


@pytest.fixture
def site(built, engine, tmp_path):  # noqa: ARG001 - built comes first
    folder = tmp_path / "site"
    folder.mkdir()
    yield folder
    assert engine.labelled() == []


def run(site: Path, text: str) -> tuple[int, dict[str, str], str]:
    """Exit code, outcome by item (``restart-1::artifacts``), and what was printed."""
    (site / "profile.yaml").write_text(text)
    argv = gate(site, f"--junitxml={site}/junit.xml")
    done = subprocess.run(argv, cwd=site, env=gate_env(), capture_output=True, text=True, check=False)
    assert (site / "junit.xml").exists(), done.stdout + done.stderr
    outcomes = {}
    for case in ElementTree.parse(site / "junit.xml").getroot().iter("testcase"):  # noqa: S314 - written by this run
        bad = case.find("failure") is not None or case.find("error") is not None
        outcomes["::".join(case.get("name", "").split("::")[-2:])] = "red" if bad else "green"
    return done.returncode, outcomes, done.stdout


def record(site: Path, start: str) -> dict:
    (path,) = site.glob(f".startup/*/*/{start}/record.json")
    return json.loads(path.read_text())


def values(start: dict, name: str) -> list:
    return [fact["value"] for fact in start["facts"] if fact["name"] == name]


def test_restarts_with_a_cache_volume(engine, site):
    steps = ["{kind: same-container}", "{kind: fresh-container, drop_page_cache: true}"]
    code, outcomes, told = run(site, profile_text(engine.image, engine.url, cache="vllm-cache", restarts=steps))
    assert (code, [name for name, what in outcomes.items() if what == "red"]) == (0, []), told
    starts = [record(site, name) for name in ("reference", "restart-1", "restart-2")]
    ids = [values(start, "container.id")[0] for start in starts]
    assert ids[0] == ids[1] != ids[2]
    assert len({values(start, "container.started_at")[0] for start in starts}) == 3
    assert {values(start, "container.image")[0] for start in starts} == {engine.image}
    assert [bool(values(start, "compile.cache_loaded")) for start in starts] == [False, True, True]
    assert all(start["caches_after"][0]["files"] for start in starts)


def test_a_fresh_container_without_a_cache_volume_is_found_out(engine, site):
    text = profile_text(engine.image, engine.url, cache=None, restarts=["{kind: fresh-container}"])
    code, outcomes, told = run(site, text)
    assert code == 1, told
    assert outcomes["reference::artifacts"] == "green"
    assert outcomes["restart-1::artifacts"] == "red"
    assert [name for name, what in outcomes.items() if what == "red"] == ["restart-1::artifacts"], told
    assert values(record(site, "restart-1"), "compile.cache_written")


def big_model(folder: Path) -> None:
    """The small model's tokenizer with a large checkpoint of zeros."""
    shutil.copytree(ENGINE / "models" / "facts", folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = {**json.loads((folder / "config.json").read_text()), **BIG}
    (folder / "config.json").write_text(json.dumps(config))
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    keys, words = config["num_key_value_heads"] * head, [config["vocab_size"], width]
    shapes = {"model.embed_tokens.weight": words, "model.norm.weight": [width], "lm_head.weight": words}
    for layer in range(LAYERS):
        for name, shape in {
            "input_layernorm": [width],
            "post_attention_layernorm": [width],
            "self_attn.q_norm": [head],
            "self_attn.k_norm": [head],
            "self_attn.q_proj": [width, width],
            "self_attn.k_proj": [keys, width],
            "self_attn.v_proj": [keys, width],
            "self_attn.o_proj": [width, width],
            "mlp.gate_proj": [inner, width],
            "mlp.up_proj": [inner, width],
            "mlp.down_proj": [width, inner],
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def test_a_memory_limit_that_is_hit_while_weights_are_loaded(engine, site):
    big_model(site / "big")
    text = profile_text(engine.image, engine.url, cache=None, restarts=[])
    text = text.replace(f"{ENGINE}/models: /models:ro", f"{site}/big: /models/facts:ro")
    limits = f"memory: {LIMIT}\n    engine_options: {{MemorySwap: {LIMIT}}}"
    text = text.replace("shm_size: 1g", f"shm_size: 1g\n    {limits}")
    code, _, told = run(site, text)
    assert code == 1, told
    failure = record(site, "reference")["failure"]
    assert failure["kind"] == "out-of-host-memory", failure
    assert failure["phase"] == "weights", failure
    assert "hit its memory limit: OOMKilled" in failure["summary"]
    assert "hit its memory limit: OOMKilled" in told
