"""The gate of one profile: its starts in order, lazily, each judged by every check; a failed start is sticky."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_startup.baseline import Baseline
from pytest_startup.checks.base import Verdict
from pytest_startup.launch.base import Running
from pytest_startup.profile.expect import Prompt
from pytest_startup.profile.model import Profile
from pytest_startup.record import Completion, StartRecord

if TYPE_CHECKING:
    from pytest_startup.options import Options


#: How the note of what is left behind at the end of a run begins: it makes the run red.
NOT_RELEASED = "not released: "
#: How the note begins that an engine of the user's own tests did not live until it was stopped: red, too.
ENDED = "ended by itself: "


class StartFailed(Exception):
    """A start that this item rests on has failed; ``record.failure`` says why. Raised for every later item."""

    def __init__(self, record: StartRecord) -> None:
        super().__init__(f"start {record.name} failed")
        self.record = record


class Gate(Protocol):
    """What the pytest side sees, live or replayed."""

    profile: Profile

    def start_names(self) -> Sequence[str]:
        """``reference``, ``restart-1`` … in order."""

    def check_names(self) -> Sequence[str]:
        """The checks in the order in which they are shown."""

    def record(self, start: str) -> StartRecord:
        """The record of a start; runs it, and those before it, if that has not been done. Raises StartFailed."""

    def verdict(self, start: str, check: str) -> Verdict:
        """The verdict, waivers not applied. Raises StartFailed (not for the checks ``ready``, ``phases``, ``cleanup``,
        ``identity`` and ``log`` of the failed start itself, which can be judged)."""

    def records(self) -> Mapping[str, StartRecord]:
        """What has been recorded so far."""

    def close(self) -> None:
        """Stop what runs, remove what is ours, write the run's manifest. Idempotent."""

    @property
    def folder(self) -> Path | None:
        """The run's artifacts folder; None as long as nothing has been written."""

    @property
    def baseline(self) -> Baseline | None:
        """The baseline that the checks are given; None: there is none, or it is ignored."""

    def preflight(self) -> Sequence[str]:
        """Reasons why nothing should be started, all at once; touches nothing. Empty: go ahead."""

    def engine(self) -> Running:
        """The running engine, for the user's own tests: that of the last start as long as it runs, else a start beyond
        the profile's is made (``extra-1`` …). Raises StartFailed; LaunchError on a replay."""

    def complete(self, prompt: Prompt) -> Completion:
        """One greedy request to ``engine()``; what went wrong is in the answer. Raises as ``engine`` does."""

    def restart(self, kind: str | None = None) -> tuple[StartRecord, StartRecord]:
        """Restart the engine beyond the profile's restarts, and give the records before and after. ``kind`` None: that
        of the profile's first restart. Raises StartFailed; LaunchError on a replay."""

    def notes(self) -> Sequence[str]:
        """Lines for the end of the run (complete after ``close``): what was found left over and cleaned, what a
        proposed baseline changes and where it was written, why it was not."""


#: The name of the first start of a run, with which all later ones are compared.
REFERENCE = "reference"
#: Checks that can judge a failed start by what it left; all others rest on an engine that served.
SELF_JUDGED = ("identity", "ready", "phases", "log", "cleanup")


def open_gate(profile: Profile, options: Options) -> Gate:
    """The gate of a profile: replayed with ``--startup-replay``, else live. Raises ArtifactsError, BaselineError."""
    if options.replay is not None:
        from pytest_startup.replay import ReplayGate

        return ReplayGate(profile, options, options.replay)
    from pytest_startup.live import LiveGate

    return LiveGate(profile, options)
