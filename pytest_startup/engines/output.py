"""Facts and summaries as JSON, one item at a time, so that a long log's output streams."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO

from pytest_startup.engines.base import LogSummary
from pytest_startup.engines.lines import Line
from pytest_startup.engines.rules import shortened
from pytest_startup.record import JSON, Evidence, Fact, PhaseSpan
from pytest_startup.record_json import fact_to_json


def summary_to_json(summary: LogSummary, where: str) -> dict[str, JSON]:
    """The ``starts`` entry of ``explain --json`` (``schemas/explain.schema.json``)."""
    failure: dict[str, JSON] = {"failed": summary.failed, "phase": None, "cause": None}
    if summary.failure is not None:
        found = summary.failure
        failure.update(phase=found.phase, kind=found.kind, summary=found.summary)
        failure["cause"] = _evidence(found.cause) if found.cause else None
        for key in ("rank", "node", "after_seconds"):
            value = getattr(found, key)
            if value is not None:
                failure[key] = value
        failure["helps"] = list(found.helps)
        failure["no_help"] = list(found.no_help)
    return {
        "start": summary.start,
        "where": where,
        "engine": summary.engine,
        "first_line": summary.first_line,
        "last_line": summary.last_line,
        "ready": {"value": summary.ready, "line": summary.ready_line},
        "failure": failure,
        "compile_reused": summary.compile_reused,
        "phases": [_phase(p) for p in summary.phases],
        "last_phase": summary.last_phase,
    }


def _evidence(evidence: Evidence) -> dict[str, JSON]:
    out: dict[str, JSON] = {"line": evidence.line, "text": evidence.text, "rank": evidence.rank}
    if evidence.node:
        out["node"] = evidence.node
    return out


def _phase(span: PhaseSpan) -> dict[str, JSON]:
    keys = ("phase", "rank", "node", "first_line", "last_line", "seconds", "source")
    out: dict[str, JSON] = {key: value for key in keys if (value := getattr(span, key)) is not None}
    out.setdefault("seconds", None)
    return out


def unknown_to_json(line: Line, where: str) -> dict[str, JSON]:
    """A line that looks like a fact but matches no rule."""
    out: dict[str, JSON] = {"where": where, "line": line.number, "text": shortened(line.text)}
    if line.rank:
        out["rank"] = line.rank
    return out


class JsonStream:
    """Writes ``{"facts": [...], "starts": [...]}`` piece by piece. ``unknown`` adds a third member."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._first = True
        out.write('{"facts": [')

    def facts(self, facts: Iterable[Fact]) -> None:
        """Further facts of the list that is open."""
        rows = [json.dumps(fact_to_json(fact), ensure_ascii=False) for fact in facts]
        if rows:
            self.raw(",\n".join(rows))

    def raw(self, rows: str) -> None:
        """Rows that are JSON already, joined by commas."""
        self._out.write(("\n" if self._first else ",\n") + rows)
        self._first = False

    def close(self, starts: Iterable[dict[str, JSON]], **more: JSON) -> None:
        rest = "".join(f",\n{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in more.items())
        rows = ",\n".join(json.dumps(s, ensure_ascii=False) for s in starts)
        self._out.write(f'\n],\n"starts": [\n{rows}\n]{rest}}}\n')
