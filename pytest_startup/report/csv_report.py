"""The CSV report: one row per start, for a spreadsheet or a campaign. An empty cell was not seen; it is never 0."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from pytest_startup.record import PHASES
from pytest_startup.report.results import ProfileResult

#: A cell that a spreadsheet would run as a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table(results: Sequence[ProfileResult]) -> list[list[str]]:
    """Header, then per start: population, status, seconds per phase and to ready, KV tokens, tok/s, red checks, the
    failure, waivers with their reasons."""
    phases = [p for p in PHASES if any(p in row.phases for r in results for row in r.rows.values())]
    levels = sorted({c for r in results for row in r.rows.values() for c in row.throughput}, key=int)
    head = ["profile", "start", "population", "status", *(f"{p} (s)" for p in phases), "ready (s)", "KV tokens"]
    head += [*(f"tok/s c{c}" for c in levels), "not green", "failure", "waived"]
    out = [head]
    for result in results:
        for row in result.rows.values():
            red = [i.check for i in result.red if i.start == row.name]
            waived = [
                f"{i.check}: {i.waived}" for i in result.ordered() if i.start == row.name and i.waived is not None
            ]
            cells: list[str | float | None] = [result.name, row.name, row.population]
            cells += ["failed" if row.failed else "rejected" if red else "ok", *(row.phases.get(p) for p in phases)]
            cells += [row.ready_seconds, (row.kv_tokens or "").replace(",", "")]
            cells += [*(row.throughput.get(c) for c in levels), " ".join(red), row.failed, "; ".join(waived)]
            out.append([cell(c) for c in cells])
    return out


def cell(value: str | float | None) -> str:
    """Text that a spreadsheet could take for a formula is quoted."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def write(results: Sequence[ProfileResult], path: Path) -> None:
    """One table for all profiles."""
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        csv.writer(file).writerows(table(results))
