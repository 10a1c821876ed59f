"""Waivers: which verdict a profile may excuse, until when, and which excuses are errors themselves."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

from pytest_startup.checks.base import Finding, Outcome, Verdict
from pytest_startup.profile.model import Profile, Waiver


@dataclass(frozen=True)
class Judged:
    """A verdict after the waivers. ``waived``: the waiver that excuses it; the verdict stays what it was.

    ``waiver_error``: why the profile's waiver is an error; ``verdict`` is then failed and says so.
    """

    verdict: Verdict
    waived: Waiver | None = None
    waiver_error: str | None = None

    @property
    def green(self) -> bool:
        """Passed, or waived by a waiver that holds."""
        return self.waiver_error is None and (self.waived is not None or self.verdict.outcome is Outcome.PASSED)

    @property
    def reason(self) -> str | None:
        """Why it is waived; None: it is not."""
        return self.waived.reason if self.waived else None


def judge(profile: Profile, verdict: Verdict, today: datetime.date | None = None) -> Judged:
    """Apply the profile's waiver of this check at a date (default: now, UTC).

    A waiver covers "not exercised", "not observable" and a failure that only says "cannot tell". It is an error without
    a reason, past its last day, and where the check was observable after all: then it hides nothing and must go.
    """
    waiver = profile.waiver(verdict.check)
    if waiver is None:
        return Judged(verdict)
    today = today or datetime.datetime.now(datetime.timezone.utc).date()
    key = f"waive.{profile.waivers.index(waiver)}"
    if not waiver.reason.strip():
        return _error(verdict, key, f"the waiver of {verdict.check} gives no reason", "a reason", "write why")
    if waiver.until is not None and today > waiver.until:
        summary = f"the waiver of {verdict.check} ended on {waiver.until}"
        return _error(
            verdict, key, summary, f"a day not before {today}", "mend the cause, or decide again and prolong it"
        )
    if verdict.outcome is Outcome.FAILED and not verdict.waivable:
        if verdict.check == "throughput":  # waived for its noise: a real drop is a failure, and the waiver no error
            return Judged(verdict)
        summary = f"{verdict.check} is waived, but it was observable and failed: {verdict.findings[0].summary}"
        return _error(
            verdict, key, summary, "a waiver only where nothing can be seen", "remove the waiver, mend the failure"
        )
    if verdict.outcome is Outcome.PASSED:
        if verdict.check == "throughput":
            return Judged(verdict)
        summary = f"{verdict.check} is waived, but it was observable after all and passed"
        return _error(verdict, key, summary, "a waiver only where nothing can be seen", "remove the waiver")
    return Judged(verdict, waived=waiver)


def _error(verdict: Verdict, key: str, summary: str, expected: str, help_: str) -> Judged:
    """The verdict becomes failed; what it said before stands behind the waiver's own finding."""
    finding = Finding(summary, expected, (f"verdict: {verdict.outcome.value}",), verdict.evidence[:4], (help_,), key)
    failed = replace(verdict, outcome=Outcome.FAILED, findings=(finding, *verdict.findings), waivable=False)
    return Judged(failed, waiver_error=summary)
