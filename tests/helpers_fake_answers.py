"""Answers of the stand-in engine: deterministic text, whole or streamed, and the many ways in which it can be wrong.

A completion ``mode``:

========== ==========================================================================================
good       text of the asked length, right usage, ``finish_reason`` "length"
empty      200, empty text, zero completion tokens
no-choices 200, an empty list of choices
short      fewer tokens than asked, ``finish_reason`` "length", and usage says so
usage      good text, wrong usage counts
no-usage   good text without usage
no-finish  good text, ``finish_reason`` null
garbage    text of replacement characters
flood      one character over and over
loop       one phrase over and over
leak       good text with control tokens in it (``<|im_end|>``)
model      good text under another model's name
truncated  the body stops in the middle, the connection is closed
not-json   200 with a line of text
html       200 with the page of a proxy
error      HTTP 500 with vLLM's error body
never      accepted, never answered
crossed    the answer to another prompt that was asked before
drift      other text than ``good`` (as from another model)
========== ==========================================================================================
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

_WORDS = """
a the of and in to city river stone light early water north field old green house quiet road long winter market small
bridge paper glass morning blue open hill garden window summer bread table south letter
"""
WORDS = _WORDS.split()

HTML = "<html><head><title>proxy</title></head><body>Service temporarily served by proxy</body></html>"


def text_tokens(prompt: str, count: int, seed: str = "") -> list[str]:
    """``count`` tokens that depend on the prompt alone; a question for the capital of France is answered."""
    out = [" Paris", "."] if "capital of France" in prompt and not seed else []
    block = 0
    while len(out) < count:
        digest = hashlib.sha256(f"{seed}|{prompt}|{block}".encode()).digest()
        out += [f" {WORDS[b % len(WORDS)]}" for b in digest]
        block += 1
    return out[:count]


def prompt_text(body: dict[str, Any]) -> str:
    """The prompt of either endpoint as text; lists of token ids too."""
    if "messages" in body:
        return "\n".join(str(m.get("content", "")) for m in body["messages"])
    prompt = body.get("prompt", "")
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def prompt_tokens(body: dict[str, Any]) -> int:
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    return max(1, len(prompt_text(body).split())) + (4 if "messages" in body else 0)


def tokens_of(body: dict[str, Any], mode: str) -> list[str]:
    """The output tokens in this mode."""
    count = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
    prompt = prompt_text(body)
    if mode in ("empty", "no-choices"):
        return []
    if mode == "short":
        return text_tokens(prompt, max(1, count // 2))
    if mode == "garbage":
        return ["\ufffd"] * count
    if mode == "flood":
        return ["!"] * count
    if mode == "loop":
        return [" again and again"] * count
    if mode == "leak":
        tokens = text_tokens(prompt, count)
        return [*tokens[: count // 2], "<|im_end|>", "<|im_start|>", *tokens[count // 2 :]][:count]
    return text_tokens(prompt, count, "drift" if mode == "drift" else "")


def usage_of(body: dict[str, Any], tokens: list[str], mode: str) -> dict[str, int] | None:
    if mode == "no-usage":
        return None
    inputs, outputs = prompt_tokens(body), len(tokens)
    if mode == "usage":
        outputs += 7
    return {"prompt_tokens": inputs, "completion_tokens": outputs, "total_tokens": inputs + outputs}


def _logprobs(tokens: list[str], chat: bool) -> dict[str, Any]:
    values = [round(-0.01 - int.from_bytes(hashlib.sha256(t.encode()).digest()[:2], "big") / 65536, 6) for t in tokens]
    if chat:
        return {
            "content": [
                {"token": t, "logprob": v, "bytes": list(t.encode()), "top_logprobs": []}
                for t, v in zip(tokens, values, strict=True)
            ]
        }
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at += len(token)
    tops = [{t: v} for t, v in zip(tokens, values, strict=True)]
    return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}


def _choice(tokens: list[str], chat: bool, finish: str | None, wanted: bool, streamed: bool) -> dict[str, Any]:
    text = "".join(tokens)
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "stop_reason": None}
    choice["logprobs"] = _logprobs(tokens, chat) if wanted else None
    if not chat:
        choice["text"] = text
    elif streamed:
        choice["delta"] = {"content": text}
    else:
        choice["message"] = {"role": "assistant", "content": text, "reasoning": None}
    return choice


def _frame(body: dict[str, Any], model: str, fingerprint: str, chat: bool, streamed: bool) -> dict[str, Any]:
    number = hashlib.sha256(prompt_text(body).encode()).hexdigest()[:16]
    kind = "chat.completion" if chat else "text_completion"
    if chat and streamed:
        kind = "chat.completion.chunk"
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{number}",
        "object": kind,
        "created": 0,
        "model": model,
        "system_fingerprint": fingerprint,
    }


def whole(body: dict[str, Any], model: str, mode: str, fingerprint: str = "vllm-0.31.0-fake") -> bytes:
    """The body of a 200 answer."""
    if mode == "not-json":
        return b"upstream connect error"
    if mode == "html":
        return HTML.encode()
    chat = "messages" in body
    tokens = tokens_of(body, mode)
    finish = None if mode == "no-finish" else "length"
    out = _frame(body, "another-model" if mode == "model" else model, fingerprint, chat, False)
    wanted = bool(body.get("logprobs")) or body.get("logprobs") == 0
    out["choices"] = [] if mode == "no-choices" else [_choice(tokens, chat, finish, wanted, False)]
    out["usage"] = usage_of(body, tokens, mode)
    return json.dumps(out).encode()


def streamed(body: dict[str, Any], model: str, mode: str, fingerprint: str = "vllm-0.31.0-fake") -> Iterator[bytes]:
    """Server-sent events, one token each, then usage if it was asked for, then ``[DONE]``."""
    chat = "messages" in body
    tokens = tokens_of(body, mode)
    frame = _frame(body, "another-model" if mode == "model" else model, fingerprint, chat, True)
    wanted = bool(body.get("logprobs"))
    for number, token in enumerate(tokens, 1):
        finish = "length" if number == len(tokens) and mode != "no-finish" else None
        yield _event({**frame, "choices": [_choice([token], chat, finish, wanted, True)]})
        if mode == "truncated" and number >= len(tokens) // 2:
            return
    if not tokens and mode != "no-choices":
        yield _event({**frame, "choices": [_choice([], chat, "stop", False, True)]})
    usage = usage_of(body, tokens, mode)
    if usage is not None and (body.get("stream_options") or {}).get("include_usage"):
        yield _event({**frame, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
