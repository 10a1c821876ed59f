"""Greedy prompts, answered one at a time so that batching can't change them, with log-probabilities where offered."""

from __future__ import annotations

from pytest_startup.profile.expect import ExpectQuality
from pytest_startup.record import Completion
from pytest_startup.workload.completions import Target, ask


def answers(target: Target, expect: ExpectQuality) -> tuple[Completion, ...]:
    """The answer to each prompt, in order. Ends early, with the failed answer last, when the engine stops answering.

    A server that refuses log-probabilities (4xx) is asked without them from then on.
    """
    found: list[Completion] = []
    logprobs = True
    for prompt in expect.prompts:
        answer = ask(target, prompt, "quality", logprobs=logprobs)
        if logprobs and 400 <= answer.status < 500:
            plain = ask(target, prompt, "quality")
            logprobs, answer = plain.status != 200, plain
        found.append(answer)
        if answer.status == 0:
            break
    return tuple(found)
