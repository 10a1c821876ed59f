"""A minimal profile as text, and a loader that never leaves the test's folder."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from pytest_startup.profile.load import load_bytes
from pytest_startup.profile.model import Profile
from pytest_startup.profile.problems import ProfileError

TODAY = datetime.date(2026, 11, 29)
IMAGE_ID = "sha256:" + "0123456789abcdef" * 4

MINIMAL = """\
schema: 1
name: small
engine: {kind: vllm, model: org/model}
launch: {process: {command: [vllm, serve]}}
restarts: [{kind: process}]
"""

CONTAINER = f"""\
schema: 1
name: small
engine: {{kind: vllm, model: org/model}}
launch: {{container: {{image: "{IMAGE_ID}"}}}}
restarts: [{{kind: same-container}}]
"""


def read(text: str | bytes, environ: Mapping[str, str] | None = None, folder: str = "/nowhere/profiles") -> Profile:
    raw = text.encode() if isinstance(text, str) else text
    return load_bytes(raw, Path(folder, "p.yaml"), environ or {}, today=TODAY)


def errors(text: str | bytes, environ: Mapping[str, str] | None = None) -> list[str]:
    """The messages of a profile that must be refused, without the folder."""
    try:
        read(text, environ)
    except ProfileError as e:
        return [line.replace("/nowhere/profiles/", "") for line in e.lines()]
    raise AssertionError("the profile was accepted")
