"""Facts, evidence, phases and the record of one start: what was seen, and where.

Everything here is plain data. A record is written as JSON and read back to the same values (``record_json``), so that a
check can never tell a live start from a saved one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

JSON = Union[None, bool, int, float, str, list["JSON"], dict[str, "JSON"]]

RECORD_SCHEMA = 1

#: The phases of a start, in the order in which vLLM usually goes through them. Engines may differ in the order.
PHASES = (
    "launch",
    "device-init",
    "weights",
    "preparation",
    "compile",
    "profiling",
    "kv-reservation",
    "warm-up",
    "graph-capture",
    "api",
    "serving",
    "shutdown",
)


@dataclass(frozen=True)
class Evidence:
    """Where something was seen. ``source``: log, endpoint, workload, cache, process, container, gpu or host.

    ``where`` is a path relative to the folder of the start (``head/engine.log``), an endpoint (``GET /metrics``) or a
    path below a named cache (``compile-cache/…``). ``line`` counts LF from 1. ``seconds`` is the receive time since
    launch. ``text`` is the line or the sample itself, shortened to 400 characters and never holding a secret.
    """

    source: str
    where: str
    text: str = ""
    line: int | None = None
    node: str | None = None
    rank: str | None = None
    seconds: float | None = None

    def place(self) -> str:
        """``head/engine.log:52``; messages put the start's name before it."""
        return self.where if self.line is None else f"{self.where}:{self.line}"


@dataclass(frozen=True)
class Fact:
    """One statement: a typed value with unit, who said it and where.

    ``value`` is text, a number, a list or an object; it is never a stand-in for something unseen (an unseen fact has no
    ``Fact``). ``rank`` is what the evidence names (``TP1_EP1``, ``DP0``, ``rank=3``), None when it names none.
    ``engine`` is the engine core that speaks when several do. ``detail`` holds the other members of a compound
    statement (``role``, ``kind``, ``done``, ``total``, ``tokens_per_request``, ``at``, ``path`` …). ``start`` counts
    the starts inside one log file from 0.
    """

    name: str
    value: JSON
    evidence: Evidence
    unit: str | None = None
    rank: str | None = None
    node: str | None = None
    engine: str | None = None
    start: int = 0
    detail: Mapping[str, JSON] = field(default_factory=dict)

    def member(self, key: str) -> JSON:
        """A member of a compound statement, whether it stands in ``value`` or in ``detail``; None if in neither."""
        if isinstance(self.value, Mapping) and key in self.value:
            return self.value[key]
        return self.detail.get(key)


@dataclass(frozen=True)
class PhaseSpan:
    """One phase of one rank (``rank`` None: the engine as a whole). Seconds are since launch.

    ``seconds`` is None where nothing states how long it took. ``source`` tells what the times rest on: ``received``
    (our receive times), ``log`` (the engine's own whole-second stamps) or ``stated`` (a duration printed by it).
    """

    phase: str
    rank: str | None = None
    node: str | None = None
    first_line: int | None = None
    last_line: int | None = None
    begin: float | None = None
    end: float | None = None
    seconds: float | None = None
    source: str | None = None

    @property
    def taken(self) -> float | None:
        """Seconds that it took: as stated, else from begin to end; None where nothing says it."""
        if self.seconds is not None:
            return self.seconds
        return self.end - self.begin if self.begin is not None and self.end is not None else None


@dataclass(frozen=True)
class Failure:
    """Why a start failed: the phase of the failing rank, its first real cause, and what can and cannot help.

    ``kind`` is one of ``engines.failures.KINDS`` (``out-of-device-memory``, ``port-taken``, ``hang``, ``unknown`` …),
    or what was seen from outside the log: ``refused``, ``ended``, ``deadline``, ``not-serving``, ``divergence``,
    ``node-lost``, ``node-missing``, ``node-not-started``, ``step-failed``, ``interrupted``, ``defect``.
    ``cause`` is None when the start ended without any line that explains it (killed from outside, log stopped).
    """

    phase: str | None
    kind: str
    summary: str
    cause: Evidence | None = None
    rank: str | None = None
    node: str | None = None
    after_seconds: float | None = None
    helps: tuple[str, ...] = ()
    no_help: tuple[str, ...] = ()
    last_lines: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class Completion:
    """One request that was really sent, and what came back. ``status`` 0: no HTTP answer (``error`` says why).

    Token counts are the server's ``usage``; None when it sent none. ``token_ids``/``logprobs`` only where offered.
    ``purpose``: ``first`` (the one that ended the wait), ``ready``, ``ready-chat``, ``ready-stream``, ``together``
    (asked several times at once), ``quality``, ``throughput``, ``sessions``, ``last`` (behind the workload), ``user``
    (a test of the user's own).
    """

    purpose: str
    prompt: str
    status: int
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float | None = None
    seconds_since_launch: float | None = None
    tokens: tuple[str, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    fingerprint: str | None = None
    streamed: bool = False
    asked_tokens: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class ThroughputSample:
    """One timed batch: ``output_tokens`` (from usage) of ``requests`` requests in ``seconds`` of wall time."""

    concurrency: int
    repeat: int
    requests: int
    failed: int
    output_tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of the batch over its wall time."""
        return self.output_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class CacheFile:
    """One file of a watched cache. ``path`` is relative to the cache's folder; ``sha256`` None: not hashed."""

    path: str
    size: int
    mtime_ns: int
    sha256: str | None = None


@dataclass(frozen=True)
class CacheTree:
    """A watched cache folder at one moment. ``exists`` False: it was not there (that is not an empty folder)."""

    name: str
    path: str
    exists: bool
    node: str | None = None
    files: tuple[CacheFile, ...] = ()

    def by_path(self) -> dict[str, CacheFile]:
        """Its files by their path below the folder."""
        return {f.path: f for f in self.files}


#: The kind of ``Leftover`` which says that an engine did not live until it was stopped.
OWN_END = "engine"


@dataclass(frozen=True)
class Leftover:
    """Something of ours that a stop left behind, or released: ``kind`` pid, port, shm, gpu-memory, container.

    Kind ``OWN_END``, never released: the engine had ended by itself, after its observation and before it was stopped.
    """

    kind: str
    what: str
    released: bool
    seconds: float | None = None
    node: str | None = None


@dataclass(frozen=True)
class StartRecord:
    """All that is known of one start. ``name`` is ``reference``, ``restart-1`` …; ``kind`` the restart kind.

    ``population`` labels the restart kind with its options (``process``, ``process+wiped:compile-cache``): times and
    throughput are only compared within one. ``ready_seconds`` is the time from launch to the first real completion,
    None if there was none. ``wall_seconds`` is the time from launch to the end of observation. ``exit_code`` is of the
    main process and None while it runs; a code of 0 proves nothing.

    ``log_bytes`` says per node how much of its log belongs to the record: what an engine prints while it is being
    stopped does not. ``outside`` is the failure as it was seen without the log, which a replay explains anew.
    """

    profile: str
    name: str
    kind: str
    population: str
    started_at: str
    argv: tuple[str, ...] = ()
    ready: bool = False
    health_seconds: float | None = None
    ready_seconds: float | None = None
    wall_seconds: float | None = None
    exit_code: int | None = None
    failure: Failure | None = None
    facts: tuple[Fact, ...] = ()
    phases: tuple[PhaseSpan, ...] = ()
    completions: tuple[Completion, ...] = ()
    throughput: tuple[ThroughputSample, ...] = ()
    caches_before: tuple[CacheTree, ...] = ()
    caches_after: tuple[CacheTree, ...] = ()
    cleanup: tuple[Leftover, ...] | None = None
    notes: tuple[str, ...] = ()
    schema: int = RECORD_SCHEMA
    log_bytes: Mapping[str, int] = field(default_factory=dict)
    outside: Failure | None = None

    def named(self, *names: str) -> list[Fact]:
        """Facts of these names, in the order in which they were seen."""
        return [f for f in self.facts if f.name in names]

    def ranks(self) -> list[str]:
        """Every rank that any fact names, sorted."""
        return sorted({f.rank for f in self.facts if f.rank})

    def phase_seconds(self) -> dict[str, float]:
        """Seconds per phase, of the slowest rank; a phase for which nothing states a time is left out, never 0."""
        out: dict[str, float] = {}
        for span in self.phases:
            if span.taken is not None:
                out[span.phase] = max(span.taken, out.get(span.phase, 0.0))
        return out
