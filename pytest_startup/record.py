"""Facts, evidence, phases and the record of one start: what was seen, and where.

Everything here is plain data. A record is written as JSON (``schemas/record.schema.json``) and read back to the
same values, so that a check can never tell a live start from a saved one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Union

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

#: Where a fact can come from. ``log`` facts are read again from the raw log on a replay; all others are kept.
SOURCES = ("log", "endpoint", "workload", "cache", "process", "container", "gpu", "host", "profile")


@dataclass(frozen=True)
class Evidence:
    """Where something was seen.

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
        """``head/reference/engine.log:52`` as printed in messages."""
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


@dataclass(frozen=True)
class Failure:
    """Why a start failed: the phase of the failing rank, its first real cause, and what can and cannot help.

    ``kind`` is one of ``engines.failures.KINDS`` (``out-of-device-memory``, ``port-taken``, ``hang``, ``unknown`` …).
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
    ``purpose``: ``ready``, ``ready-chat``, ``ready-stream``, ``quality``, ``throughput``.
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
        return {f.path: f for f in self.files}


@dataclass(frozen=True)
class Leftover:
    """Something of ours that a stop left behind, or released: ``kind`` pid, port, shm, gpu-memory, container.

    Kind ``engine``, never released: the engine had ended by itself, after its observation and before it was stopped.
    """

    kind: str
    what: str
    released: bool
    seconds: float | None = None
    node: str | None = None


@dataclass(frozen=True)
class StartRecord:
    """All that is known of one start. ``name`` is ``reference``, ``restart-1`` …; ``kind`` the restart kind.

    ``population`` labels the restart kind with its options (``process``, ``process+wipe:compile-cache``): times and
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


def _plain(value: Any) -> JSON:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {k: _plain(v) for k, v in pairs if v is not None and v != () and v != {}}
    plain: JSON = value
    return plain


def fact_to_json(fact: Fact) -> dict[str, JSON]:
    """The flat form of ``explain --json`` and of the record: ``{fact, value, unit, line, text, rank?, node?, …}``."""
    out: dict[str, JSON] = {"fact": fact.name, "value": fact.value, "unit": fact.unit}
    e = fact.evidence
    out.update(source=e.source, where=e.where, line=e.line, text=e.text, start=fact.start)
    for key, value in (("rank", fact.rank), ("node", fact.node), ("engine", fact.engine), ("seconds", e.seconds)):
        if value is not None:
            out[key] = value
    out.update({k: v for k, v in fact.detail.items() if k not in out})
    return out


_FLAT = {"fact", "value", "unit", "source", "where", "line", "text", "start", "rank", "node", "engine", "seconds"}


def fact_from_json(data: Mapping[str, Any]) -> Fact:
    """Inverse of ``fact_to_json``. Raises KeyError for a missing member."""
    evidence = Evidence(
        source=data["source"],
        where=data["where"],
        text=data.get("text", ""),
        line=data.get("line"),
        node=data.get("node"),
        rank=data.get("rank"),
        seconds=data.get("seconds"),
    )
    return Fact(
        name=data["fact"],
        value=data["value"],
        evidence=evidence,
        unit=data.get("unit"),
        rank=data.get("rank"),
        node=data.get("node"),
        engine=data.get("engine"),
        start=data.get("start", 0),
        detail={k: v for k, v in data.items() if k not in _FLAT},
    )


def record_to_json(record: StartRecord) -> dict[str, JSON]:
    """JSON form of a record; members that are None or empty are left out."""
    out: dict[str, JSON] = {
        f.name: _plain(v) for f in fields(record) if (v := getattr(record, f.name)) not in (None, (), {})
    }
    out["facts"] = [fact_to_json(f) for f in record.facts]
    if record.cleanup is not None:
        out["cleanup"] = _plain(record.cleanup)
    return out


def _many(kind: type[Any], rows: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    for row in rows:
        yield kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})


def _tree(data: Mapping[str, Any]) -> CacheTree:
    return CacheTree(**{**data, "files": tuple(_many(CacheFile, data.get("files", ())))})


def _failure(data: Mapping[str, Any]) -> Failure:
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    rest["cause"] = Evidence(**data["cause"]) if data.get("cause") else None
    rest["last_lines"] = tuple(_many(Evidence, data.get("last_lines", ())))
    return Failure(**rest)


def record_from_json(data: Mapping[str, Any]) -> StartRecord:
    """Inverse of ``record_to_json``. Raises KeyError, TypeError or ValueError when ``data`` is not a record."""
    if data.get("schema") != RECORD_SCHEMA:
        raise ValueError(f"record schema {data.get('schema')!r}, this version reads {RECORD_SCHEMA}")
    rest = dict(data)
    rest["argv"] = tuple(data.get("argv", ()))
    rest["notes"] = tuple(data.get("notes", ()))
    rest["facts"] = tuple(fact_from_json(f) for f in data.get("facts", ()))
    rest["phases"] = tuple(_many(PhaseSpan, data.get("phases", ())))
    rest["completions"] = tuple(_many(Completion, data.get("completions", ())))
    rest["throughput"] = tuple(_many(ThroughputSample, data.get("throughput", ())))
    rest["caches_before"] = tuple(_tree(t) for t in data.get("caches_before", ()))
    rest["caches_after"] = tuple(_tree(t) for t in data.get("caches_after", ()))
    for name in ("failure", "outside"):
        rest[name] = _failure(data[name]) if data.get(name) else None
    rest["log_bytes"] = dict(data.get("log_bytes", {}))
    if "cleanup" in data:
        rest["cleanup"] = tuple(_many(Leftover, data["cleanup"]))
    return StartRecord(**rest)
