"""The folder of a run: where each start's evidence lies, written without secrets and never outside the folder."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_startup.record import JSON, StartRecord
from pytest_startup.record_json import record_from_json, record_to_json
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
    if not _is_name(profile_name):
        raise ArtifactsError(f"{profile_name!r} can't name a folder of artifacts: expected one name without slashes")
    base = root / profile_name
    stamp = when.replace(":", "-")
    for attempt in range(1000):
        folder = base / (stamp if not attempt else f"{stamp}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            text = f"the artifacts folder {folder} can't be made: {error.strerror}"
            raise ArtifactsError(f"{text}; choose another with --startup-artifacts") from None
        return folder
    raise ArtifactsError(f"no free name for an artifacts folder below {base}")


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. Everything is written through ``redactor``, and each file in one step (temporary + rename)."""

    path: Path
    redactor: Redactor

    def start_folder(self, start: str) -> Path:
        """The folder of a start, made if missing. Raises ArtifactsError, also for a name that would lead outside."""
        if not _is_name(start):
            raise ArtifactsError(f"{start!r} is not the name of a start")
        folder = self.path / start
        with _told(folder):
            folder.mkdir(exist_ok=True)
            if folder.is_symlink() or not folder.is_dir():
                raise ArtifactsError(f"{folder} is not a folder of this run")
        return folder

    def write_json(self, name: str, data: Mapping[str, JSON]) -> Any:
        """Write ``name`` (relative to the run) as JSON; returns what was written. Raises ArtifactsError."""
        shown = self.redactor.json(data)
        self._write(self.path / name, json.dumps(shown, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return shown

    def write_record(self, record: StartRecord) -> StartRecord:
        """Write the record of a start; returns it as a replay will read it: without secrets. Raises ArtifactsError."""
        return record_from_json(self.write_json(f"{record.name}/{RECORD}", record_to_json(record)))

    def write_profile(self, text: bytes, resolved: Mapping[str, JSON]) -> None:
        """The profile as it was read, and as it was understood. Raises ArtifactsError."""
        self._write(self.path / PROFILE_COPY, self.redactor.text(text.decode("utf-8", "replace")))
        self.write_json(RESOLVED, resolved)

    def write_manifest(self, data: Mapping[str, JSON]) -> None:
        """Raises ArtifactsError."""
        self.write_json(MANIFEST, data)

    def _write(self, target: Path, text: str) -> None:
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        with _told(target):
            try:
                temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
                temporary.replace(target)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise


def _is_name(text: str) -> bool:
    """Can ``text`` be the name of one folder, below the one that it is put in?"""
    return bool(text) and text not in (".", "..") and not set(text) & {"/", "\0"}


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """An error of the file system as a message that names the file and what can be done."""
    try:
        yield
    except OSError as error:
        raise ArtifactsError(
            f"{path} can't be written: {error.strerror}; make room, or choose another folder with --startup-artifacts"
        ) from None


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


def read_resolved(folder: Path) -> Mapping[str, Any]:
    """The profile of a saved run, as it was understood; empty if the run kept none. Raises ArtifactsError."""
    path = folder / RESOLVED
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ArtifactsError(f"{path} can't be read: {error}") from None
    if not isinstance(data, dict):
        raise ArtifactsError(f"{path} is not a profile: no mapping")
    return data


def read_record(folder: Path, start: str) -> StartRecord:
    """The record of a saved start. Raises ArtifactsError."""
    if not _is_name(start):
        raise ArtifactsError(f"{start!r} is not the name of a start")
    path = folder / start / RECORD
    try:
        return record_from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ArtifactsError(f"{path} can't be read: {error.strerror}") from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ArtifactsError(f"{path} is not the record of a start: {error}") from None


def saved_runs(folder: Path) -> Sequence[Path]:
    """Folders below ``folder`` (two levels) that hold a run, newest name first."""
    found = [p.parent for depth in (f"*/{MANIFEST}", f"*/*/{MANIFEST}") for p in folder.glob(depth)]
    return sorted(found, key=lambda p: p.name, reverse=True)


def _nearest(folder: Path) -> str:
    runs = saved_runs(folder) if folder.is_dir() else []
    return f"; did you mean {runs[0]}?" if runs else ""
