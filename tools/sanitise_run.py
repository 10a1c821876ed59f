#!/usr/bin/env python3
"""Copy saved runs of the gate as replay data of tests: the machine's names made neutral, nothing else changed.

usage: sanitise_run.py DEST NAME=RUN_FOLDER [NAME=RUN_FOLDER …]      makes DEST/NAME.tar.xz

A run folder is what ``--startup-artifacts`` left: ``run.json``, ``profile.yaml``, a folder per start. Substitutions
keep the number of lines of every log, so that line numbers and receive times still fit; byte lengths that a record
states (``log_bytes``) are those of the copied logs.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import tempfile
from pathlib import Path

#: Paths of a machine's Python, its kernel's name and its temporary folders.
NEUTRAL = (
    (re.compile(r"/opt/[\w.-]+/\.venv"), "/srv/venv"),
    (re.compile(r"/opt/gcc\b"), "/srv/gcc"),
    (re.compile(r"(\d+\.\d+\.\d+)-fc-v\d+-gpu"), r"\1"),
    (re.compile(r"/(tmp)/tmp\w{8}"), r"/\1/tmp"),
    (re.compile(r"/(tmp)/torchinductor_\w+"), r"/\1/torchinductor"),
    (re.compile(r"GPU-[0-9a-f]{8}-[0-9a-f-]{27}"), "GPU-00000000-0000-0000-0000-000000000000"),
    (re.compile(r"/srv/proof-\w+"), "/srv/proof"),
)


def neutral(text: str) -> str:
    for pattern, word in NEUTRAL:
        text = pattern.sub(word, text)
    return text


def copy(source: Path, target: Path) -> int:
    """Copy one run; returns its bytes."""
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        out = target / path.relative_to(source)
        out.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        out.write_bytes(neutral(text).encode("utf-8", "surrogateescape"))
    for record in target.glob("*/record.json"):
        data = json.loads(record.read_text(encoding="utf-8"))
        for node in data.get("log_bytes") or {}:
            whole = (source / record.parent.name / node / "engine.log").read_bytes()[: data["log_bytes"][node]]
            said = neutral(whole.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            data["log_bytes"][node] = len(said)
        record.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return sum(p.stat().st_size for p in target.rglob("*") if p.is_file())


def pack(folder: Path, archive: Path) -> int:
    """The same bytes for the same run, whoever packs it; returns their number."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as out:
        for path in sorted(folder.rglob("*")):
            out.add(path, path.relative_to(folder), recursive=False, filter=plain)
    return archive.stat().st_size


def main() -> int:
    dest, *pairs = sys.argv[1:] or [""]
    if not pairs or not all("=" in pair for pair in pairs):
        print(__doc__, file=sys.stderr)
        return 2
    for name, _, folder in (pair.partition("=") for pair in pairs):
        with tempfile.TemporaryDirectory() as made:
            size = copy(Path(folder), Path(made))
            print(f"{name}: {size} bytes, {pack(Path(made), Path(dest) / f'{name}.tar.xz')} packed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
