"""What the live and the replayed gate have in common: starts recorded in order, each judged by every check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_startup.gate import REFERENCE, SELF_JUDGED, StartFailed
from pytest_startup.judging import Judge

if TYPE_CHECKING:
    from pytest_startup.baseline import Baseline
    from pytest_startup.checks.base import Verdict
    from pytest_startup.options import Options
    from pytest_startup.profile.model import Profile
    from pytest_startup.record import StartRecord


class RecordedGate(ABC):
    """The half of ``gate.Gate`` that is the same wherever records come from."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile = profile
        self._judge = Judge(profile, options)
        self._records: dict[str, StartRecord] = {}

    @abstractmethod
    def start_names(self) -> Sequence[str]:
        """See ``gate.Gate``."""

    @abstractmethod
    def _obtain(self, name: str) -> None:
        """Put the record of a start, failed or not, into ``_records``. Raises LaunchError where there can be none."""

    def check_names(self) -> Sequence[str]:
        return self._judge.check_names()

    def records(self) -> Mapping[str, StartRecord]:
        return dict(self._records)

    @property
    def baseline(self) -> Baseline | None:
        return self._judge.baseline

    def record(self, start: str) -> StartRecord:
        for name in self.start_names():
            if name not in self._records:
                self._obtain(name)
            if self._records[name].failure is not None:
                raise StartFailed(self._records[name])
            if name == start:
                break
        return self._records[start]

    def verdict(self, start: str, check: str) -> Verdict:
        record = self._to_judge(start, check)
        reference = None if start == REFERENCE else self._records[REFERENCE]
        return self._judge.judge(check, reference, record)

    def _to_judge(self, start: str, check: str) -> StartRecord:
        """The record of a start; that of a failed one only for the checks that can judge it. Raises StartFailed."""
        try:
            return self.record(start)
        except StartFailed as failed:
            if failed.record.name != start or check not in SELF_JUDGED:
                raise
            return failed.record
