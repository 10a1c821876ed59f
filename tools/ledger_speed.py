#!/usr/bin/env python3
"""How long does the ledger of a large cache take? usage: ledger_speed.py [FILES] [--folder DIR]

Makes a folder like a real one (inductor, Triton and per-rank files, 84 tuning records) with 50,000 files, and measures
the first snapshot (everything is hashed), one with nothing changed, one with 1 % changed, and the ledger itself.
Limit: 10 s for a ledger of 50,000 files without hashing what did not change. Exit code 1 when it is broken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pytest_startup.ledger.book import build as build_ledger
from pytest_startup.observe import caches
from pytest_startup.profile.expect import ExpectAutotune
from pytest_startup.record import StartRecord

LIMIT = 10.0
RANKS = 8
DATA = Path(__file__).resolve().parent.parent / "tests/data/caches/flashinfer-0.6.18-shared/autotune_configs.json"


def make(root: Path, number: int) -> None:
    aot = root / "torch_compile_cache/torch_aot_compile" / ("9" * 64)
    kept = max(number - RANKS * 41, 0)
    for n in range(kept):
        folder = aot / f"inductor_cache/{n % 256:02x}" if n % 2 else root / f"triton/{'ABCD' * 12}{n % 4096:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"k{n}.{'cubin' if n % 3 else 'json'}").write_bytes(os.urandom(2048))
    for rank in range(RANKS):
        folder = root / f"torch_compile_cache/0123456789/rank_{rank}_0/backbone"
        folder.mkdir(parents=True, exist_ok=True)
        for n in range(40):
            (folder / f"artifact_compile_range_1_8192_subgraph_{n}").write_bytes(os.urandom(16384))
        model = aot / f"rank_{rank}_0/model"
        model.parent.mkdir(parents=True, exist_ok=True)
        model.write_bytes(os.urandom(1 << 20))
    records = root / "flashinfer_autotune_cache/0.6.18/90a" / ("6" * 64)
    records.mkdir(parents=True)
    shutil.copy(DATA, records / DATA.name)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="?", type=int, default=50_000)
    options.add_argument("--folder")
    a = options.parse_args()
    with tempfile.TemporaryDirectory(dir=a.folder) as name:
        root = Path(name)
        make(root, a.files)
        caches.RACY_NS = -(10**15)  # the folder was made a moment ago; a real one is older
        begun = time.perf_counter()
        first = caches.snapshot("cache", root, kind="compile")
        print(f"first snapshot     {time.perf_counter() - begun:6.2f} s, {first.hashed:,} files read")
        begun = time.perf_counter()
        second = caches.snapshot("cache", root, kind="compile", before=first)
        same = time.perf_counter() - begun
        print(f"nothing changed    {same:6.2f} s, {second.hashed:,} read")
        for file in second.tree.files[::100]:
            (root / file.path).write_bytes(b"changed")
        begun = time.perf_counter()
        third = caches.snapshot("cache", root, kind="compile", before=second)
        print(f"1 % changed        {time.perf_counter() - begun:6.2f} s, {third.hashed:,} read")
        begun = time.perf_counter()
        trees = {"caches_before": (first.tree,), "caches_after": (third.tree,)}
        facts = caches.facts_of({"c": first}, {"c": third})
        record = StartRecord("p", "restart-1", "process", "process", "", facts=facts, **trees)
        book = build_ledger(record, ExpectAutotune(RANKS), warm=True)
        took = time.perf_counter() - begun
        print(f"ledger             {took:6.2f} s, {len(book.rows)} rows, {len(book.findings)} findings")
        total = same + took
        print(f"snapshot + ledger  {total:6.2f} s, limit {LIMIT:.0f} s")
        return int(total > LIMIT or second.hashed != 0)


if __name__ == "__main__":
    sys.exit(main())
