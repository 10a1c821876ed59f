"""The texts of a terminal: what a failing check prints, what a failed start prints, the table of a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_startup.checks.base import Finding, Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.profile.problems import printable
from pytest_startup.record import PHASES, Evidence, StartRecord
from pytest_startup.report.results import ProfileResult, StartRow
from pytest_startup.report.rows import failure_line

HEADS = {
    "device-init": "device",
    "preparation": "prepare",
    "kv-reservation": "kv",
    "graph-capture": "graphs",
}
#: The longest remark behind a row of the table; a failed start is told whole above it.
NOTE = 120
#: Phases without a column: their time is inside ``ready``, or after it.
UNSHOWN = ("launch", "serving", "shutdown")


def block(label: str, lines: Sequence[str], indent: str = "  ") -> list[str]:
    """``  observed  first`` and the other lines below it, aligned."""
    return [f"{indent}{label if i == 0 else '':<9} {line}".rstrip() for i, line in enumerate(lines)]


def expected_place(profile: Profile, expected_from: str | None, start: str) -> str:
    """Where the expectation stands: ``x.yaml:31``, ``reference start``, ``baseline``; nothing when it is built in."""
    if not expected_from:
        return ""
    if expected_from == "reference" and start != "reference":
        return "reference start"
    if expected_from in ("reference", "baseline"):
        return expected_from
    return profile.place(expected_from)


def evidence_line(evidence: Evidence, start: str, records: Mapping[str, StartRecord]) -> str:
    """``restart-2/head/engine.log:52  (rank TP1_EP1) text``: node and rank only where path and text don't show them."""
    place = evidence.place()
    if evidence.source == "log":
        place = f"{owner(evidence, start, records)}/{place}"
    who = [
        f"{word} {name}"
        for word, name in (("node", evidence.node), ("rank", evidence.rank))
        if name and name not in place and name not in evidence.text
    ]
    return "  ".join(part for part in (place, f"({', '.join(who)})" if who else "", printable(evidence.text)) if part)


def owner(evidence: Evidence, start: str, records: Mapping[str, StartRecord]) -> str:
    """The start that saw this: the one that is judged, unless only another one holds it."""
    for name in [start, *records]:
        record = records.get(name)
        if record and any(f.evidence == evidence for f in record.facts):
            return name
    return start


def finding_text(finding: Finding, profile: Profile, start: str, records: Mapping[str, StartRecord]) -> list[str]:
    """The lines of one finding, as in ``docs/pytest.md``."""
    place = expected_place(profile, finding.expected_from, start)
    expected = f"{printable(finding.expected)}     {place}" if place else printable(finding.expected)
    lines = [printable(finding.summary), *block("expected", [expected])]
    lines += block("observed", [printable(o) for o in finding.observed] or ["nothing"])
    lines += block("evidence", [evidence_line(e, start, records) for e in finding.evidence])
    return lines + block("helps", [printable(h) for h in finding.helps])


def verdict_text(verdict: Verdict, profile: Profile, start: str, records: Mapping[str, StartRecord]) -> str:
    """All that a check which is not green prints. The first line says when it is no failure proper."""
    lines: list[str] = []
    for finding in verdict.findings:
        lines += finding_text(finding, profile, start, records)
    if verdict.outcome.value != "failed":
        lines[0] = f"{verdict.outcome.value}: {lines[0]}"
    return "\n".join(lines)


def start_failure_text(record: StartRecord) -> str:
    """A start that failed: phase, rank, cause line, what helps and what would not."""
    failure = record.failure
    if failure is None:
        return f"start {record.name} did not get ready, and nothing says why"
    lines = [failure_line(record) or ""]
    if failure.cause:
        lines += block("cause", [evidence_line(failure.cause, record.name, {})])
    else:
        last = [evidence_line(e, record.name, {}) for e in failure.last_lines]
        lines += block("cause", ["no line explains it; the last lines were" if last else "no line explains it", *last])
    lines += block("helps", [printable(h) for h in failure.helps])
    lines += block("no help", [printable(h) for h in failure.no_help])
    return "\n".join(lines)


def sticky_text(record: StartRecord) -> str:
    """The one line of everything that a failed start makes impossible."""
    return f"{record.name}: {failure_line(record) or 'start failed'}"


def seconds_text(value: float | None) -> str:
    """``1,234.5s``; – for what is not known."""
    return "–" if value is None else f"{value:,.1f}s"


def table(rows: Sequence[StartRow]) -> list[str]:
    """Times by phase, ready, KV tokens and tok/s of every start. A dash: nothing stated it (that is not 0)."""
    seen = {phase for row in rows for phase in row.phases}
    phases = [p for p in PHASES if p in seen and p not in UNSHOWN]
    levels = sorted({c for row in rows for c in row.throughput}, key=int)
    head = ["", *(HEADS.get(p, p) for p in phases), "ready", "KV tokens", *(f"tok/s c{c}" for c in levels)]
    body = [
        [
            row.name,
            *(seconds_text(row.phases.get(p)) for p in phases),
            seconds_text(row.ready_seconds),
            row.kv_tokens or "–",
            *(f"{row.throughput[c]:,.1f}" if c in row.throughput else "–" for c in levels),
        ]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    out = []
    for row, line in zip([None, *rows], [head, *body], strict=True):
        cells = [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        text = "" if row is None else row.failed or row.note
        note = f"  ({text if len(text) <= NOTE else text[: NOTE - 1].rstrip() + '…'})" if text else ""
        out.append(("  ".join(cells) + printable(note)).rstrip())
    return out


def identity_line(identity: Mapping[str, str]) -> str:
    """``vllm 0.31.0 · model @ 0123456 · 2 ranks (TP0 TP1) · 2 × GH200 · driver 580.65 · 4 KiB pages``."""
    get = identity.get
    ranks = (get("ranks") or "").split()
    page = get("page-size") or ""
    model = get("model") or ""
    if model.startswith("/"):  # a folder; the whole path stands in the reports
        model = model.rstrip("/").rpartition("/")[2]
    parts = [
        f"{get('engine') or ''} {get('version') or '(version not seen)'}".strip(),
        f"{model} @ {(get('revision') or '')[:7]}" if get("revision") else model,
        f"image {get('image')}" if get("image") else "",
        f"{len(ranks)} rank{'s' if len(ranks) > 1 else ''} ({' '.join(ranks)})" if ranks else "",
        (f"{get('gpus')} × " if get("gpus") else "") + (get("gpu") or ""),
        f"driver {get('driver')}" if get("driver") else "",
        f"{int(page) // 1024} KiB pages" if page.isdigit() else "",
    ]
    return printable(" · ".join(part for part in parts if part))


def counts_text(result: ProfileResult) -> str:
    """``12 passed, 1 failed.``"""
    names = {"error": "errors"}
    return ", ".join(f"{n} {names.get(name, name)}" for name, n in result.counts().items()) + "."


def verdict_line(result: ProfileResult) -> str:
    """``REJECTED  restart-2: autotune (TP1_EP1). 27 passed, 1 failed, …``."""
    if result.status == "PREFLIGHT":
        done = list(result.results.values())
        fit = "was not looked at" if not done else "is fit; nothing was started" if done[0].green else "is not fit"
        return f"PREFLIGHT  the host {fit}"
    failed: dict[str, list[str]] = {}
    for item in result.red:
        if item.outcome == "error":
            continue
        ranks = f" ({', '.join(item.ranks)})" if item.ranks else ""
        cause = result.rows[item.start].failed if item.start in result.rows else None
        name = cause.partition(": ")[0] if cause and item.check == "ready" else item.check + ranks
        failed.setdefault(item.start, []).append(printable(name))
    names = [f"{start}: {', '.join(checks)}" for start, checks in failed.items()]
    errors = [r for r in result.red if r.outcome == "error"]
    if errors and not names:
        why = printable(errors[0].summary.partition("\n")[0]).removesuffix(".")
        names = [why if why.startswith(f"{errors[0].start}: ") else f"{errors[0].start}: {errors[0].check}"]
    what = f"{'; '.join(names)}. " if names else ""
    if result.left_behind:
        what += "something was left behind at the end. "
    if result.ended:
        what += "the engine did not live until it was stopped. "
    if result.status == "INCOMPLETE":
        what = "no acceptance from a part of the gate. " if result.results else "none of its checks was run. "
        if result.hidden:
            what += f"{len(result.hidden)} were taken out by another plugin or a conftest without a word. "
    return f"{result.status}  {what}{counts_text(result)}"


def waived_lines(result: ProfileResult) -> list[str]:
    """One line per waiver that was needed, with the starts for which it was."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for item in result.ordered():
        if item.waived is not None:
            groups.setdefault((item.check, item.outcome, item.waived), []).append(item.start)
    return [
        f"waived    {check}: {outcome} ({_named(starts)}): {printable(reason)}"
        for (check, outcome, reason), starts in groups.items()
    ]


def unseen_lines(result: ProfileResult) -> list[str]:
    """Checks that no start shows, the reference neither, and how a profile says that this is known. Where only some
    starts lack it, something was lost: nothing to waive."""
    outcomes: dict[str, set[str]] = {}
    for item in result.ordered():
        outcomes.setdefault(item.check, set()).add("green" if item.green else item.outcome)
    judged = {item.check for item in result.ordered() if item.start == "reference"}
    never = [c for c, seen in outcomes.items() if c in judged and seen == {"not observable"}]
    if not never:
        return []
    waiver = f"waive: [{{check: {never[0]}, reason: …}}]"
    return [f"no start shows {', '.join(never)}: where this engine never can, the profile says so: {waiver}"]


def left_up_lines(result: ProfileResult) -> list[str]:
    """One line per start in which nodes were left up: what they have to show is of the start that launched them."""
    lines = []
    for row in result.rows.values():
        if not row.left_up:
            continue
        items = [i for i in result.ordered() if i.start == row.name and i.numbers.get("rests on")]
        rests = (
            f"; {', '.join(i.check for i in items)}: what they rest on is of {items[0].numbers['rests on']}"
            if items
            else ""
        )
        lines.append(f"left up   {row.name}: {row.left_up}: not started, so nothing of it is judged{rests}")
    return lines


def _named(starts: Sequence[str]) -> str:
    return ", ".join(starts) if len(starts) <= 4 else f"{starts[0]}, {starts[1]} … {starts[-1]}: {len(starts)} starts"


def summary(result: ProfileResult) -> list[tuple[str, str]]:
    """The lines of a profile at the end of a run, each with a colour (``""``, green, red, yellow, bold)."""
    colour = {"ACCEPTED": "green", "REJECTED": "red"}.get(result.status, "red" if result.red else "yellow")
    lines: list[tuple[str, str]] = []
    if result.rows:
        lines.append((identity_line(result.identity), "bold"))
        lines += [(line, "") for line in table(list(result.rows.values()))]
    lines += [(line, "yellow") for line in (*left_up_lines(result), *waived_lines(result))]
    lines += [(printable(line), "") for line in (*unseen_lines(result), *result.notes)]
    lines.append((verdict_line(result), colour))
    if result.folder:
        lines.append((f"evidence in {result.folder}", ""))
    return lines
