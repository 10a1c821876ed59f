"""The replayed gate: the same checks on a saved run, without an engine; logs and answers are read again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_startup import assemble
from pytest_startup.artifacts import RESOLVED, ArtifactsError, read_manifest, read_record, read_resolved
from pytest_startup.gate import REFERENCE
from pytest_startup.launch.base import LaunchError
from pytest_startup.profile.resolve import resolved_json
from pytest_startup.recorded import RecordedGate
from pytest_startup.redact import MASK, Redactor

if TYPE_CHECKING:
    from pytest_startup.launch.base import Running
    from pytest_startup.options import Options
    from pytest_startup.profile.expect import Prompt
    from pytest_startup.profile.model import Profile
    from pytest_startup.record import Completion, StartRecord


class ReplayGate(RecordedGate):
    """See ``gate.Gate``. ``folder`` is a run's folder as ``--startup-artifacts`` left it."""

    def __init__(self, profile: Profile, options: Options, folder: Path) -> None:
        super().__init__(profile, options)
        self._folder = folder
        manifest = read_manifest(folder)
        if manifest.get("profile") != profile.name:
            raise ArtifactsError(
                f"{folder} is a run of profile {manifest.get('profile')!r}; {profile.path.name} is {profile.name!r}"
            )
        if other := launched_otherwise(read_resolved(folder), profile):
            raise ArtifactsError(
                f"{folder} was run with another {other} than {profile.path.name} has: a replay judges what was run; "
                "what a profile expects of it may change, not what is launched"
            )
        self._names = [str(name) for name in manifest["starts"]]
        saved = manifest.get("verdicts")
        self._saved_verdicts: Mapping[str, object] = saved if isinstance(saved, dict) else {}

    def start_names(self) -> Sequence[str]:
        planned = [REFERENCE, *(r.name for r in self.profile.restarts)]
        return [*planned, *(n for n in self._names if n not in planned and not n.startswith("extra-"))]

    @property
    def folder(self) -> Path | None:
        return self._folder

    def preflight(self) -> Sequence[str]:
        return []

    def _obtain(self, name: str) -> None:
        if name not in self._names:
            raise LaunchError(f"{self._folder} holds no start {name!r}: that run made {', '.join(self._names)}")
        try:
            saved = read_record(self._folder, name)
            self._is_of(saved, name)
            self._records[name] = assemble.reread(saved, self._folder / name, self.profile, self._judge.dialect)
        except ArtifactsError as error:
            raise LaunchError(str(error)) from None

    def _is_of(self, saved: StartRecord, name: str) -> None:
        """A record that was copied, or put there, shows nothing of this start. Raises ArtifactsError."""
        kinds = {r.name: r.kind for r in self.profile.restarts}
        wanted = (self.profile.name, name, kinds.get(name, saved.kind))
        if (saved.profile, saved.name, saved.kind) != wanted:
            raise ArtifactsError(
                f"{self._folder / name} holds the record of {saved.profile} {saved.name} ({saved.kind}), not of "
                f"{' '.join(wanted[:2])} ({wanted[2]})"
            )

    def engine(self) -> Running:
        raise LaunchError("a replay has no engine: tests that need one can't run with --startup-replay")

    def complete(self, prompt: Prompt) -> Completion:
        raise LaunchError(f"a replay has no engine to ask {prompt.prompt!r}")

    def notes(self) -> Sequence[str]:
        """The profile's warnings, and every verdict that is another one than when the run was made."""
        said = self._judge.said()
        return [
            *self.profile.warnings,
            *self._judge.notes(),
            *(
                f"{item} is {said[item]} now; it was {was} when the run was made"
                for item, was in self._saved_verdicts.items()
                if item in said and said[item] != was
            ),
        ]

    def restart(self, kind: str | None = None) -> tuple[StartRecord, StartRecord]:
        raise LaunchError(f"a replay can't restart ({kind or 'any kind'}): it has no engine")

    def close(self) -> None:
        """Nothing runs; a replay writes nothing."""


def launched_otherwise(saved: Mapping[str, Any], profile: Profile) -> str | None:
    """The key by which a saved profile launches another engine, or restarts it otherwise; None: by none.

    Paths and values of the environment may differ: a run is also judged on another machine. Raises ArtifactsError.
    """
    if not saved:
        return None
    try:
        before, now = _launched(saved, profile), _launched(resolved_json(profile), profile)
    except (KeyError, TypeError, AttributeError):
        raise ArtifactsError(f"the saved profile of this run is damaged: {RESOLVED}") from None
    return next((key for key, value in before.items() if now.get(key, value) != value), None)


def _launched(data: Mapping[str, Any], profile: Profile) -> dict[str, object]:
    """What of a resolved profile decides what is launched, by key; secrets are all the same."""
    redactor, engine = Redactor(profile.secrets), data["engine"]

    def words(args: Any) -> list[str]:
        return [re.sub(r"\$\{\w+\}", lambda _: MASK, word) for word in redactor.argv(map(str, args))]

    out: dict[str, object] = {
        "engine.kind": engine["kind"],
        "engine.model": engine["model"],
        "engine.args": words(engine["args"]),
        "engine.env": sorted(engine["env"]),
    }
    for restart in data["restarts"]:
        how = [restart.get(key) or None for key in ("drop_page_cache", "wipe", "nodes")]
        out[f"restarts ({restart['name']})"] = (*how, words(restart["change"]["args"]))
    return out
