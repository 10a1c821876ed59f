"""What a check is: a pure function from profile, records and baseline to a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Optional

from pytest_startup.record import Evidence, StartRecord

if TYPE_CHECKING:
    from pytest_startup.baseline import Baseline
    from pytest_startup.profile.model import Profile


class Outcome(str, Enum):
    """The four verdicts. Only PASSED is green; the last two need a waiver with a reason to become so."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_EXERCISED = "not exercised"
    NOT_OBSERVABLE = "not observable"


@dataclass(frozen=True)
class Finding:
    """One reason of a verdict, as it is printed.

    ``expected_from`` is the dotted profile key (``expect.kv.tokens``) or ``reference`` or ``baseline``: the report
    turns it into file:line. ``observed`` has one entry per rank or place.
    """

    summary: str
    expected: str
    observed: tuple[str, ...]
    evidence: tuple[Evidence, ...] = ()
    helps: tuple[str, ...] = ()
    expected_from: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The verdict of one check on one start. ``numbers`` (name with unit → value) go to reports and the table.

    A PASSED verdict carries in ``evidence`` what it rests on; a verdict without any evidence can't be PASSED.
    ``waivable`` marks a FAILED verdict that only says "cannot tell" (throughput): a waiver may cover it, and no other.
    """

    check: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)
    waivable: bool = False

    def __post_init__(self) -> None:
        if self.outcome is Outcome.PASSED and (self.findings or not self.evidence):
            raise ValueError(f"check {self.check!r} passed without evidence, or with findings")
        if self.outcome is not Outcome.PASSED and not self.findings:
            raise ValueError(f"check {self.check!r} is {self.outcome.value} without saying why")


#: ``check(profile, reference, start, baseline)``. ``reference`` is None when ``start`` is the reference start itself:
#: then only the profile, the baseline and the start's own consistency are judged. Touches no process, socket or clock.
Check = Callable[["Profile", Optional[StartRecord], StartRecord, Optional["Baseline"]], Verdict]
