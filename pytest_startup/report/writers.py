"""Who writes which report at the end of a run; a report that can't be written is a note, never a changed verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest_startup.report.annotations as github
from pytest_startup.report import csv_report, html, json_report
from pytest_startup.report.results import ProfileResult

Writer = Callable[[Sequence[ProfileResult], Path], None]

WRITERS: Mapping[str, Writer] = {"json": json_report.write, "html": html.write, "csv": csv_report.write}


def write_all(
    results: Sequence[ProfileResult],
    wanted: Sequence[tuple[str, Path]],
    added: Mapping[str, Writer],
    environ: Mapping[str, str],
) -> list[str]:
    """Write what was asked for, and GitHub's annotations where its runner asks; returns one note per report."""
    notes = []
    for kind, path in wanted:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            {**WRITERS, **added}[kind](results, path)
        except Exception as error:
            notes.append(f"report {kind}={path} was not written: {type(error).__name__}: {error}")
        else:
            notes.append(f"report in {path}")
    if environ.get("GITHUB_ACTIONS") == "true":
        summary = environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            try:
                with open(summary, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(github.step_summary(results))
            except OSError as error:
                notes.append(f"the step summary was not written: {error}")
    return notes
