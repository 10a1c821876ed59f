"""The state of a run behind the hooks: profiles read once, one gate each, the first failed start remembered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_startup.checks.base import Outcome, Verdict
from pytest_startup.gate import Gate, StartFailed
from pytest_startup.launch.base import LaunchError
from pytest_startup.options import Options
from pytest_startup.profile.model import Profile
from pytest_startup.profile.problems import printable
from pytest_startup.record import StartRecord
from pytest_startup.report import rows, terminal
from pytest_startup.report.results import PREFLIGHT, ItemResult, ProfileResult, to_wire
from pytest_startup.waivers import judge
from pytest_startup.workload.sessions import TURN_SECONDS


class Unusable(Exception):
    """An item can't be judged: a start that it rests on failed. ``text`` is printed, ``summary`` is its one line."""

    def __init__(self, summary: str, text: str) -> None:
        super().__init__(summary)
        self.summary = summary
        self.text = text


@dataclass
class GateRun:
    """One profile of a run: its gate, what was judged so far, and the first failure if there is one."""

    profile: Profile
    gate: Gate
    result: ProfileResult
    first_failure: StartRecord | None = None
    refused: str | None = None
    told: bool = False
    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)

    def judge(self, start: str, check: str) -> ItemResult:
        """The result of one check. Raises Unusable where a failed start leaves nothing to judge."""
        began = time.monotonic()
        if self.refused is not None:
            raise Unusable(self.refused, self.refused)
        try:
            verdict = self.gate.verdict(start, check)
        except StartFailed as failed:
            self.first_failure = self.first_failure or failed.record
            raise self.unusable(self.first_failure) from None
        except LaunchError as refused:
            self.refused = printable(f"{start}: nothing could be started: {refused}")
            raise Unusable(self.refused, f"nothing could be started: {refused}") from None
        except BaseException as error:
            # A defect, or pytest-timeout: told in full once, and the engine isn't started again.
            if start not in self.gate.records():
                first = (str(error).splitlines() or [""])[0]
                self.refused = printable(f"{start}: the start was broken off: {type(error).__name__}: {first}")
            raise
        self.verdicts[start, check] = verdict
        record = self.gate.records().get(start)
        if record is not None and record.failure is not None and self.first_failure is None:
            self.first_failure = record
        return self.item(start, check, verdict, time.monotonic() - began)

    def unusable(self, record: StartRecord) -> Unusable:
        """The whole cause once, one line for all that follow."""
        line = terminal.sticky_text(record)
        text = line if self.told else f"{record.name}: {terminal.start_failure_text(record)}"
        self.told = True
        return Unusable(line, text)

    def item(self, start: str, check: str, verdict: Verdict, seconds: float) -> ItemResult:
        """A verdict judged by the profile's waivers, with all that the reports say of it."""
        judged = judge(self.profile, verdict)
        final = judged.verdict
        record = self.gate.records().get(start)
        waived = judged.reason if judged.waived else None
        text = summary = ""
        line = None
        if waived is not None:
            summary = printable(waived)
        elif final.outcome is not Outcome.PASSED:
            text = terminal.verdict_text(final, self.profile, start, self.gate.records())
            if check == "ready" and record is not None and record.failure is not None and not self.told:
                text, self.told = terminal.start_failure_text(record), True
            summary = text.partition("\n")[0]
            place = terminal.expected_place(self.profile, final.findings[0].expected_from, start)
            line = int(place.rpartition(":")[2]) if place.rpartition(":")[2].isdigit() else None
        ranks = dict.fromkeys(e.rank for f in final.findings for e in f.evidence if e.rank)
        return ItemResult(
            start=start,
            check=check,
            outcome=final.outcome.value,
            summary=summary,
            text=text,
            waived=waived,
            ranks=tuple(ranks) if waived is None and final.outcome is not Outcome.PASSED else (),
            numbers=dict(final.numbers),
            line=line,
            seconds=seconds,
        )

    def error(self, start: str, check: str, summary: str) -> ItemResult:
        """An item that could not be judged."""
        return ItemResult(start=start, check=check, outcome="error", summary=summary, text=summary)

    def preflight(self) -> ItemResult:
        """Everything that speaks against starting anything here, as an item of its own."""
        reasons = [printable(reason) for reason in self.gate.preflight()]
        lines = ["nothing should be started on this host", *terminal.block("because", reasons)]
        return ItemResult(
            start=PREFLIGHT[0],
            check=PREFLIGHT[1],
            outcome="failed" if reasons else "passed",
            summary=f"{lines[0]}: {reasons[0]}" if reasons else "",
            text="\n".join(lines) if reasons else "",
        )

    def wire(self, result: ItemResult) -> dict[str, Any]:
        """What the report of an item carries to whoever prints: the item, the rows so far, identity, folder."""
        records = self.gate.records()
        table = [
            rows.start_row(r, {check: v for (start, check), v in self.verdicts.items() if start == name})
            for name, r in records.items()
        ]
        seen = rows.identity(self.profile, list(records.values()))
        folder = self.gate.folder
        return {"profile": self.result.key, **to_wire(result, table, seen, str(folder) if folder else None)}


class Session:
    """All profiles of a run. Reading a profile raises what ``load`` raises; gates are opened on first use."""

    def __init__(
        self,
        options: Options,
        load: Callable[[Path], Profile],
        open_gate: Callable[[Profile, Options], Gate],
        key_of: Callable[[Path], str],
    ) -> None:
        self.options = options
        self._load = load
        self._open = open_gate
        self._key_of = key_of
        self.runs: dict[Path, GateRun] = {}

    def run(self, path: Path) -> GateRun:
        """The run of a profile, by its absolute path."""
        if path not in self.runs:
            profile = self._load(path)
            gate = self._open(profile, self.options)
            expected = (
                [PREFLIGHT]
                if self.options.preflight
                else [(start, check) for start in gate.start_names() for check in gate.check_names()]
            )
            result = ProfileResult(key=self._key_of(path), name=profile.name, expected=expected)
            if self.options.replay is not None:
                result.notes.append(f"replayed: the run in {self.options.replay} was judged again, nothing was started")
            self.runs[path] = GateRun(profile, gate, result)
        return self.runs[path]

    def results(self) -> Mapping[str, ProfileResult]:
        """By key (the node id of the profile's file), in the order of the options."""
        return {run.result.key: run.result for run in self.runs.values()}

    def seconds_allowed(self, path: Path) -> float:
        """An upper bound for all starts of a profile with their workloads: beyond it nothing of ours still waits."""
        run = self.run(path)
        d = run.profile.deadlines
        throughput = run.profile.expect.throughput
        batches = len(throughput.concurrency) * (throughput.repeats + throughput.warmup) if throughput else 0
        prompts = len(run.profile.expect.quality.prompts) if run.profile.expect.quality else 0
        one = d.ready + sum(d.phases.values()) + d.stop + d.release + run.profile.settle
        one += d.request * (8 + batches + prompts)
        tiers = run.profile.expect.tiers
        if tiers is not None and tiers.sessions is not None:
            one += d.request + tiers.sessions.turns * TURN_SECONDS
        return (one * len(run.gate.start_names()) + 60) * 2

    def close(self) -> list[str]:
        """Close every gate, whatever one of them raises; returns what went wrong, for the terminal."""
        problems = []
        for run in self.runs.values():
            try:
                run.gate.close()
            except Exception as error:
                problems.append(f"{run.profile.name}: closing failed: {type(error).__name__}: {error}")
        return problems
