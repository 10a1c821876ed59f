"""Assertions on start records for the body of a test: the checks of the profile, with the same messages.

Each takes the record to judge, the record to compare with, and what to expect; it raises AssertionError with the text
that the gate would print, and returns the verdict. A verdict that is not exercised or not observable is no pass.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pytest_startup.baseline import Baseline
from pytest_startup.checks.base import Outcome, Verdict
from pytest_startup.gate import Gate
from pytest_startup.markers import MarkerError, Request, expectation, parse
from pytest_startup.profile.model import Engine, Launch, Profile
from pytest_startup.record import Completion, StartRecord
from pytest_startup.report.terminal import verdict_text


def assert_backend(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_backend(after, before, attention="FLASHINFER", moe="FLASHINFER_CUTLASS")``; see ``startup_backend``."""
    __tracebackhide__ = True
    return _assert("startup_backend", start, reference, expected)


def assert_autotune(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_autotune(after, before, ranks=2, records_per_rank=42)``; see ``startup_autotune``."""
    __tracebackhide__ = True
    return _assert("startup_autotune", start, reference, expected)


def assert_artifacts(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_artifacts(after, before)``: a warm restart loads and compiles nothing; see ``startup_artifacts``."""
    __tracebackhide__ = True
    return _assert("startup_artifacts", start, reference, expected)


def assert_graphs(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_graphs(after, before, mode="FULL_AND_PIECEWISE", sizes=[1, 2, 4])``; see ``startup_graphs``."""
    __tracebackhide__ = True
    return _assert("startup_graphs", start, reference, expected)


def assert_kv(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_kv(after, before)``, or ``tokens=338624`` / ``min=…``; see ``startup_kv``."""
    __tracebackhide__ = True
    return _assert("startup_kv", start, reference, expected)


def assert_memory(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_memory(after, before, weights_gib_per_rank=84)``; see ``startup_memory``."""
    __tracebackhide__ = True
    return _assert("startup_memory", start, reference, expected)


def assert_throughput(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_throughput(after, before, profile=startup_profile, tolerance=0.03)``; see ``startup_throughput``."""
    __tracebackhide__ = True
    return _assert("startup_throughput", start, reference, expected)


def assert_quality(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_quality(after, before, profile=startup_profile)``; see ``startup_quality``."""
    __tracebackhide__ = True
    return _assert("startup_quality", start, reference, expected)


def assert_tiers(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_tiers(after, prefix=0.5, spec_decode=True)``; see ``startup_tiers``."""
    __tracebackhide__ = True
    return _assert("startup_tiers", start, reference, expected)


def assert_log(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_log(after, forbid=["falling back"])``; see ``startup_log``."""
    __tracebackhide__ = True
    return _assert("startup_log", start, reference, expected)


def assert_ready(start: StartRecord, reference: StartRecord | None = None, **expected: Any) -> Verdict:
    """``assert_ready(after, contains="Paris")``: the recorded completions of the start are real."""
    __tracebackhide__ = True
    return _assert("startup_completion", start, reference, expected)


def assert_completion(completion: Completion, contains: str | None = None) -> Completion:
    """``assert_completion(engine.complete("2 + 2 ="), contains="4")``: a real answer that holds this text."""
    __tracebackhide__ = True
    from pytest_startup.workload.answers import why_not_real

    why = why_not_real(completion)
    if why is None and contains is not None:
        text = completion.text + completion.reasoning
        if contains.casefold() not in text.casefold():
            why = f"the answer does not contain {contains!r}"
    if why is not None:
        raise AssertionError(
            f"{why}\n  expected  a real completion{f' that contains {contains!r}' if contains else ''}\n"
            f"  observed  status {completion.status}, finish reason {completion.finish_reason}, "
            f"text {completion.text!r}\n"
            f"  evidence  prompt {completion.prompt!r}"
        )
    return completion


def judge_marked(gate: Gate, request: Request, path: Path, line: int | None) -> None:
    """What a marker asks for, judged on the last start of the profile (a live prompt is asked of the engine)."""
    __tracebackhide__ = True
    profile = dataclasses.replace(gate.profile, expect=expectation(gate.profile.expect, request))
    if request.check == "ready" and request.given.get("prompt"):
        assert_completion(gate.complete(profile.expect.completion), request.given.get("contains"))
        return
    if line is not None and request.given:
        profile = dataclasses.replace(profile, path=path, origin={"expect": line})
    names = list(gate.start_names())
    reference = gate.record(names[0])
    last = gate.record(names[-1])
    _judge(profile, request.check, last, None if len(names) == 1 else reference, gate.baseline)


def _assert(marker: str, start: StartRecord, reference: StartRecord | None, expected: dict[str, Any]) -> Verdict:
    __tracebackhide__ = True
    start, reference = _record(start), None if reference is None else _record(reference)
    profile = expected.pop("profile", None) or _bare(start)
    baseline = expected.pop("baseline", None)
    try:
        request = parse(marker, (), expected)
    except MarkerError as error:
        raise TypeError(str(error).replace("startup_", "assert_")) from None
    if request is None:
        raise TypeError(f"{marker} asks for no check")
    profile = dataclasses.replace(profile, expect=expectation(profile.expect, request))
    return _judge(profile, request.check, start, reference, baseline)


def _judge(
    profile: Profile, check: str, start: StartRecord, reference: StartRecord | None, baseline: Baseline | None
) -> Verdict:
    __tracebackhide__ = True
    from pytest_startup.checks import registry

    verdict = registry.run(check, profile, reference, start, baseline)
    if verdict.outcome is not Outcome.PASSED:
        records = {r.name: r for r in (start, reference) if r is not None}
        raise AssertionError(verdict_text(verdict, profile, start.name, records))
    return verdict


def _record(start: StartRecord) -> StartRecord:
    """A start's record, also where the fixture that has it was given."""
    found = getattr(start, "record", start)
    if not isinstance(found, StartRecord):
        raise TypeError(f"expected the record of a start (engine.record), found {type(start).__name__}")
    return found


def _bare(start: StartRecord) -> Profile:
    """A profile that pins and expects nothing of its own, for a record that is judged without one."""
    served = next((c.model for c in start.completions if c.model), "unknown")
    return Profile(Path(), start.profile, Engine("vllm", served), Launch())
