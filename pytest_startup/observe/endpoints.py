"""The engine's own answers, asked once and kept: health, version, models, metrics, configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_startup.engines.base import Endpoints
    from pytest_startup.observe.http import Answer, Http
    from pytest_startup.redact import Redactor

INDEX = "index.json"


@dataclass(frozen=True)
class Collected:
    """What the endpoints said. ``answers`` maps a path to its JSON (or text) for each that answered 200, whole;
    ``problems`` maps a path to the reason for each that did not; ``metrics`` is the Prometheus text, "" if none."""

    answers: Mapping[str, object]
    metrics: str
    problems: Mapping[str, str]


def collect(http: Http, endpoints: Endpoints, folder: Path, redactor: Redactor | None = None) -> Collected:
    """Ask every endpoint that this engine has and keep the answers in ``folder`` (made if need be).

    Never raises for what the server does. Nothing is written before secrets are taken out; what is returned is what was
    written, so that a replay (``read_saved``) sees the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, dict[str, object]] = {}
    for path in _paths(endpoints):
        answer = http.get(path)
        entry: dict[str, object] = {"status": answer.status, "seconds": round(answer.seconds, 4)}
        if answer.error:
            entry["error"] = answer.error
        if answer.status:
            name = _file_name(path, answer)
            text = redactor.text(answer.text) if redactor else answer.text
            (folder / name).write_text(text, encoding="utf-8")
            entry["file"] = name
        index[path] = entry
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return read_saved(folder, endpoints)


def read_saved(folder: Path, endpoints: Endpoints) -> Collected:
    """The answers that ``collect`` kept; all empty if there are none. Raises ValueError for a damaged index."""
    try:
        index: dict[str, dict[str, Any]] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Collected({}, "", {})
    answers: dict[str, object] = {}
    problems: dict[str, str] = {}
    metrics = ""
    for path, entry in index.items():
        text = (folder / entry["file"]).read_text(encoding="utf-8") if "file" in entry else ""
        if entry["status"] != 200 or entry.get("error"):
            problems[path] = entry.get("error") or f"HTTP {entry['status']}"
        elif path == endpoints.metrics:
            metrics = text
        else:
            answers[path] = _parsed(text)
    return Collected(answers, metrics, problems)


def _paths(endpoints: Endpoints) -> list[str]:
    known = (endpoints.health, endpoints.version, endpoints.models, endpoints.config, endpoints.metrics)
    return list(dict.fromkeys(path for path in known if path))


def _file_name(path: str, answer: Answer) -> str:
    """``/v1/models`` → ``v1-models.json``; the query is not part of the name."""
    stem = "-".join(p for p in path.partition("?")[0].split("/") if p) or "root"
    return stem + (".json" if "json" in answer.headers.get("Content-Type", "") else ".txt")


def _parsed(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value
