"""One log line, taken apart: outer prefixes, process, rank, record header and message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: What quotes a client: vLLM 0.8 on (``--enable-log-requests``, the default up to 0.9), SGLang's ``--log-requests``.
_QUOTES = re.compile(
    r"Received request \S+: |Request \S+ details: |Generated response \S+.{0,40}?: output: |(?:Receive|Finish): obj="
)


def quotes_a_client(message: str) -> bool:
    """Does the line repeat what a client sent or got? That states nothing, whatever words of an engine it holds."""
    return _QUOTES.match(message) is not None


@dataclass
class Line:
    """A physical line (LF counts, from 1) as the rules see it.

    ``text`` is the line without colours, outer prefixes (docker, Kubernetes, compose, journald, Ray) and trailing CR;
    progress bars hold their last redraw. ``message`` is ``text`` behind the process prefix and the record header.
    ``process`` is the engine's name for who prints (``Worker_TP1_EP1``, ``EngineCore_DP0``, ``APIServer``), ``rank``
    the part of it that is a rank (``TP1_EP1``, ``DP0``), None when none is named. ``repeated``: Ray's count of equal
    lines, else 1. ``stamp`` is the printed time in seconds since the epoch where it can be told, else None; ``seconds``
    our receive time since launch. ``before``: what stood before the record that is of no known form.
    """

    number: int
    raw: bytes
    text: str
    message: str
    process: str | None = None
    pid: int | None = None
    rank: str | None = None
    engine: str | None = None
    node: str | None = None
    level: str | None = None
    source: str | None = None
    stamp: float | None = None
    seconds: float | None = None
    repeated: int = 1
    before: str = ""

    def like(self, **changes: Any) -> Line:
        """A copy with these members changed; ``dataclasses.replace`` would be five times as slow."""
        copy = Line.__new__(Line)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(changes)
        return copy
