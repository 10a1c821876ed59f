"""From the HTTP answer of a completion endpoint to a ``Completion``: pure, for plain JSON and event streams (SSE)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_startup.record import Completion

if TYPE_CHECKING:
    from pytest_startup.observe.http import Answer


class _Malformed(Exception):
    """The body is not what the endpoint promises; the text says how."""


@dataclass
class _Parts:
    """What the JSON objects of an answer (one, or one per event) add up to."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    fingerprint: str | None = None
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    error: str | None = None


def read_completion(
    answer: Answer,
    *,
    purpose: str,
    prompt: str,
    asked_tokens: int | None = None,
    streamed: bool = False,
    seconds_since_launch: float | None = None,
) -> Completion:
    """The completion that ``answer`` holds. Never raises: what is wrong with it is in ``error``.

    ``error`` is None only for a complete, well-formed body of HTTP 200 (what it says may still be nonsense). Reasoning
    text is taken from ``reasoning_content`` (vLLM up to 0.11, SGLang) or ``reasoning`` (vLLM since).
    """
    parts = _Parts()
    error: str | None = answer.reason() or None
    if answer.status == 200:
        try:
            for item in _events(answer.body, complete=answer.error is None) if streamed else [_object(answer.body)]:
                _add(parts, item)
        except _Malformed as e:
            error = error or str(e)
        error = error or parts.error
    return Completion(
        purpose=purpose,
        prompt=prompt,
        status=answer.status,
        text=parts.text,
        reasoning=parts.reasoning,
        finish_reason=parts.finish_reason,
        model=parts.model,
        prompt_tokens=parts.prompt_tokens,
        completion_tokens=parts.completion_tokens,
        seconds=answer.seconds,
        seconds_since_launch=seconds_since_launch,
        tokens=tuple(parts.tokens) or None,
        logprobs=tuple(parts.logprobs) or None,
        fingerprint=parts.fingerprint,
        streamed=streamed,
        asked_tokens=asked_tokens,
        error=error,
    )


def why_not_real(completion: Completion) -> str | None:
    """Why this answer does not show that the engine generates; None for a real one (the ``ready`` check asks more)."""
    if completion.status != 200 or completion.error:
        return completion.error or f"HTTP {completion.status}"
    if not (completion.text.strip() or completion.reasoning.strip()):
        return "HTTP 200 with empty text"
    if not completion.completion_tokens or completion.completion_tokens < 1:
        return f"HTTP 200 with text, but usage counts no token (completion_tokens {completion.completion_tokens})"
    return None


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise _Malformed(f"body is not JSON ({len(body)} bytes): {_short(body)}") from None
    if not isinstance(value, dict):
        raise _Malformed(f"body is not a JSON object: {_short(body)}")
    return value


def _events(body: bytes, complete: bool) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of an event stream up to ``[DONE]``; raises when the stream is cut or is none."""
    for line in body.replace(b"\r\n", b"\n").split(b"\n"):
        name, _, value = line.partition(b":")
        if not line.strip() or not name or name in (b"event", b"id", b"retry"):
            continue
        if name != b"data":
            raise _Malformed(f"not an event stream: {_short(line)}")
        if value.strip() == b"[DONE]":
            return
        yield _object(value)
    if complete:
        raise _Malformed("the stream ended without [DONE]")


def _add(parts: _Parts, item: Mapping[str, Any]) -> None:
    if item.get("error"):
        parts.error = f"the answer is an error: {_short(json.dumps(item['error']).encode())}"
        return
    parts.model = _typed(item, "model", str) or parts.model
    parts.fingerprint = _typed(item, "system_fingerprint", str) or parts.fingerprint
    usage = _typed(item, "usage", dict)
    if usage:
        parts.prompt_tokens = _typed(usage, "prompt_tokens", int)
        parts.completion_tokens = _typed(usage, "completion_tokens", int)
    choices = _typed(item, "choices", list)
    if choices is None and not usage:
        raise _Malformed("answer without choices")
    for choice in (choices or [])[:1]:
        if not isinstance(choice, dict):
            raise _Malformed("choices[0] is not an object")
        _add_choice(parts, choice)


def _add_choice(parts: _Parts, choice: Mapping[str, Any]) -> None:
    said: Mapping[str, Any] = _typed(choice, "message", dict) or _typed(choice, "delta", dict) or {}
    parts.text += _typed(choice, "text", str) or _typed(said, "content", str) or ""
    parts.reasoning += _typed(said, "reasoning_content", str) or _typed(said, "reasoning", str) or ""
    parts.finish_reason = _typed(choice, "finish_reason", str) or parts.finish_reason
    logprobs = _typed(choice, "logprobs", dict) or {}
    for entry in _typed(logprobs, "content", list) or []:  # chat
        if isinstance(entry, dict):
            _add_token(parts, entry.get("token"), entry.get("logprob"))
    for token, value in zip(  # completions
        _typed(logprobs, "tokens", list) or [], _typed(logprobs, "token_logprobs", list) or [], strict=False
    ):
        _add_token(parts, token, value)


def _add_token(parts: _Parts, token: object, value: object) -> None:
    if isinstance(token, str) and isinstance(value, (int, float)):
        parts.tokens.append(token)
        parts.logprobs.append(float(value))


def _typed(data: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
    """``data[key]``, None if it is absent or null; raises when it has another type."""
    value = data.get(key)
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise _Malformed(f"{key} is {type(value).__name__}, expected {kind.__name__}")


def _short(data: bytes) -> str:
    flat = " ".join(data[:400].decode("utf-8", "replace").split())
    return flat if len(flat) <= 100 else flat[:99] + "…"
