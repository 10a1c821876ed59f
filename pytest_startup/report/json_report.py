"""The JSON report: everything the other reports show, for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_startup.report.results import ProfileResult

REPORT_SCHEMA = 1


def document(results: Sequence[ProfileResult]) -> dict[str, Any]:
    """``{schema, profiles: [{name, profile, status, counts, identity, folder, starts, checks, missing, notes}]}``."""
    return {"schema": REPORT_SCHEMA, "profiles": [one(result) for result in results]}


def one(result: ProfileResult) -> dict[str, Any]:
    """One profile: what was judged, on which starts, with which outcomes."""
    return {
        "name": result.name,
        "profile": result.key,
        "status": result.status,
        "counts": result.counts(),
        "identity": dict(result.identity),
        "folder": result.folder,
        "starts": [asdict(row) for row in result.rows.values()],
        "checks": [asdict(item) for item in result.ordered()],
        "missing": [{"start": start, "check": check} for start, check in result.missing],
        "notes": list(result.notes),
    }


def write(results: Sequence[ProfileResult], path: Path) -> None:
    """Half a surrogate pair, which a log may hold, is written as JSON's own escape of it."""
    text = json.dumps(document(results), indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
