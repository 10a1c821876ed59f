"""The markers of a user's tests: their signatures, the check of their arguments, and what they expect.

Loaded in every run of pytest, so it builds no dataclasses and imports next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pytest_startup.profile.expect import Expect


class MarkerError(Exception):
    """Arguments that a marker does not take; the message repeats its signature."""


class Kind(NamedTuple):
    """What an argument may be: its words for a message, and the test."""

    words: str
    fits: Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TEXT = Kind("text", lambda v: isinstance(v, str) and bool(v))
WHOLE = Kind("a whole number", _whole)
NUMBER = Kind("a number", _number)
FRACTION = Kind("a fraction from 0 to 1 (0.03 is 3 %)", lambda v: _number(v) and 0 <= v < 1)
SIZES = Kind("a list of whole numbers", lambda v: isinstance(v, (list, tuple)) and bool(v) and all(map(_whole, v)))
TEXTS = Kind("a list of texts", lambda v: isinstance(v, (list, tuple)) and all(isinstance(x, str) for x in v))
RATE = Kind("a rate from 0 to 1, or True", lambda v: v is True or (_number(v) and 0 <= v <= 1))
FLAG = Kind("True or False", lambda v: isinstance(v, bool))
FLOORS = Kind(
    "a mapping of concurrency to tokens/s",
    lambda v: isinstance(v, Mapping) and all(_whole(k) and _number(x) for k, x in v.items()),
)
COUNTS = Kind(
    "a mapping of kind to count",
    lambda v: isinstance(v, Mapping) and all(isinstance(k, str) and _whole(x) for k, x in v.items()),
)


def one_of(*words: str) -> Kind:
    """Any of these words."""
    return Kind(" | ".join(repr(w) for w in words), lambda v: v in words)


NONE_OR_ANY = one_of("none", "any")


class Signature(NamedTuple):
    """A marker: the check it asks for, its keyword arguments with default and kind, and what it does."""

    check: str
    arguments: Mapping[str, tuple[Any, Kind]]
    text: str


SIGNATURES: dict[str, Signature] = {
    "startup_backend": Signature(
        "backend",
        {
            **dict.fromkeys(("attention", "drafter", "moe", "linear", "all2all", "kv_dtype"), (None, TEXT)),
            "fallback": ("forbid", one_of("forbid", "allow")),
        },
        "these backends, on every rank",
    ),
    "startup_autotune": Signature(
        "autotune",
        {
            "ranks": (None, WHOLE),
            "records_per_rank": (None, WHOLE),
            "hits": ("all", one_of("all", "none", "any")),
            "ops": ((), TEXTS),
        },
        "every rank uses its own tuned records",
    ),
    "startup_artifacts": Signature(
        "artifacts",
        {
            "missing": ("none", NONE_OR_ANY),
            "recompiled": ("none", NONE_OR_ANY),
            "writes": ("none", NONE_OR_ANY),
            "ranks": (None, WHOLE),
        },
        "a warm restart loads its compiled artifacts and compiles nothing",
    ),
    "startup_graphs": Signature(
        "graphs",
        {
            "mode": (None, TEXT),
            "sizes": (None, SIZES),
            "captured": ({}, COUNTS),
            "max_seconds": (None, NUMBER),
        },
        "this CUDA graph mode and coverage",
    ),
    "startup_kv": Signature(
        "kv",
        {"tokens": (None, WHOLE), "min": (None, WHOLE), "max": (None, WHOLE), "tolerance": (0.0, FRACTION)},
        "this KV cache capacity, of the smallest rank",
    ),
    "startup_memory": Signature(
        "memory",
        {
            "weights_gib_per_rank": (None, NUMBER),
            "gpu_peak_gib": (None, NUMBER),
            "host_peak_gib": (None, NUMBER),
            "tolerance": (0.02, FRACTION),
        },
        "at most this much memory, in GiB",
    ),
    "startup_throughput": Signature(
        "throughput",
        {"tolerance": (0.05, FRACTION), "min_tokens_per_second": ({}, FLOORS)},
        "the profile's workload is as fast as before",
    ),
    "startup_quality": Signature(
        "quality",
        {"tolerance": (0.0, FRACTION), "logprob": (0.1, NUMBER)},
        "the profile's prompts are answered as before",
    ),
    "startup_completion": Signature(
        "ready",
        {"prompt": (None, TEXT), "contains": (None, TEXT), "max_tokens": (32, WHOLE), "chat": (False, FLAG)},
        "a real completion; of a prompt of its own if one is given",
    ),
    "startup_tiers": Signature(
        "tiers",
        {"prefix": (None, RATE), "external": (None, RATE), "spec_decode": (None, RATE)},
        "these tiers were used by the workload",
    ),
    "startup_log": Signature(
        "log", {"forbid": ((), TEXTS), "require": ((), TEXTS)}, "these patterns do not, or do, stand in the log"
    ),
    "startup_phases": Signature("phases", {}, "no phase overran its deadline"),
    "startup_identity": Signature("identity", {}, "what runs is what is pinned"),
}

PROFILE_MARKER = "startup_profile(path): the profile of this test, relative to its file"


def shown(name: str) -> str:
    """``startup_kv(tokens=None, min=None, max=None, tolerance=0.0)``."""
    if name == "startup_profile":
        return "startup_profile(path)"
    return f"{name}({', '.join(f'{k}={d!r}' for k, (d, _) in SIGNATURES[name].arguments.items())})"


#: What ``pytest --markers`` prints, and what makes ``--strict-markers`` accept them.
REGISTERED = (
    "startup: an item of a gate (added by pytest-startup; select the gate with -m startup)",
    PROFILE_MARKER,
    *(f"{shown(name)}: {signature.text}" for name, signature in SIGNATURES.items()),
)


class Request(NamedTuple):
    """One marker on one test, its arguments checked. ``given`` holds only what the test says."""

    marker: str
    check: str
    given: Mapping[str, Any] = MappingProxyType({})


def parse(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request | None:
    """Check a marker's arguments; None for ``startup_profile`` and markers that are not ours. Raises MarkerError."""
    if name == "startup_profile":
        if len(args) != 1 or kwargs or not isinstance(args[0], str):
            raise MarkerError(f"startup_profile takes one path; expected {shown(name)}")
        return None
    signature = SIGNATURES.get(name)
    if signature is None:
        import difflib

        near = difflib.get_close_matches(name, SIGNATURES, n=1, cutoff=0.85)
        if near:
            raise MarkerError(f"unknown marker {name}; did you mean {shown(near[0])}?")
        return None
    if args:
        raise MarkerError(f"{name} takes keyword arguments only; expected {shown(name)}")
    for key, value in kwargs.items():
        if key not in signature.arguments:
            import difflib

            near = difflib.get_close_matches(key, signature.arguments, n=1, cutoff=0.5)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise MarkerError(f"{name} has no argument {key!r}{hint}; expected {shown(name)}")
        default, kind = signature.arguments[key]
        if not kind.fits(value) and not (value is None and default is None):
            raise MarkerError(f"{name}: {key} must be {kind.words}, not {value!r}; expected {shown(name)}")
    return Request(name, signature.check, dict(kwargs))


def expectation(base: Expect, request: Request) -> Expect:
    """``base`` with what the marker expects in place of the profile's own."""
    import dataclasses

    from pytest_startup.profile import expect

    given = {k: v for k, v in request.given.items() if v is not None}
    check = request.check

    def over(current: Any) -> Any:
        return dataclasses.replace(current, **given)

    if check == "kv":
        low, high, exact = (given.pop(k, None) for k in ("min", "max", "tokens"))
        tokens = base.kv.tokens
        if (low, high, exact) != (None, None, None):
            tokens = expect.Range(exact=exact, min=low, max=high)
        return dataclasses.replace(base, kv=dataclasses.replace(base.kv, tokens=tokens, **given))
    if check == "memory":
        limits: dict[str, Any] = {k: expect.Range(max=float(v)) for k, v in given.items() if k != "tolerance"}
        if "tolerance" in given:
            limits["tolerance"] = given["tolerance"]
        return dataclasses.replace(base, memory=dataclasses.replace(base.memory, **limits))
    if check == "log":
        patterns = {k: tuple(expect.LogPattern(text) for text in v) for k, v in given.items()}
        return dataclasses.replace(base, log=expect.ExpectLog(**patterns))
    if check == "ready":
        return dataclasses.replace(base, completion=over(base.completion))
    if check == "autotune":
        return dataclasses.replace(base, autotune=over(base.autotune or expect.ExpectAutotune()))
    if check == "tiers":
        return dataclasses.replace(base, tiers=over(base.tiers or expect.ExpectTiers()))
    if check in ("throughput", "quality"):
        current = getattr(base, check)
        return base if current is None else dataclasses.replace(base, **{check: over(current)})
    if check in ("phases", "identity"):
        return base
    if given.get("sizes") is not None:
        given["sizes"] = tuple(given["sizes"])
    return dataclasses.replace(base, **{check: over(getattr(base, check))})
