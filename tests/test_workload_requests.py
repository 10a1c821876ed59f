"""The request set: the same every time, another prompt for every place, of the length asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_startup.workload.requests import TOKEN_IDS, WORDS, chat_body, completion_body, token_prompt, word_prompt


def test_prompts_are_the_same_in_every_process() -> None:
    code = (
        "from pytest_startup.workload.requests import *; print(token_prompt(4, 0, 8, 1, 2), word_prompt(3, 0, 8, 1, 2))"
    )
    printed = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert printed == {f"{token_prompt(4, 0, 8, 1, 2)} {word_prompt(3, 0, 8, 1, 2)}\n"}


def test_every_place_has_its_own_prompt_from_the_first_tokens_on() -> None:
    places = [(seed, c, repeat, i) for seed in (0, 1) for c in (1, 8) for repeat in range(-1, 5) for i in range(8)]
    assert len({tuple(token_prompt(64, *p)[:8]) for p in places}) == len(places)
    assert len({word_prompt(64, *p)[:60] for p in places}) == len(places)


@pytest.mark.parametrize("tokens", [1, 64, 1000])
def test_lengths(tokens: int) -> None:
    ids = token_prompt(tokens, 0)
    assert len(ids) == tokens
    assert set(ids) <= set(TOKEN_IDS)
    assert len(word_prompt(tokens, 0).split()) == tokens


def test_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS) > 90


def test_bodies() -> None:
    assert completion_body("m", [1, 2], 5, seed=7, ignore_eos=True) == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 5,
        "temperature": 0,
        "seed": 7,
        "ignore_eos": True,
    }
    assert completion_body("m", "x", 5, logprobs=True)["logprobs"] == 1
    body = chat_body("m", "x", 5, logprobs=True, stream=True)
    assert body["messages"] == [{"role": "user", "content": "x"}]
    assert body["logprobs"] is True
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert "ignore_eos" not in body
