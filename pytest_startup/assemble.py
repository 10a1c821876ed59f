"""Parts of a start → its record: facts of logs and observers, phases, the failure with its cause. Also on replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup.launch.base import NodeLog
from pytest_startup.observe.follow import replay as replay_log
from pytest_startup.observe.patterns import PatternScan
from pytest_startup.record import Fact, Failure, PhaseSpan, StartRecord

if TYPE_CHECKING:
    from pytest_startup.engines.base import Dialect, Endpoints, LogSummary
    from pytest_startup.observe.endpoints import Collected
    from pytest_startup.profile.model import Profile

#: Failures that the wait can only see from outside: a cause that the log names says more.
OUTSIDE = ("ended", "deadline")


@dataclass(frozen=True)
class LogReading:
    """What all logs of a start say: facts (``where`` relative to the start's folder), and one summary of the start."""

    facts: tuple[Fact, ...]
    summary: LogSummary | None


def node_logs(folder: Path) -> list[NodeLog]:
    """The logs of a saved start: ``<node>/engine.log`` beside ``<node>/lines.tsv``, by node name."""
    found = sorted(folder.glob("*/engine.log"))
    return [NodeLog(path.parent.name, path, path.with_name("lines.tsv")) for path in found]


def read_logs(logs: Sequence[NodeLog], dialect: Dialect) -> LogReading:
    """Read finished logs, in the order in which their lines were received."""
    reader = dialect.reader()
    facts: list[Fact] = []
    for log in logs:
        for data, seconds in replay_log(log):
            facts += reader.feed(data, seconds, log.node)
    rest, summaries = reader.close()
    return LogReading(placed([*facts, *rest], logs), last_summary(summaries))


def placed(facts: Iterable[Fact], logs: Sequence[NodeLog]) -> tuple[Fact, ...]:
    """Log facts with their node and the place of their line relative to the folder of the start."""
    single = logs[0].node if len(logs) == 1 else None
    names = {log.node: f"{log.node}/{log.path.name}" for log in logs}

    def place(fact: Fact) -> Fact:
        node = fact.node or fact.evidence.node or single
        where = names.get(node or "", fact.evidence.where)
        return replace(fact, node=node, evidence=replace(fact.evidence, where=where, node=node))

    return tuple(place(f) for f in facts)


def last_summary(summaries: Sequence[LogSummary]) -> LogSummary | None:
    """That of the last start in the log: a supervisor that restarts the engine by itself leaves several."""
    return summaries[-1] if summaries else None


def endpoint_facts(dialect: Dialect, endpoints: Endpoints, seen: Collected, seconds: float | None) -> list[Fact]:
    """Facts of the endpoints' answers."""
    facts = list(dialect.config_facts(seen.answers))
    if seen.metrics and endpoints.metrics:
        facts += dialect.metric_facts(seen.metrics, f"GET {endpoints.metrics}", seconds)
    return facts


def pattern_facts(profile: Profile, logs: Sequence[NodeLog], until: float | None) -> list[Fact]:
    """``log.match`` facts: where the profile's own patterns stand before ``until``, the end of the observation."""
    scan = PatternScan(profile.expect.log)
    return [fact for log in logs for fact in scan.read(log, until)]


def phases_of(reading: LogReading, logs: Sequence[NodeLog]) -> tuple[PhaseSpan, ...]:
    single = logs[0].node if len(logs) == 1 else None
    spans = reading.summary.phases if reading.summary else ()
    return tuple(s if s.node or not single else replace(s, node=single) for s in spans)


def explained(failure: Failure | None, reading: LogReading, ready: bool, logs: Sequence[NodeLog]) -> Failure | None:
    """The failure as seen from outside, with the cause that the log names where it names one.

    A log that claims a failure does not make a start fail that was ready and served to its end.
    """
    if failure is None or failure.kind not in OUTSIDE or reading.summary is None or not reading.summary.failure:
        return failure
    said = reading.summary.failure
    single = logs[0].node if len(logs) == 1 else None
    cause = said.cause
    if cause is not None:
        node = cause.node or single
        where = next((f"{log.node}/{log.path.name}" for log in logs if log.node == node), cause.where)
        cause = replace(cause, node=node, where=where)
    late = f"; {failure.summary}" if failure.kind == "deadline" else ""
    return replace(
        said,
        summary=said.summary + late,
        cause=cause,
        node=said.node or failure.node or single,
        after_seconds=failure.after_seconds,
        phase=said.phase or ("serving" if ready else failure.phase),
        last_lines=() if cause is not None else failure.last_lines,
    )


def reread(record: StartRecord, folder: Path, profile: Profile, dialect: Dialect) -> StartRecord:
    """A saved record, with all that comes from logs and endpoints read again by the rules of today."""
    from pytest_startup.observe.endpoints import read_saved

    logs = node_logs(folder)
    reading = read_logs(logs, dialect)
    kept = [f for f in record.facts if f.evidence.source not in ("log", "endpoint") or f.detail.get("keep")]
    seen = read_saved(folder / "endpoints", dialect.endpoints)
    asked = {f.evidence.seconds for f in record.facts if f.evidence.source == "endpoint"}
    again = endpoint_facts(dialect, dialect.endpoints, seen, max((s for s in asked if s is not None), default=None))
    facts = (*reading.facts, *pattern_facts(profile, logs, record.wall_seconds), *again, *kept)
    failure = record.failure
    if failure is not None and failure.kind not in ("refused", "divergence"):
        outside = replace(failure, kind="ended") if failure.kind not in OUTSIDE else failure
        found = explained(outside, reading, record.ready, logs)
        failure = failure if found is outside else found
    return replace(record, facts=facts, phases=phases_of(reading, logs), failure=failure)


def usual_phases(record: StartRecord) -> Mapping[str, float]:
    """Seconds per phase of an accepted start: the longest rank counts."""
    out: dict[str, float] = {}
    for span in record.phases:
        if span.seconds is not None:
            out[span.phase] = max(out.get(span.phase, 0.0), span.seconds)
    return out
