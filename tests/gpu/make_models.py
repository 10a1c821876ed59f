#!/usr/bin/env python3
"""Make small random-weight models that a real vLLM serves on a GPU: no hub, no network, seconds.

usage: make_models.py OUT [dense] [moe] [wide]

Needs torch, safetensors, tokenizers and transformers: the engine's Python has them.

``dense`` is a Qwen3 of 0.4 billion parameters, ``moe`` a Qwen3-MoE of 0.7 billion with 32 experts, ``wide`` a Qwen3 of
9.4 billion (19 GB), whose steps take the GPU longer than the CPU; weights are seeded, so that every machine gets the
same. The tokenizer is a byte-level BPE of ASCII only, trained on the standard library,
and special tokens have no weight in the last layer: what random weights say is nonsense, yet never broken characters,
control tokens or an early end.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
VOCABULARY = 8192
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KV_HEADS, HEAD = 8, 128
EXPERTS, EXPERT_SIZE = 32, 768


class Shape(NamedTuple):
    """The MLP of a dense layer is three times as wide as ``hidden``."""

    layers: int
    hidden: int
    heads: int


SHAPES = {"dense": Shape(28, 1024, 16), "moe": Shape(8, 1024, 16), "wide": Shape(48, 4096, 32)}


def tokenizer(out: str) -> None:
    """Write a tokenizer whose tokens are ASCII text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    files = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py")))[:150]
    texts = [Path(name).read_text(encoding="utf-8").encode("ascii", "ignore").decode() for name in files]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    # "Ġ" and "Ċ" stand for blank and line end in a byte-level alphabet
    alphabet = [c for c in pre_tokenizers.ByteLevel.alphabet() if c.isascii()] + ["Ġ", "Ċ"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=SPECIAL[2], pad_token=SPECIAL[0], model_max_length=40960
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(out)
    if len(fast) != VOCABULARY:
        sys.exit(
            f"the tokenizer has {len(fast)} tokens, {VOCABULARY} are needed: is the standard library's source there?"
        )


def config(name: str) -> dict[str, Any]:
    """The model's config.json."""
    shape = SHAPES[name]
    out: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "intermediate_size": 3 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rope_theta": 1000000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "use_cache": True,
    }
    if name == "moe":
        out |= {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_experts": EXPERTS,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": EXPERT_SIZE,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
        }
    return out


def weights(name: str) -> dict[str, Any]:
    """All tensors, bfloat16."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(1234)
    shape = SHAPES[name]
    out: dict[str, Any] = {}

    def random(key: str, *size: int) -> None:
        values = torch.randn(*size, device=device, generator=generator, dtype=torch.float32)
        out[key] = (values * 0.05).to(torch.bfloat16).cpu()

    def ones(key: str, size: int) -> None:
        out[key] = torch.ones(size, dtype=torch.bfloat16)

    random("model.embed_tokens.weight", VOCABULARY, shape.hidden)
    random("lm_head.weight", VOCABULARY, shape.hidden)
    out["lm_head.weight"][: len(SPECIAL)] = 0
    ones("model.norm.weight", shape.hidden)
    for number in range(shape.layers):
        layer = f"model.layers.{number}."
        _attention(layer, shape, random, ones)
        if name == "moe":
            random(f"{layer}mlp.gate.weight", EXPERTS, shape.hidden)
            for expert in range(EXPERTS):
                _mlp(f"{layer}mlp.experts.{expert}.", shape.hidden, EXPERT_SIZE, random)
        else:
            _mlp(f"{layer}mlp.", shape.hidden, 3 * shape.hidden, random)
    return out


def _attention(layer: str, shape: Shape, random: Callable[..., None], ones: Callable[[str, int], None]) -> None:
    wide, query, kv = shape.hidden, shape.heads * HEAD, KV_HEADS * HEAD
    for key, rows, columns in (("q", query, wide), ("k", kv, wide), ("v", kv, wide), ("o", wide, query)):
        random(f"{layer}self_attn.{key}_proj.weight", rows, columns)
    for key in ("q_norm", "k_norm"):
        ones(f"{layer}self_attn.{key}.weight", HEAD)
    for key in ("input_layernorm", "post_attention_layernorm"):
        ones(f"{layer}{key}.weight", wide)


def _mlp(place: str, hidden: int, size: int, random: Callable[..., None]) -> None:
    for key, rows, columns in (("gate", size, hidden), ("up", size, hidden), ("down", hidden, size)):
        random(f"{place}{key}_proj.weight", rows, columns)


def main() -> None:
    from safetensors.torch import save_file

    out, names = sys.argv[1], sys.argv[2:] or list(SHAPES)
    for name in names:
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        tokenizer(folder)
        tensors = weights(name)
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        generation = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "do_sample": False}
        for file, data in (("generation_config.json", generation), ("config.json", config(name))):
            with open(os.path.join(folder, file), "w", encoding="utf-8") as handle:
                json.dump(data, handle, indent=1)
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        print(f"{name}: {len(tensors)} tensors, {size / 1e6:.0f} MB in {folder}", flush=True)


if __name__ == "__main__":
    main()
