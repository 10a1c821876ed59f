"""Checks on a start that left nodes up: what started is judged; what did not start is neither red nor silently green.

A node that was left up has nothing to show of the start, so nothing is demanded of it, and it is not compared either.
Where only its log could have shown something (the graphs of a head, when the worker alone is restarted), the verdict
rests on the start in which its process was launched and was judged, and says so: ``left up`` among its numbers, the
launcher's word among its evidence, and a line at the end of the run.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_startup import leftup
from pytest_startup.baseline import Baseline
from pytest_startup.checks.base import Check, Outcome, Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.record import StartRecord

#: The name under which a verdict says so.
NUMBER = "left up"
RESTS = "rests on"


def run(
    judge: Check, profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None
) -> Verdict:
    """The verdict of ``judge``; of a start of all nodes just that."""
    up = leftup.left_up(start)
    if not up:
        return judge(profile, reference, start, baseline)
    fair = leftup.without(reference, up) if reference is not None else None
    verdict = judge(profile, fair, start, baseline)
    words = tuple(f.evidence for f in up.values())
    said = {NUMBER: ", ".join(f"{n} since {f.value}" for n, f in up.items())}
    if verdict.outcome is Outcome.NOT_OBSERVABLE and reference is not None:
        whole = judge(profile, reference, leftup.with_words_of(start, reference), baseline)
        if whole.outcome is Outcome.PASSED:
            verdict, said = whole, {**said, RESTS: reference.name}
        else:
            help_ = f"left up, so nothing of its start is seen: {said[NUMBER]}"
            verdict = replace(verdict, findings=tuple(replace(f, helps=(*f.helps, help_)) for f in verdict.findings))
    return replace(verdict, evidence=(*verdict.evidence, *words), numbers={**verdict.numbers, **said})
