"""What makes an answer insane whatever was asked: floods, loops, broken characters, leaked control tokens."""

from __future__ import annotations

from pytest_startup.profile.model import Profile
from pytest_startup.record import Completion
from pytest_startup.workload.judge import blemishes

#: What ``expect.quality.loops: allow`` tolerates (models with random weights, made for tests, loop).
LOOPS = ("loop", "flood")


def faults(answer: Completion, profile: Profile) -> list[str]:
    """What is wrong with an answer in itself, one phrase each; empty: nothing. An empty answer is judged elsewhere."""
    body = answer.reasoning + answer.text
    if not body.strip():
        return []
    allowed = LOOPS if profile.expect.quality and profile.expect.quality.loops == "allow" else ()
    found = blemishes(body, prompt=answer.prompt, cut=answer.finish_reason == "length")
    return [f"{b.kind}: {b.reason}" for b in found if b.kind not in allowed]
