"""Tuning-record files of FlashInfer (as vLLM and SGLang keep them), parsed: metadata, records, what was tampered with.

Two stores. v1: one JSON file, ``{"_metadata": …, "<key>": ["<runner>", <tactic>, …], …, "_generation": "<sha256>"}``.
v2 (0.7.0): ``v2/<16 hex>/manifest.json`` and one ``entries/<24 hex>.json`` per record. Neither holds a time, a host or
a measured number: a file shows presence, coverage and (with ``_generation``) edits, never that a rank measured it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from pytest_startup.observe.autotune_keys import Key, KeyRanks, KeySyntax, parse_key
from pytest_startup.record import JSON

METADATA, RECORDS, GENERATION = "_metadata", "_records", "_generation"
_RESERVED = (METADATA, RECORDS, GENERATION)

_VLLM = re.compile(r"autotune_configs?(?:_dp(?P<dp>\d+)_rank(?P<rank>\d+))?\.json")
_SGLANG = re.compile(r"rank_tp(?P<tp>\d+)_pp(?P<pp>\d+)_dp(?P<dp>\d+)(?:_gpu[\w-]+)?(?:\.[\w.-]+)?\.json")
_RANK_ONLY = re.compile(r"rank(?P<rank>\d+)\.json")
_V2 = re.compile(r"(?:^|.*/)(?P<dir>v2/(?P<env>[0-9a-f]{16}))/(?:manifest\.json|entries/(?P<entry>[0-9a-f]{24})\.json)")
_ARCH = re.compile(r"(?:sm_?)?(?P<arch>\d{2,3}[af]?)")
KEY_HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{16}")


@dataclass(frozen=True)
class Owner:
    """Whose records a file's name says it holds; None where the name does not say. ``rank`` is inside one DP engine."""

    rank: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None

    def __bool__(self) -> bool:
        return self.rank is not None or self.tp is not None

    def label(self) -> str:
        """``rank 1 of DP 0`` in messages; ``all ranks`` for a shared file."""
        if not self:
            return "all ranks"
        name = f"rank {self.rank}" if self.rank is not None else f"TP{self.tp}" + (f" PP{self.pp}" if self.pp else "")
        return f"{name} of DP {self.dp}" if self.dp else name


@dataclass(frozen=True)
class Place:
    """What the path of a record file says: owner, library version, GPU architecture, key hash of the configuration."""

    path: str
    owner: Owner = Owner()
    library: str | None = None
    arch: str | None = None
    key_hash: str | None = None


@dataclass(frozen=True)
class TuningRecord:
    """One record: its key, the runner and tactic chosen, and what later versions add (policy, selection)."""

    key: str
    runner: str
    tactic: JSON
    rest: tuple[JSON, ...] = ()

    @cached_property
    def parsed(self) -> Key | None:
        """The parsed key; None when it is no key that any known version writes."""
        try:
            return parse_key(self.key)
        except KeySyntax:
            return None

    @property
    def ranks(self) -> KeyRanks:
        return self.parsed.ranks if self.parsed else KeyRanks()


@dataclass(frozen=True)
class RecordFile:
    """A record file (v2: the store of one environment, all its entries together).

    ``generation``: ``absent``, ``valid`` or ``edited`` (the file is not what FlashInfer wrote). ``damage`` tells why
    nothing could be read (empty, cut short, not JSON …): then there are no records. ``marks`` are traces of an edit
    that the library's own writer never leaves (other layout, order, doubled keys, renamed entries).
    """

    path: str
    format: str
    metadata: Mapping[str, str] | None = None
    records: tuple[TuningRecord, ...] = ()
    generation: str = "absent"
    damage: str | None = None
    marks: tuple[str, ...] = ()
    namespaces: Mapping[str, int] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return read_place(self.path)


def is_record_file(path: str, kind: str = "other") -> bool:
    """May this relative path be a tuning-record file? In a cache of kind ``autotune`` every JSON file may be one.

    FlashInfer keeps other tables there too (sparse MLA, PCIe collectives): ``holds_records`` tells by the content.
    """
    name = path.rpartition("/")[2]
    if not name.endswith(".json") or name.startswith("."):
        return False
    if _VLLM.fullmatch(name) or _SGLANG.fullmatch(name) or _V2.fullmatch(path):
        return True
    if _RANK_ONLY.fullmatch(name) and "autotune" in path:
        return True
    return kind == "autotune"


def holds_records(file: RecordFile) -> bool:
    """Is it one, by its name or its content?"""
    return is_record_file(file.path) or file.metadata is not None or any(r.parsed for r in file.records)


def store_of(path: str) -> str | None:
    """``…/v2/<16 hex>`` when the path belongs to a managed store, else None."""
    match = _V2.fullmatch(path)
    return path[: match.end("dir")] if match else None


def read_place(path: str) -> Place:
    """Take the path of a record file apart; unknown parts stay None."""
    parts = PurePosixPath(path).parts
    owner = Owner()
    for pattern in (_VLLM, _SGLANG, _RANK_ONLY):
        match = pattern.fullmatch(parts[-1]) if parts else None
        if match:
            found = {k: int(v) for k, v in match.groupdict().items() if v is not None}
            owner = Owner(**found)
            break
    library = arch = key_hash = None
    folders = parts if store_of(path) else parts[:-1]
    for i, part in enumerate(folders):
        if re.fullmatch(r"\d+\.\d+\.\d+[\w.+-]*", part):
            library = part
            match = _ARCH.fullmatch(folders[i + 1]) if i + 1 < len(folders) else None
            arch = match["arch"] if match else None
        elif KEY_HASH.fullmatch(part):
            key_hash = part
    return Place(path, owner, library, arch, key_hash)


def parse_v1(path: str, data: bytes) -> RecordFile:
    """Parse the bytes of one v1 file. Never raises: what is wrong is in ``damage`` and ``marks``."""
    marks: list[str] = []
    whole, damage = _load(data, marks)
    if damage:
        return RecordFile(path, "v1", damage=damage)
    if not isinstance(whole, dict):
        return RecordFile(path, "v1", damage="not a JSON object")
    records: list[TuningRecord] = []
    for key, value in whole.items():
        if key in _RESERVED:
            continue
        if isinstance(value, list) and len(value) >= 2 and isinstance(value[0], str):
            records.append(TuningRecord(key, value[0], value[1], tuple(value[2:])))
        else:
            marks.append(f"the value of {key[:60]!r} is not [runner, tactic]")
    marks += _layout_marks(whole, data)
    metadata = whole.get(METADATA)
    if metadata is not None and not isinstance(metadata, dict):
        marks.append("_metadata is not an object")
        metadata = None
    spaces = whole.get(RECORDS)
    return RecordFile(
        path,
        "v1",
        metadata=None if metadata is None else {str(k): str(v) for k, v in metadata.items()},
        records=tuple(records),
        generation=_generation(whole),
        marks=tuple(marks),
        namespaces={k: len(v) for k, v in spaces.items() if isinstance(v, dict)} if isinstance(spaces, dict) else {},
    )


def parse_store(folder: str, files: Mapping[str, bytes]) -> RecordFile:
    """Parse a managed store (v2): ``files`` maps the paths below ``folder`` to their bytes. Never raises."""
    marks: list[str] = []
    records: list[TuningRecord] = []
    metadata: dict[str, str] | None = None
    for path, data in sorted(files.items()):
        inner: list[str] = []
        value, damage = _load(data, inner)
        name = path[len(folder) :].lstrip("/")
        if damage or not isinstance(value, dict):
            marks.append(f"{name}: {damage or 'not a JSON object'}; FlashInfer takes it for a miss")
            continue
        marks += [f"{name}: {m}" for m in inner]
        if json.dumps(value, indent=2, sort_keys=True).encode() != data:
            marks.append(f"{name}: not laid out as FlashInfer writes it")
        if name == "manifest.json":
            metadata = {str(k): str(v) for k, v in value.items()}
            stated = hashlib.sha256(_compact(value)).hexdigest()[:16]
            if stated != PurePosixPath(folder).name:
                marks.append(f"{name}: does not belong to this folder (its content hashes to {stated})")
            continue
        key, runner = value.get("key"), value.get("runner")
        if not isinstance(key, str) or not isinstance(runner, str) or "tactic" not in value:
            marks.append(f"{name}: no key, runner or tactic; FlashInfer takes it for a miss")
            continue
        if hashlib.sha256(key.encode()).hexdigest()[:24] != PurePosixPath(name).stem:
            marks.append(f"{name}: its name is not the hash of its key; FlashInfer never finds it")
            continue
        records.append(TuningRecord(key, runner, value["tactic"]))
    if metadata is None:
        marks.append("manifest.json: missing or unreadable")
    return RecordFile(folder, "v2", metadata, tuple(records), marks=tuple(marks))


def generation_of(whole: Mapping[str, Any]) -> str:
    """``_generation`` as FlashInfer computes it (0.6.18 and later): sha256 of the compact sorted JSON of the rest."""
    return hashlib.sha256(_compact({k: v for k, v in whole.items() if k != GENERATION})).hexdigest()


def _compact(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _generation(whole: Mapping[str, Any]) -> str:
    if GENERATION not in whole:
        return "absent"
    return "valid" if whole[GENERATION] == generation_of(whole) else "edited"


def _load(data: bytes, marks: list[str]) -> tuple[Any, str | None]:
    """The JSON value, or why there is none. Doubled keys are marked; the last one counts, as in Python."""
    if not data.strip():
        return None, "empty"

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) != len(items):
            names = [k for k, _ in items]
            marks.append(f"key written twice: {next(k for k in names if names.count(k) > 1)[:80]!r}")
        return made

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs), None
    except UnicodeDecodeError:
        return None, "not text"
    except RecursionError:
        return None, "nested too deep"
    except ValueError as error:
        at = getattr(error, "pos", 0)
        if at >= len(data.decode("utf-8").rstrip()) or str(error).startswith("Unterminated string"):
            return None, f"cut short at byte {len(data)}"
        return None, f"not JSON: {error}"


def _layout_marks(whole: Mapping[str, Any], data: bytes) -> Iterable[str]:
    names = [k for k in whole if k not in _RESERVED]
    if names != sorted(names):
        yield "records are not in sorted order"
    order = [k for k in (METADATA, RECORDS, *sorted(names), GENERATION) if k in whole]
    if list(whole) != order and names == sorted(names):
        yield "_metadata is not first or _generation not last"
    if json.dumps(whole, indent=2).encode() != data:
        yield "not laid out as FlashInfer writes it (spaces, line ends)"
