"""Lines that tell how a start goes: which ones its tracker must be shown, and answers of the server to requests."""

from __future__ import annotations

import re

from pytest_startup.engines.failure_table import SIGN_ANCHORS
from pytest_startup.engines.failure_table import TABLE as FAILURES
from pytest_startup.engines.phase_table import TABLE as OPENERS
from pytest_startup.engines.tracebacks import OPENING

_ERRORS = ("ERROR ", "CRITICAL ", "Error: ", "Exception: ")

#: Literals of lines that the tracker must be shown, also amid the traffic of a serving engine.
ANCHORS: tuple[str, ...] = tuple(dict.fromkeys((OPENING, *FAILURES.anchors, *SIGN_ANCHORS, *_ERRORS, *OPENERS.anchors)))

#: uvicorn's access line: ``127.0.0.1:52880 - "GET /health HTTP/1.1" 200``.
_ACCESS = re.compile(r':\d+ - "[A-Z]+ /\S* HTTP/[\d.]+" 200')
_BRACKET = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d")


def anchored(text: str) -> bool:
    """Whether the text holds an anchor. A loop over ``in`` is faster than one regular expression of all of them."""
    for anchor in ANCHORS:  # noqa: SIM110 - for every line: any() with a generator costs more
        if anchor in text:
            return True
    return False


def bracketed(text: str) -> bool:
    """Does the line begin as SGLang's do: ``[2026-11-29 12:00:00``?"""
    return bool(_BRACKET.match(text))


def answered(message: str, sglang: bool) -> bool:
    """The server's own answer 200: any of vLLM's; of SGLang's not those of its own warm-up before it is ready."""
    if '" 200' not in message or not _ACCESS.search(message):
        return False
    return not sglang or any(path in message for path in ('"GET /health', '"GET /v1/models', '"POST /v1/'))


#: What an engine prints only while it works for somebody: also one without a server, in a script or a trainer, which
#: never says that it is ready.
_IN_USE = ("Avg prompt throughput: ", "Processed prompts: ", "Decode batch", "Sleep mode freed ", " to fall asleep")


def in_use(message: str) -> bool:
    """Does the line show that the engine is up and used, whether or not it was said to be ready?"""
    for words in _IN_USE:  # noqa: SIM110 - as in anchored
        if words in message:
            return True
    return False
