"""Judges records by the checks of a profile, the built-in ones and those that hooks add; the same live and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_startup import baseline as baselines
from pytest_startup.checks import registry
from pytest_startup.engines.registry import dialect
from pytest_startup.waiting import Usual

if TYPE_CHECKING:
    from pytest_startup.checks.base import Verdict
    from pytest_startup.engines.base import Dialect
    from pytest_startup.options import Options
    from pytest_startup.profile.model import Profile
    from pytest_startup.record import JSON, StartRecord


class Judging:
    """The checks, the dialect and the baseline of one profile."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self._profile = profile
        self.checks = {**registry.CHECKS, **options.extensions.checks}
        self._added = frozenset(options.extensions.checks)
        extra = options.extensions.dialects
        self.dialect: Dialect = extra.get(profile.engine.kind) or dialect(profile.engine.kind)
        self.baseline = None if options.baseline == "ignore" else baselines.read_for(profile)
        self._said: dict[str, JSON] = {}

    def check_names(self) -> Sequence[str]:
        """Those for which the profile gives anything to judge, and all that hooks have added."""
        known = registry.applicable(self._profile)
        return [name for name in self.checks if name in known or name in self._added]

    def judge(self, check: str, reference: StartRecord | None, start: StartRecord) -> Verdict:
        """The verdict; an exception inside a check is a failed verdict that names the check's defect."""
        verdict = registry.run(check, self._profile, reference, start, self.baseline, self.checks)
        self._said[f"{start.name}::{check}"] = verdict.outcome.value
        return verdict

    def said(self) -> dict[str, JSON]:
        """Every verdict so far, for the run's manifest."""
        return dict(self._said)

    def usual(self, population: str) -> Usual | None:
        """How long a start of this population usually takes by the baseline; None: it does not know."""
        if self.baseline is None or population not in self.baseline.populations:
            return None
        from statistics import median

        samples = self.baseline.populations[population].samples
        phases = {k.removeprefix("phase."): median(v) for k, v in samples.items() if k.startswith("phase.") and v}
        ready = samples.get("ready_seconds")
        return Usual(phases, median(ready) if ready else None)
