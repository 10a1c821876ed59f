"""Facts and records as JSON, and read back to the same values (``schemas/record.schema.json``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from pytest_startup.record import (
    JSON,
    RECORD_SCHEMA,
    CacheFile,
    CacheTree,
    Completion,
    Evidence,
    Fact,
    Failure,
    Leftover,
    PhaseSpan,
    StartRecord,
    ThroughputSample,
)


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
