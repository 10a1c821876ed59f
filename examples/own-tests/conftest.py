"""What a repository can add to the gate: a launcher, a dialect, a check, a report. See ``docs/pytest.md``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from toy_dialect import ToyDialect
from toy_launcher import ToyLauncher

from pytest_startup.baseline import Baseline
from pytest_startup.checks.base import Check, Finding, Outcome, Verdict
from pytest_startup.engines.base import Dialect
from pytest_startup.launch.base import Launcher
from pytest_startup.profile.model import Profile
from pytest_startup.record import Evidence, StartRecord
from pytest_startup.report.results import ProfileResult


def boot_time(
    profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None
) -> Verdict:
    """Is it ready within ten seconds? A start without a time is no pass."""
    seconds = start.ready_seconds
    if seconds is None:
        finding = Finding("the time to ready is not known", "at most 10 s", ("not seen",))
        return Verdict("boot-time", Outcome.NOT_OBSERVABLE, (finding,))
    evidence = Evidence("endpoint", "first completion", f"after {seconds:.1f} s", seconds=seconds)
    if seconds > 10:
        finding = Finding("it boots too slowly", "at most 10 s", (f"{seconds:.1f} s",), (evidence,))
        return Verdict("boot-time", Outcome.FAILED, (finding,))
    return Verdict("boot-time", Outcome.PASSED, evidence=(evidence,), numbers={"ready s": round(seconds, 2)})


def pytest_startup_checks() -> Mapping[str, Check]:
    return {"boot-time": boot_time}


def pytest_startup_launchers() -> Mapping[str, Callable[[], Launcher]]:
    return {"toy": ToyLauncher}


def pytest_startup_dialects() -> Mapping[str, Dialect]:
    return {"toy": ToyDialect()}


def write_lines(results: Sequence[ProfileResult], path: Path) -> None:
    path.write_text("".join(f"{r.name} {r.status}\n" for r in results), encoding="utf-8")


def pytest_startup_reports() -> Mapping[str, Callable[[Sequence[ProfileResult], Path], None]]:
    return {"lines": write_lines}
