"""Runs of the gate on real GPUs (``tests/data/h200/gate``), replayed: read and judged by the rules of today."""

from __future__ import annotations

import json
import tarfile
import tempfile
from functools import cache
from pathlib import Path

from pytest_startup.checks.base import Outcome, Verdict
from pytest_startup.gate import StartFailed
from pytest_startup.options import Options
from pytest_startup.profile.load import load
from pytest_startup.record_json import record_from_json
from pytest_startup.replay import ReplayGate
from pytest_startup.waivers import judge

RUNS = Path(__file__).parent / "data" / "h200" / "gate"


@cache
def verdicts(run: str) -> dict[str, dict[str, Verdict]]:
    """Start → check → verdict, waivers applied, as far as the run got."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(RUNS / f"{run}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        return _judged(Path(folder))


def rates(run: str, start: str) -> list[float]:
    """Output tokens per second of each batch of a start."""
    with tarfile.open(RUNS / f"{run}.tar.xz") as archive:
        file = archive.extractfile(f"{start}/record.json")
        assert file is not None
        return [s.tokens_per_second for s in record_from_json(json.load(file)).throughput]


def _judged(folder: Path) -> dict[str, dict[str, Verdict]]:
    profile = load(folder / "profile.yaml", {}, need_environment=False)
    gate = ReplayGate(profile, Options(root=folder, replay=folder), folder)
    found: dict[str, dict[str, Verdict]] = {}
    for start in gate.start_names():
        for check in gate.check_names():
            try:
                judged = judge(profile, gate.verdict(start, check))
            except StartFailed:
                continue
            found.setdefault(start, {})[check] = judged.verdict
            if judged.waived:
                found[start].pop(check)
    return found


def red(run: str) -> dict[str, dict[str, Verdict]]:
    """Start → the checks that are not green."""
    starts = verdicts(run)
    return {
        start: {check: v for check, v in checks.items() if v.outcome is not Outcome.PASSED}
        for start, checks in starts.items()
    }
