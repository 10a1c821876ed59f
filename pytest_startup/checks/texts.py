"""What makes a text insane whatever the prompt was: loops, floods of one character, leaked control tokens."""

from __future__ import annotations

import re

from pytest_startup.profile.model import Profile

_CONTROL = re.compile(r"<\|[a-z_]{2,30}\|>|</?s>|\[/?INST\]|<unk>|<pad>")
_FLOOD = re.compile(r"(\S)\1{23,}")


def faults(text: str, profile: Profile) -> list[str]:
    """What is wrong with an answer, one phrase each; empty: nothing."""
    found = []
    if "\ufffd" in text:
        found.append("it holds the replacement character U+FFFD")
    if control := _CONTROL.search(text):
        found.append(f"it holds the control token {control[0]}")
    if loops_forbidden(profile) and (flood := _FLOOD.search(text)):
        found.append(f"it is flooded with {flood[1]!r}")
    return found


def loops_forbidden(profile: Profile) -> bool:
    return profile.expect.quality is None or profile.expect.quality.loops != "allow"
