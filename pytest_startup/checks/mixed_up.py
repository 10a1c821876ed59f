"""Answers of requests that were in flight at once, each to the prompt that was asked and not to another one."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_startup.checks import common
from pytest_startup.profile.model import Profile
from pytest_startup.record import Completion

#: Characters, where its own answer is another one, by which an answer tells to which prompt it belongs.
TELLING = 16


def judge(judging: common.Judging, profile: Profile, together: list[Completion], answers: Sequence[Completion]) -> None:
    """No answer that was asked for with others is the one that another prompt gets alone.

    Others in its batch may change a token, so that it need not be what its own prompt gets alone. Models that may loop
    say the same to whatever they are asked.
    """
    if profile.expect.quality is not None and profile.expect.quality.loops == "allow":
        return
    alone: dict[str, list[str]] = {}
    for one in answers:
        if one.purpose in ("ready", "quality") and one.status == 200 and not one.error:
            alone.setdefault(one.prompt, []).append(one.reasoning + one.text)
    for one in together:
        said, own = one.reasoning + one.text, alone.get(one.prompt, [])
        if not own or any(len(said) - _shared(said, text) < TELLING for text in own):
            continue
        owner = next((p for p, texts in alone.items() if p != one.prompt and any(_agree(said, t) for t in texts)), None)
        if owner is not None:
            judging.failed(
                "of the completions asked at once one got the answer to another prompt",
                f"an answer to {common.excerpt(one.prompt)}",
                [f"{common.excerpt(said)}, which is the answer to {common.excerpt(owner)}"],
                [common.answer_evidence(one)],
                ("answers are mixed up between requests: by a proxy, or in the KV cache of the engine",),
            )
            return


def _shared(one: str, other: str) -> int:
    """Characters that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _agree(one: str, other: str) -> bool:
    """Is one the beginning of the other? They may have been asked for with other lengths."""
    return _shared(one, other) == min(len(one), len(other)) >= TELLING
