"""Parts of a start → its record: facts of endpoints and logs, phases, the failure with its cause. Also on replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_startup.artifacts import ArtifactsError
from pytest_startup.ends import STRUCK, with_left_up, with_peer
from pytest_startup.intake import LogReading, placed_evidence, read_logs
from pytest_startup.launch.base import NodeLog, only_node
from pytest_startup.record import Evidence, Fact, Failure, PhaseSpan, StartRecord

if TYPE_CHECKING:
    from pytest_startup.engines.base import Dialect
    from pytest_startup.observe.endpoints import Collected
    from pytest_startup.profile.model import Profile

#: Failures that are only seen from outside: a cause that the log names says more.
OUTSIDE = ("ended", *STRUCK, "deadline", "not-serving")
#: What the log of those who are left says when one of them is gone: news of it, not its cause.
NEWS = ("process-died", "collective-failed", "collective-timeout", "peer-missing", "hang", "interrupted")
#: What a log that just stops is told to say: nothing that was not seen from outside.
_NOTHING_SAID = "stopped"


def node_logs(folder: Path) -> list[NodeLog]:
    """The logs of a saved start: ``<node>/engine.log`` beside ``<node>/lines.tsv``, by node name."""
    found = sorted(folder.glob("*/engine.log"))
    return [NodeLog(path.parent.name, path, path.with_name("lines.tsv")) for path in found]


def endpoint_facts(dialect: Dialect, seen: Collected, seconds: float | None) -> list[Fact]:
    """Facts of the endpoints' answers."""
    facts = list(dialect.config_facts(seen.answers))
    if seen.metrics and dialect.endpoints.metrics:
        facts += dialect.metric_facts(seen.metrics, f"GET {dialect.endpoints.metrics}", seconds)
    return facts


def log_parts(record: StartRecord, reading: LogReading, logs: Sequence[NodeLog]) -> StartRecord:
    """``record`` with all that its logs say: phases, and the cause of the failure that was seen from outside.

    Its facts are left alone; see ``in_order``.
    """
    failure = explained(record.outside, reading, record.ready, logs)
    if failure is not None:
        failure = with_left_up(with_peer(failure, record.facts), record.facts)
    return replace(
        record,
        phases=phases_of(reading, logs),
        failure=failure,
        log_bytes=dict(reading.ends),
    )


def in_order(log: Iterable[Fact], asked: Iterable[Fact], kept: Iterable[Fact]) -> tuple[Fact, ...]:
    """The facts of a record: of the logs, of the endpoints, and all that can't be had again."""
    return (*log, *asked, *kept)


def phases_of(reading: LogReading, logs: Sequence[NodeLog]) -> tuple[PhaseSpan, ...]:
    """Spans of the reading; of a start with one log they carry the name of its node."""
    single = only_node(logs)
    spans = reading.summary.phases if reading.summary else ()
    return tuple(s if s.node or not single else replace(s, node=single) for s in spans)


def explained(failure: Failure | None, reading: LogReading, ready: bool, logs: Sequence[NodeLog]) -> Failure | None:
    """The failure as seen from outside, with the cause that the log names where it names one.

    A log that claims a failure does not make a start fail that was ready and served to its end.
    """
    if failure is None or failure.kind not in OUTSIDE or reading.summary is None or not reading.summary.failure:
        return failure
    said, over = reading.summary.failure, failure.kind in ("ended", *STRUCK)
    phase = said.phase or ("serving" if ready else failure.phase)
    lines = tuple(placed_evidence(e, logs) for e in said.last_lines) or failure.last_lines
    if said.kind == _NOTHING_SAID:
        return replace(failure, phase=phase if over else failure.phase, last_lines=lines)
    cause = placed_evidence(said.cause, logs) if said.cause is not None else None
    single = only_node(logs)
    node = (cause.node if cause else None) or said.node or failure.node or single
    # Seen from outside another node ended first: what the log of this one says of it is a consequence.
    elsewhere = over and failure.node is not None and failure.node != node
    if cause is None or (said.kind in NEWS and (elsewhere or failure.kind in STRUCK)):
        return _seen_first(failure, said, phase if over and cause is None else failure.phase, node, cause, lines)
    alike = failure.kind == said.kind  # both know that it was killed: we know who, and the line is its proof
    outside = "" if failure.kind == "ended" and not elsewhere else f"; {failure.summary}"
    return replace(
        said,
        summary=failure.summary if alike else said.summary + outside,
        cause=cause,
        rank=failure.rank if elsewhere or alike else said.rank,
        node=failure.node if elsewhere else node,
        after_seconds=failure.after_seconds,
        phase=phase,
        last_lines=(),
    )


def _seen_first(
    failure: Failure,
    said: Failure,
    phase: str | None,
    node: str | None,
    news: Evidence | None,
    lines: tuple[Evidence, ...],
) -> Failure:
    """What was seen from outside comes first: the log has no cause, or only tells what followed (``news``)."""
    followed = "" if news is None else "the log only tells what followed: "
    return replace(
        failure,
        summary=f"{failure.summary}; {followed}{said.summary}",
        phase=phase,
        node=failure.node or node,
        helps=failure.helps or said.helps,
        no_help=failure.no_help or said.no_help,
        last_lines=lines if news is None else (news, *(line for line in lines if line != news)),
    )


def _cut_since(record: StartRecord, logs: Sequence[NodeLog]) -> Iterator[Fact]:
    """``log.incomplete`` of each log that is shorter than the start has read, or gone."""
    there = {log.node: log.path.stat().st_size for log in logs}
    for node, end in record.log_bytes.items():
        if there.get(node, 0) < end:
            text = f"{there.get(node, 0):,} of {end:,} bytes are left of it"
            where = Evidence("process", f"{node}/engine.log", text, node=node)
            yield Fact("log.incomplete", text, where, node=node)


def reread(record: StartRecord, folder: Path, profile: Profile, dialect: Dialect) -> StartRecord:
    """A saved record, with all that comes from logs and endpoints read again by the rules of today.

    Raises ArtifactsError for files that are damaged.
    """
    from pytest_startup.observe.endpoints import read_saved

    logs = node_logs(folder)
    reading = read_logs(logs, dialect, profile.expect.log, record.log_bytes)
    kept, seconds = [], []
    for fact in record.facts:
        if fact.evidence.source not in ("log", "endpoint") or fact.detail.get("keep"):
            kept.append(fact)
        elif fact.evidence.source == "endpoint" and fact.evidence.seconds is not None:
            seconds.append(fact.evidence.seconds)
    try:
        seen = read_saved(folder / "endpoints", dialect.endpoints)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactsError(f"{folder / 'endpoints'} can't be read: {error}") from None
    asked = endpoint_facts(dialect, seen, max(seconds, default=None))
    kept += _cut_since(record, logs)
    return log_parts(replace(record, facts=in_order(reading.facts, asked, kept)), reading, logs)
