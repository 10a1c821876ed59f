"""identity: what runs is what is pinned, and the same on a restart as on the reference start."""

from __future__ import annotations

from pytest_startup.baseline import Baseline, mismatch
from pytest_startup.checks import common, identity_pinned
from pytest_startup.checks.base import Verdict
from pytest_startup.checks.identity_restart import same_as_reference, silent_ranks
from pytest_startup.profile.model import Profile
from pytest_startup.record import StartRecord


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges version, model, revision, arguments, image, files, host and GPUs; then equality with the reference."""
    judging = common.Judging("identity", "version, model, arguments, image, GPU or host facts of this start")
    identity_pinned.version(judging, profile, start)
    identity_pinned.model(judging, profile, start)
    identity_pinned.revision(judging, profile, start)
    identity_pinned.arguments(judging, profile, start)
    identity_pinned.image(judging, profile, start)
    identity_pinned.files(judging, profile, start)
    identity_pinned.host(judging, profile, start)
    if reference is not None:
        same_as_reference(judging, profile, reference, start)
    if baseline is not None and (reasons := mismatch(baseline, profile, start)):
        judging.failed(
            "the baseline was accepted for something else, so nothing was compared with it: " + reasons[0],
            "the identity of the baseline",
            reasons,
            helps=("validate this engine anew and propose a new baseline (--startup-baseline propose)",),
            source="baseline",
        )
    elif (
        start.failure is None
        and (known := common.population(baseline, start))
        and (missing := silent_ranks(known.values.get("ranks"), start))
    ):
        judging.not_observable(
            f"no line of this start is of rank {common.listed(missing)}, which the baseline has",
            common.listed(missing, 16),
            "a line of each rank",
            source="baseline",
        )
    return judging.verdict()
