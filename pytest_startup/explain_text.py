"""What ``explain`` prints for people: the starts of a log, their phases, facts and failure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pytest_startup.engines.base import LogSummary
from pytest_startup.engines.lines import Line
from pytest_startup.engines.rules import shortened
from pytest_startup.record import JSON, Fact, PhaseSpan

#: Facts of which a serving log holds one every few seconds: only the first, the last and their number are shown.
_SERIES = ("cache.prefix_hit_rate", "cache.external_hit_rate", "spec.accepted", "spec.drafted", "serving.stalled")
#: Facts that are worth a warning, with what they mean.
_WARNINGS = {
    "artifact.missing": "missing, stale, corrupt or defaulted",
    "backend.fallback": "not the backend that was asked for, or a slow one",
    "graphs.downgraded": "fewer CUDA graphs than asked for",
    "memory.oom": "out of memory",
    "device.warning": "limit of this device",
    "compile.jit_in_serving": "compiled while serving",
    "autotune.fallback": "no tuned tactic",
    "autotune.refused": "tuning records refused",
    "tier.degraded": "offload tier degraded",
    "serving.stalled": "requests wait and nothing runs",
}
_HIDDEN = ("engine.args",)
_ROWS = 60
_WIDTH = 72


@dataclass
class _Row:
    value: str
    lines: list[str] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)
    count: int = 0


class Digest:
    """Collects facts, equal ones together, in bounded memory."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._rows: dict[int, dict[tuple[str, str], _Row]] = {}
        self._series: dict[tuple[int, str], list[Fact]] = {}
        self._counts: dict[tuple[int, str], int] = {}

    def facts(self, facts: Iterable[Fact]) -> None:
        """Take note of more facts."""
        for fact in facts:
            if fact.name in _SERIES:
                key = (fact.start, fact.name)
                reports = fact.detail.get("reports")
                self._counts[key] = reports if isinstance(reports, int) else self._counts.get(key, 0) + 1
                ends = self._series.setdefault(key, [])
                del ends[1:]
                ends.append(fact)
                continue
            rows = self._rows.setdefault(fact.start, {})
            value = _value(fact)
            row = rows.get((fact.name, value))
            if row is None:
                if len(rows) >= 400:
                    continue
                row = rows[(fact.name, value)] = _Row(value)
            row.count += 1
            place = self._place(fact)
            if len(row.lines) < 4 and fact.evidence.line is not None and place not in row.lines:
                row.lines.append(place)
            if fact.rank and fact.rank not in row.ranks and len(row.ranks) < 16:
                row.ranks.append(fact.rank)

    def _place(self, fact: Fact) -> str:
        """``line 49``; of several logs ``worker.log:49``."""
        line = fact.evidence.line
        return f"line {line}" if len(self._paths) == 1 else f"{fact.evidence.where}:{line}"

    def text(self, summaries: Sequence[LogSummary], unknown: Sequence[Line]) -> str:
        """The report of the log."""
        count = f"{len(summaries)} starts" if len(summaries) != 1 else "1 start"
        out = [f"{' + '.join(self._paths)}: {count}"]
        for summary in summaries:
            out.extend(self._start(summary))
        if unknown:
            out.append("\nlines that look like facts but match no rule")
            out.extend(f"  line {line.number}: {shortened(line.message)[:160]}" for line in unknown)
        return "\n".join(out)

    def _start(self, summary: LogSummary) -> list[str]:
        name = summary.engine or "unknown engine"
        out = [
            "",
            f"start {summary.start} · {name} · lines {summary.first_line}-{summary.last_line} · {_verdict(summary)}",
        ]
        out.extend(_failure(summary, self._paths[0]))
        if summary.phases:
            out.append("  phases")
            out.extend(f"    {_phase(span)}" for span in summary.phases[:40])
        if summary.compile_reused is not None:
            word = {True: "reused", False: "not reused: compiled again", "partial": "reused in part"}
            out.append(f"  compile cache  {word[summary.compile_reused]}")
        rows = self._rows.get(summary.start, {})
        shown = [(n, r) for (n, _), r in rows.items() if n not in _HIDDEN and n not in _WARNINGS]
        if shown:
            out.append("  facts")
            out.extend(f"    {n:<24} {_cut(r.value)}{_where(r)}" for n, r in sorted(shown, key=lambda x: x[0])[:200])
        out.extend(self._ends(summary.start))
        warned = [(n, r) for (n, _), r in rows.items() if n in _WARNINGS]
        if warned:
            out.append("  warnings")
            out.extend(f"    {n} ({_WARNINGS[n]}): {_cut(r.value)}{_where(r)}" for n, r in warned[:_ROWS])
        return out

    def _ends(self, start: int) -> list[str]:
        out = []
        for (index, name), ends in self._series.items():
            if index == start:
                first, last = ends[0], ends[-1]
                out.append(
                    f"    {name:<24} {_value(first)} ({self._place(first)}) … {_value(last)}"
                    f" ({self._place(last)}), {self._counts[(index, name)]} reports"
                )
        return out


def _verdict(summary: LogSummary) -> str:
    if summary.engine is None and summary.failed is None and summary.last_phase == "launch":
        return "nothing of an engine that is known here"
    if summary.failed:
        return "FAILED"
    if summary.ready:
        return f"ready (line {summary.ready_line})"
    if summary.ready is False:
        return "not ready"
    phase = f", last seen in {summary.last_phase}" if summary.last_phase else ""
    return f"died silently or still running{phase}"


def _failure(summary: LogSummary, path: str) -> list[str]:
    failure = summary.failure
    if failure is None or (summary.failed is None and summary.engine is None and failure.cause is None):
        return []
    rank = f" on rank {failure.rank.removeprefix('rank').lstrip('=')}" if failure.rank else ""
    after = f" after {failure.after_seconds:.0f} s" if failure.after_seconds is not None else ""
    how = "failed" if summary.failed else "ended"
    out = [f"  {how} in phase {failure.phase or 'unknown'}{rank}{after}: {failure.summary} [{failure.kind}]"]
    if failure.cause is not None:
        out.append(f"    cause    {failure.cause.where or path}:{failure.cause.line}  {failure.cause.text[:200]}")
    if failure.helps:
        out.append(f"    helps    {'; '.join(failure.helps)}")
    if failure.no_help:
        out.append(f"    no help  {'; '.join(failure.no_help)}")
    return out


def _phase(span: PhaseSpan) -> str:
    seconds = "" if span.seconds is None else f"{span.seconds:.1f} s ({span.source})"
    rank = f" {span.rank}" if span.rank else ""
    node = f" of {span.node}" if span.node else ""
    return f"{span.phase + rank:<24} {seconds:<20} lines {span.first_line}-{span.last_line}{node}".rstrip()


def _value(fact: Fact) -> str:
    value: JSON = fact.value
    if isinstance(value, dict):
        done, total = value.get("done"), value.get("total")
        if done is not None and total is not None:
            return f"{done}/{total} {value.get('kind') or ''}".strip()
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, list):
        return json.dumps(value)
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    unit = {"percent": " %", "s": " s", None: ""}.get(fact.unit, f" {fact.unit}")
    notes = [str(fact.detail[key]) for key in ("role", "at") if key in fact.detail]
    if isinstance(tokens := fact.detail.get("tokens_per_request"), int):
        notes.append(f"{tokens:,} tokens each")
    if fact.detail.get("requested"):
        notes.append("requested")
    noted = f" ({', '.join(notes)})" if notes else ""
    return f"{text}{unit}{noted}"


def _cut(value: str) -> str:
    return value if len(value) <= _WIDTH else value[: _WIDTH - 1] + "…"


def _where(row: _Row) -> str:
    ranks = f"  {' '.join(row.ranks)}" if row.ranks else ""
    times = f" ×{row.count}" if row.count > 1 else ""
    if not row.lines:
        return f"{times}{ranks}"
    first, *others = row.lines
    return f"{times}{ranks}  ({', '.join([first, *(other.removeprefix('line ') for other in others)])})"
