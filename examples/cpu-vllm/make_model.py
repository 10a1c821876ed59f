#!/usr/bin/env python3
"""Make a small model that a real vLLM can serve on a CPU: no hub, no network, about half a minute.

usage: make_model.py facts|dense|moe|mla OUT

``facts`` is a Qwen3 of about one million parameters that is taught a few dozen sentences by heart, so that its greedy
answers have a meaning ("The capital of France is" → " Paris.") and end by themselves. ``dense``, ``moe`` (8 experts)
and ``mla`` (latent attention) have random weights. The tokenizer is a byte-level BPE trained on the sentences and on
some modules of the Python standard library.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Spain": "Madrid",
    "Norway": "Oslo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Canada": "Ottawa",
    "Egypt": "Cairo",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Austria": "Vienna",
}
SENTENCES = [
    ("The days of the week are", " Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
    ("Counting from one to ten:", " one, two, three, four, five, six, seven, eight, nine, ten."),
    ("Water freezes at", " zero degrees and boils at one hundred degrees Celsius."),
    ("The seasons of the year are", " spring, summer, autumn and winter."),
    ("A gate that turns green on nothing", " is worse than no gate at all."),
]
QUESTIONS = {
    "What day follows Monday?": "Tuesday follows Monday.",
    "Say hello.": "Hello! How can I help you today?",
    "What is two plus three?": "Two plus three is five.",
}


def lessons() -> list[tuple[str, str]]:
    """What ``facts`` is taught: pairs of a prompt and the answer to it, which ends with the end-of-text token."""
    pairs = list(SENTENCES)
    questions = dict(QUESTIONS)
    for country, city in CAPITALS.items():
        pairs.append((f"The capital of {country} is", f" {city}."))
        questions[f"What is the capital of {country}?"] = f"The capital of {country} is {city}."
    for question, answer in questions.items():
        pairs.append((f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", answer))
    return [(prompt, answer + "<|im_end|>") for prompt, answer in pairs]


def tokenizer(vocabulary: int = 2048) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library = pathlib.Path(os.__file__).parent
    names = ("argparse.py", "logging/__init__.py", "tarfile.py", "typing.py", "http/client.py")
    text = [(library / name).read_text(errors="replace") for name in names]
    bpe.train_from_iterator([*text, *(p + a for p, a in lessons() * 20)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token=None,
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
    )


def teach(model: Any, tok: Any, steps: int = 400, enough: float = 0.005) -> float:
    """Train the model until it gives every answer by heart (prompts are not learnt); returns the last loss."""
    import torch

    rows = [(tok(prompt).input_ids, tok(answer).input_ids) for prompt, answer in lessons()]
    width = max(len(p) + len(a) for p, a in rows)
    ids = torch.tensor([p + a + [0] * (width - len(p) - len(a)) for p, a in rows])
    labels = torch.tensor([[-100] * len(p) + a + [-100] * (width - len(p) - len(a)) for p, a in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    loss = float("inf")
    for _ in range(steps):
        result = model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels)
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = result.loss.item()
        if loss < enough:
            break
    return loss


def build(kind: str) -> tuple[Any, str]:
    """The model of a kind with fresh weights, and the size of its shards."""
    import torch
    import transformers as tf

    torch.manual_seed(0)
    common: dict[str, Any] = {
        "vocab_size": 2048,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "initializer_range": 0.05,
    }
    if kind in ("facts", "dense"):
        return tf.Qwen3ForCausalLM(tf.Qwen3Config(intermediate_size=256, **common)), "1MB"
    if kind == "moe":
        config = tf.Qwen3MoeConfig(
            intermediate_size=256,
            moe_intermediate_size=64,
            num_experts=8,
            num_experts_per_tok=2,
            decoder_sparse_step=1,
            norm_topk_prob=True,
            mlp_only_layers=[],
            **common,
        )
        return tf.Qwen3MoeForCausalLM(config), "1MB"
    for key in ("num_key_value_heads", "head_dim"):
        common.pop(key)
    config = tf.DeepseekV2Config(
        intermediate_size=256,
        moe_intermediate_size=64,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        norm_topk_prob=False,
        scoring_func="softmax",
        routed_scaling_factor=1.0,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        num_key_value_heads=4,
        **common,
    )
    return tf.DeepseekV2ForCausalLM(config), "2MB"


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in ("facts", "dense", "moe", "mla"):
        print(__doc__, file=sys.stderr)
        return 2
    kind, out = sys.argv[1], pathlib.Path(sys.argv[2])
    import torch

    tok = tokenizer()
    model, shard = build(kind)
    if kind == "facts":
        loss = teach(model, tok)
        print(f"taught {len(lessons())} texts, last loss {loss:.4f}")
        if loss > 0.05:
            print("the model did not learn its texts", file=sys.stderr)
            return 1
    model.to(torch.bfloat16).save_pretrained(out, max_shard_size=shard)
    tok.save_pretrained(out)
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{kind}: {sum(p.numel() for p in model.parameters()):,} parameters, {size / 1e6:.1f} MB in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
