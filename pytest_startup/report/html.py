"""The HTML report: one file without scripts, fonts or network; every text in it is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from pytest_startup.profile.problems import printable
from pytest_startup.record import PHASES
from pytest_startup.report import terminal
from pytest_startup.report.results import ItemResult, ProfileResult, StartRow

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }
h1 { font-size: 1.3em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; margin: 1em 0; } th, td { padding: .25em .7em; border-bottom: 1px solid #ddd; }
th { text-align: left; font-weight: 600; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: #f6f6f6; padding: .8em; overflow-x: auto; white-space: pre-wrap; }
.passed, .ACCEPTED { color: #176f2c; } .failed, .error, .REJECTED { color: #b3141c; }
.waived, .INCOMPLETE, .not { color: #8a5a00; } svg { display: block; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } pre { background: #242424; }
 th, td { border-color: #444; } .passed, .ACCEPTED { color: #6fcf85; } .failed, .error, .REJECTED { color: #ff8a8a; }
 .waived, .INCOMPLETE, .not { color: #e0b050; } }
"""
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#9c755f", "#edc948", "#bab0ac", "#d37295")


def text(value: object) -> str:
    """Escaped, control characters made visible; nothing that was logged can become markup."""
    return escape(printable(str(value)), quote=True)


def document(results: Sequence[ProfileResult]) -> str:
    """The whole page: no script, nothing from elsewhere."""
    body = "".join(section(result) for result in results)
    title = text(", ".join(f"{r.name}: {r.status}" for r in results))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{STYLE}</style></head><body><h1>Restart validation</h1>{body}</body></html>\n"
    )


def section(result: ProfileResult) -> str:
    """One profile."""
    rows = list(result.rows.values())
    parts = [
        f'<h2>{text(result.name)} <span class="{result.status}">{result.status}</span></h2>',
        f"<p>{text(terminal.verdict_line(result))}</p>",
        table(["", ""], [[(k, ""), (v, "")] for k, v in result.identity.items()]) if result.identity else "",
        bars(rows),
        starts(rows),
        checks(result),
        *(red(item) for item in result.red if item.text),
        *(f"<p>{text(line)}</p>" for line in (*terminal.waived_lines(result), *terminal.left_up_lines(result))),
        *(f"<p>{text(note)}</p>" for note in result.notes),
        f"<p>evidence in {text(result.folder)}</p>" if result.folder else "",
    ]
    return "".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[tuple[object, str]]]) -> str:
    """Cells are (text, class)."""
    top = "".join(f"<th>{text(h)}</th>" for h in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f'<td class="{c}">{text(t)}</td>' for t, c in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{top}</tr>' if top else ''}{body}</table>"


def starts(rows: Sequence[StartRow]) -> str:
    """A row for each start: phases, readiness, capacity, throughput."""
    if not rows:
        return ""
    phases = [p for p in PHASES if any(p in row.phases for row in rows)]
    levels = sorted({c for row in rows for c in row.throughput}, key=int)
    head = ["start", "kind", *phases, "ready", "KV tokens", *(f"tok/s c{c}" for c in levels), ""]
    body = []
    for row in rows:
        cells: list[tuple[object, str]] = [(row.name, ""), (row.population, "")]
        cells += [(terminal.seconds_text(row.phases.get(p)), "n") for p in phases]
        cells += [(terminal.seconds_text(row.ready_seconds), "n"), (row.kv_tokens or "–", "n")]
        cells += [(f"{row.throughput[c]:,.1f}" if c in row.throughput else "–", "n") for c in levels]
        body.append([*cells, (row.failed or row.note, "failed" if row.failed else "")])
    return table(head, body)


def checks(result: ProfileResult) -> str:
    """Checks down, starts across; what was never judged says so."""
    names = list(dict.fromkeys(start for start, _ in result.expected))
    body: list[list[tuple[object, str]]] = []
    for check in dict.fromkeys(check for _, check in result.expected):
        cells: list[tuple[object, str]] = [(check, "")]
        for start in names:
            item = result.results.get((start, check))
            cells.append(("not run", "not") if item is None else (state(item), state(item).split()[0]))
        body.append(cells)
    return table(["check", *names], body)


def state(item: ItemResult) -> str:
    """The outcome, as the cell of a check shows it."""
    return f"waived ({item.outcome})" if item.waived is not None else item.outcome


def red(item: ItemResult) -> str:
    """What the terminal said of an item that is not green."""
    lines = "\n".join(text(line) for line in item.text.splitlines())
    return f"<h3>{text(item.start)}: {text(item.check)}</h3><pre>{lines}</pre>"


def bars(rows: Sequence[StartRow]) -> str:
    """One bar per start, its phases in order, to one scale (seconds)."""
    totals = [max(sum(row.phases.values()), row.ready_seconds or 0.0) for row in rows]
    longest = max(totals, default=0.0)
    if longest <= 0:
        return ""
    colours = {phase: COLOURS[i % len(COLOURS)] for i, phase in enumerate(PHASES)}
    parts = []
    for y, row in enumerate(rows):
        x = 120.0
        parts.append(f'<text x="0" y="{y * 22 + 14}" font-size="12" fill="currentColor">{text(row.name)}</text>')
        for phase in PHASES:
            seconds = row.phases.get(phase)
            if seconds:
                width = 700 * seconds / longest
                parts.append(
                    f'<rect x="{x:.1f}" y="{y * 22 + 2}" width="{width:.1f}" height="16" fill="{colours[phase]}">'
                    f"<title>{text(phase)} {seconds:.1f} s</title></rect>"
                )
                x += width
    return f'<svg width="830" height="{len(rows) * 22 + 6}" role="img">{"".join(parts)}</svg>'


def write(results: Sequence[ProfileResult], path: Path) -> None:
    """One page for all profiles."""
    path.write_text(document(results), encoding="utf-8")
