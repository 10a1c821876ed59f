"""Secrets out of everything that is written: values, tokens, keys; in text, in JSON, and in a stream of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MASK = "[redacted]"
#: A ``${VAR}`` value shorter than this is too common in plain text to be taken out (``1``, ``yes``).
SHORTEST = 4


class Redactor:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets = frozenset(secrets)

    def text(self, text: str) -> str:
        return str(self.json(text))

    def json(self, value: Any) -> Any:
        if isinstance(value, str):
            for s in sorted(self.secrets, key=len, reverse=True):
                value = value.replace(s, MASK)
            return value
        if isinstance(value, Mapping):
            return {k: self.json(v) for k, v in value.items()}
        return [self.json(v) for v in value] if isinstance(value, list) else value
