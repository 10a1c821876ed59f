"""Judges records by the checks of a profile, the built-in ones and those that hooks add; the same live and replayed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pytest_startup import baseline_file
from pytest_startup.checks import registry
from pytest_startup.engines.registry import dialect
from pytest_startup.waiting import Usual

if TYPE_CHECKING:
    from pytest_startup.checks.base import Verdict
    from pytest_startup.engines.base import Dialect
    from pytest_startup.options import Options
    from pytest_startup.profile.model import Profile
    from pytest_startup.record import JSON, StartRecord


class Judge:
    """The checks, the dialect and the baseline of one profile."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self._profile = profile
        self.checks = {**registry.CHECKS, **options.extensions.checks}
        self._added = frozenset(options.extensions.checks)
        extra = options.extensions.dialects
        self.dialect: Dialect = extra.get(profile.engine.kind) or dialect(profile.engine.kind)
        path = baseline_file.path_of(profile)
        self._mode = options.baseline
        wanted = options.baseline != "ignore" and os.path.lexists(path)  # a link that leads nowhere is no absence
        self._accepted = baseline_file.read(path, profile.name) if wanted else None
        # A run that proposes is judged without it: else none could ever propose what changed on purpose.
        self.baseline = None if options.baseline == "propose" else self._accepted
        self._said: dict[tuple[str, str], Verdict] = {}

    def check_names(self) -> Sequence[str]:
        """Those for which the profile gives anything to judge, and all that hooks have added."""
        known = registry.applicable(self._profile)
        return [name for name in self.checks if name in known or name in self._added]

    def judge(self, check: str, reference: StartRecord | None, start: StartRecord) -> Verdict:
        """The verdict; an exception inside a check is a failed verdict that names the check's defect."""
        verdict = registry.run(check, self._profile, reference, start, self.baseline, self.checks)
        self._said[start.name, check] = verdict
        return verdict

    def said(self) -> dict[str, JSON]:
        """Every verdict so far (waivers not applied), for the run's manifest."""
        return {f"{start}::{check}": verdict.outcome.value for (start, check), verdict in self._said.items()}

    def propose(self, records: Sequence[StartRecord], environ: Mapping[str, str]) -> list[str]:
        """Write the proposal of a baseline beside the profile, if this run deserves one; what to tell the user."""
        from pytest_startup.baseline_propose import propose

        verdicts = [(start, verdict) for (start, _), verdict in self._said.items()]
        proposal = propose(self._profile, records, verdicts, self._accepted, environ)
        if proposal.baseline is None:
            return proposal.lines()
        path = baseline_file.write_proposal(self._profile, proposal.baseline)
        accepted = baseline_file.path_of(self._profile).name
        return [*proposal.lines(), f"proposed baseline in {path}; to accept it: mv {path.name} {accepted}"]

    def notes(self) -> list[str]:
        """What an acceptance does not rest on: a baseline that is ignored, not there, or silent on a planned start."""
        path = baseline_file.path_of(self._profile)
        if self._mode == "ignore":
            return [f"{path.name} was ignored as asked: nothing was compared with it"] if os.path.lexists(path) else []
        alone = "compared with the reference start alone"
        if self._mode == "propose":
            return [] if self._accepted is None else [f"{path.name} is to be replaced: restarts were {alone}"]
        if self.baseline is None:
            others = get_close_matches(path.name, [p.name for p in path.parent.glob("*.baseline.json")], 3, 0.8)
            asked = self._profile.expect.kv.tokens.baseline and "expect.kv.tokens" in self._profile.origin
            if not (asked or others):
                return []
            beside = f" (beside the profile: {', '.join(others)})" if others else ""
            return [f"there is no {path.name}{beside}: restarts were {alone}"]
        planned = dict.fromkeys(["reference", *(r.population for r in self._profile.restarts)])
        unknown = [name for name in planned if name not in self.baseline.populations]
        held = ", ".join(self.baseline.populations) or "nothing"
        return [f"{path.name} holds {held}, and not {', '.join(unknown)}: {alone}"] if unknown else []

    def usual(self, population: str) -> Usual | None:
        """How long a start of this population usually takes by the baseline; None: it does not know."""
        if self._accepted is None or population not in self._accepted.populations:
            return None
        from statistics import median

        samples = self._accepted.populations[population].samples
        phases = {k.removeprefix("phase."): median(v) for k, v in samples.items() if k.startswith("phase.") and v}
        ready = samples.get("ready_seconds")
        return Usual(phases, median(ready) if ready else None)
