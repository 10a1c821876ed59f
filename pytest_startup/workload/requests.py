"""The requests that we send: deterministic bodies for the OpenAI-style endpoints, and the prompts of the workload.

Bodies are those that vLLM (0.8 on) and SGLang (0.4 on) both take. The workload's prompts depend only on the seed and
their place in the workload: the same on the reference start and on every restart, and never twice within one start, so
that prefix caching cannot make a later batch faster than an earlier one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pytest_startup.record import JSON

#: Token ids that every tokenizer of 2,000 entries or more has, above the range where special tokens are kept.
TOKEN_IDS = range(1000, 2000)

_COMMON = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea body information back parent face
others level office door health person art war history party result change morning reason research
"""
#: Short, common words: about one token each in the vocabularies of today's models.
WORDS = tuple(_COMMON.split())


def completion_body(
    model: str,
    prompt: str | Sequence[int],
    max_tokens: int,
    *,
    seed: int = 0,
    logprobs: bool = False,
    stream: bool = False,
    ignore_eos: bool = False,
) -> dict[str, JSON]:
    """A greedy request for ``/v1/completions``. ``ignore_eos``: exactly ``max_tokens`` tokens are generated."""
    body: dict[str, JSON] = {"model": model, "prompt": prompt if isinstance(prompt, str) else list(prompt)}
    body.update(_sampling(max_tokens, seed, stream, ignore_eos))
    if logprobs:
        body["logprobs"] = 1
    return body


def chat_body(
    model: str,
    prompt: str,
    max_tokens: int,
    *,
    seed: int = 0,
    logprobs: bool = False,
    stream: bool = False,
    ignore_eos: bool = False,
) -> dict[str, JSON]:
    """A greedy request of one user message for ``/v1/chat/completions``."""
    body: dict[str, JSON] = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    body.update(_sampling(max_tokens, seed, stream, ignore_eos))
    if logprobs:
        body["logprobs"] = True
    return body


def _sampling(max_tokens: int, seed: int, stream: bool, ignore_eos: bool) -> dict[str, JSON]:
    body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": 0, "seed": seed}
    if stream:
        body.update(stream=True, stream_options={"include_usage": True})
    if ignore_eos:
        body["ignore_eos"] = True
    return body


def token_prompt(tokens: int, *place: object) -> list[int]:
    """A prompt of exactly ``tokens`` token ids; another one for each ``place`` (seed, concurrency, repeat, index …)."""
    rng = random.Random("/".join(map(str, place)))  # noqa: S311 - reproducible prompts, nothing secret
    return [rng.choice(TOKEN_IDS) for _ in range(tokens)]


def word_prompt(tokens: int, *place: object) -> str:
    """A prompt of ``tokens`` common words (about as many tokens); another one for each ``place``."""
    rng = random.Random("/".join(map(str, place)))  # noqa: S311 - reproducible prompts, nothing secret
    return " ".join(rng.choice(WORDS) for _ in range(tokens))
