"""What a dialect is: the knowledge of one engine, and the reader that turns its log into facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_startup.record import Evidence, Fact, Failure, PhaseSpan


@dataclass(frozen=True)
class LogSummary:
    """What one start of a log says of itself (the ``starts`` entry of ``explain --json``; see ``docs/explain.md``).

    ``ready`` True, False or None (the log does not show it); ``compile_reused`` True, False, ``"partial"`` or None.
    """

    start: int
    first_line: int
    last_line: int
    ready: bool | None
    ready_line: int | None
    failed: bool | None
    failure: Failure | None
    compile_reused: bool | str | None
    phases: tuple[PhaseSpan, ...]
    last_phase: str | None
    engine: str | None = None


@dataclass(frozen=True)
class Progress:
    """Where a start stands while its log is still being written: per rank the current phase and its last line."""

    phase: str
    rank: str | None
    since_seconds: float
    line: Evidence | None


class LogReader(Protocol):
    """Reads one start's log(s) as a stream, in constant memory. Feed whole lines or any chunks of bytes, in order."""

    def feed(self, data: bytes, seconds: float | None = None, node: str | None = None) -> Sequence[Fact]:
        """More bytes of a node's log, received at ``seconds``; returns the facts that they completed."""

    def progress(self) -> Progress:
        """The current phase of the engine (that of the rank which is furthest behind)."""

    def close(self) -> tuple[Sequence[Fact], Sequence[LogSummary]]:
        """End of input: the facts not returned yet (last states of progress bars) and one summary per start."""


@dataclass(frozen=True)
class Endpoints:
    """Paths of an engine's HTTP API. None: the engine has none.

    ``engine_header``: the request header that names the data-parallel engine which has to answer.
    """

    health: str = "/health"
    models: str = "/v1/models"
    version: str | None = "/version"
    metrics: str | None = "/metrics"
    completions: str = "/v1/completions"
    chat: str = "/v1/chat/completions"
    config: str | None = None
    engine_header: str | None = None


class Dialect(Protocol):
    """The knowledge of one engine. Registered under ``name`` (``engine.kind`` of the profile)."""

    name: str
    endpoints: Endpoints

    def serve_args(self, model: str, host: str, port: int, args: Sequence[str]) -> tuple[str, ...]:
        """The arguments behind the launch command: model, host, port and the profile's own, in the engine's syntax."""

    def reader(self) -> LogReader:
        """A new reader, for the log or logs of one start."""

    def metric_facts(self, text: str, where: str, seconds: float | None = None) -> Sequence[Fact]:
        """Facts of a Prometheus text (``kv.tokens`` per engine, hit counters …)."""

    def config_facts(self, answers: Mapping[str, object]) -> Sequence[Fact]:
        """Facts of JSON answers, keyed by path (``/version``, ``/v1/models`` …)."""
