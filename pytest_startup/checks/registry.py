"""The table of checks in the order in which they are shown, and the one way to run them."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from pytest_startup.baseline import Baseline, mismatch
from pytest_startup.checks import (
    artifacts,
    autotune,
    backend,
    cleanup,
    graphs,
    identity,
    kv,
    log,
    memory,
    partial,
    phases,
    quality,
    ready,
    throughput,
    tiers,
)
from pytest_startup.checks.base import Check, Finding, Outcome, Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.record import StartRecord

CHECKS: Mapping[str, Check] = {
    "identity": identity.check,
    "ready": ready.check,
    "phases": phases.check,
    "backend": backend.check,
    "autotune": autotune.check,
    "artifacts": artifacts.check,
    "graphs": graphs.check,
    "kv": kv.check,
    "memory": memory.check,
    "throughput": throughput.check,
    "quality": quality.check,
    "tiers": tiers.check,
    "log": log.check,
    "cleanup": cleanup.check,
}


def applicable(profile: Profile) -> tuple[str, ...]:
    """The checks for which this profile gives anything to judge, in order.

    throughput and quality need their workload, log its patterns, tiers an expected or configured tier; the other checks
    are always made. A check that the profile waives is made too, so that a needless waiver is noticed.
    """
    absent = set()
    if profile.expect.throughput is None:
        absent.add("throughput")
    if profile.expect.quality is None:
        absent.add("quality")
    if not profile.expect.log.forbid and not profile.expect.log.require:
        absent.add("log")
    if all(tiers.demand(profile, None, tier)[0] is None for tier in tiers.TIERS):
        absent.add("tiers")
    waived = {w.check for w in profile.waivers}
    return tuple(name for name in CHECKS if name not in absent or name in waived)


def run(
    check: str,
    profile: Profile,
    reference: StartRecord | None,
    start: StartRecord,
    baseline: Baseline | None,
    checks: Mapping[str, Check] = CHECKS,
) -> Verdict:
    """Make one check. A defect of the check itself is a failed verdict that names it: never a pass, never a crash.

    A baseline that was accepted for something else is given to ``identity`` alone, which says so; the others compare
    with the reference then. Raises KeyError for a check that is not in ``checks``.
    """
    judge = checks[check]
    try:
        if baseline is not None and check != "identity" and mismatch(baseline, profile, start):
            baseline = None
        return partial.run(judge, profile, reference, start, baseline)
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        place = f"{last.filename.rpartition('/')[2]}:{last.lineno} in {last.name}"
        finding = Finding(
            f"the check {check} itself is defective: {type(e).__name__}: {e}",
            "a verdict",
            (f"{place}: {last.line}",),
            helps=("this says nothing about the engine; report it with the record of this start",),
        )
        return Verdict(check, Outcome.FAILED, (finding,))
