"""The folder of a run: where each start's evidence lies, written without secrets and never outside the folder."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_startup.record import JSON, StartRecord, record_from_json, record_to_json
from pytest_startup.redact import Redactor

MANIFEST = "run.json"
RECORD = "record.json"
PROFILE_COPY = "profile.yaml"
RESOLVED = "profile.resolved.json"


class ArtifactsError(Exception):
    """A folder that holds no run, or can't be written. The message says which and why; printed without a traceback."""


def utc_now() -> str:
    """``2026-11-29T15:00:00Z``, as it stands in records."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def run_folder(root: Path, profile_name: str, when: str) -> Path:
    """A new folder ``root/<profile>/<UTC time>[-n]``; two runs of one second get two folders. Raises ArtifactsError."""
    base = root / profile_name
    stamp = when.replace(":", "-")
    for attempt in range(1000):
        folder = base / (stamp if not attempt else f"{stamp}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ArtifactsError(f"the artifacts folder {folder} can't be made: {error.strerror}") from None
        return folder
    raise ArtifactsError(f"no free name for an artifacts folder below {base}")


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. Everything is written through ``redactor``, and each file in one step (temporary + rename)."""

    path: Path
    redactor: Redactor

    def start_folder(self, start: str) -> Path:
        """The folder of a start, made if missing. Raises ValueError for a name that would lead outside."""
        folder = self.path / start
        if folder.parent != self.path or start in ("", ".", ".."):
            raise ValueError(f"{start!r} is not the name of a start")
        folder.mkdir(exist_ok=True)
        return folder

    def write_json(self, name: str, data: Mapping[str, JSON]) -> Path:
        """Write ``name`` (relative to the run) as JSON."""
        target = self.path / name
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        text = json.dumps(self.redactor.json(data), indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(target)
        return target

    def write_record(self, record: StartRecord) -> Path:
        return self.write_json(f"{record.name}/{RECORD}", record_to_json(record))

    def write_profile(self, text: bytes, resolved: Mapping[str, JSON]) -> None:
        """The profile as it was read, and as it was understood."""
        (self.path / PROFILE_COPY).write_text(self.redactor.text(text.decode("utf-8", "replace")), encoding="utf-8")
        self.write_json(RESOLVED, resolved)

    def write_manifest(self, data: Mapping[str, JSON]) -> None:
        self.write_json(MANIFEST, data)


def read_manifest(folder: Path) -> Mapping[str, Any]:
    """The manifest of a saved run. Raises ArtifactsError naming what is wrong with the folder."""
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactsError(f"{folder} holds no run: {MANIFEST} is not there{_nearest(folder)}") from None
    except (OSError, ValueError) as error:
        raise ArtifactsError(f"{path} can't be read: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("starts"), list):
        raise ArtifactsError(f"{path} is not the manifest of a run: no list 'starts'")
    return data


def read_record(folder: Path, start: str) -> StartRecord:
    """The record of a saved start. Raises ArtifactsError."""
    path = folder / start / RECORD
    try:
        return record_from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ArtifactsError(f"{path} can't be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactsError(f"{path} is not the record of a start: {error}") from None


def saved_runs(folder: Path) -> Sequence[Path]:
    """Folders below ``folder`` (two levels) that hold a run, newest name first."""
    found = [p.parent for depth in (f"*/{MANIFEST}", f"*/*/{MANIFEST}") for p in folder.glob(depth)]
    return sorted(found, key=lambda p: p.name, reverse=True)


def _nearest(folder: Path) -> str:
    runs = saved_runs(folder) if folder.is_dir() else []
    return f"; did you mean {runs[0]}?" if runs else ""
