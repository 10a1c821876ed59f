#!/usr/bin/env python3
"""Mutates logs (cut, spliced, repeated, reversed, binary) and reads them: no traceback, no hang, and never a fact whose
line does not contain its value.

usage: fuzz_reader.py [--count 100000] [--seed 1] [LOG...]

Without LOG, the small logs of the tests are the stock. Prints the rate; exit code 1 and the input's file at a fault.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE / "tests"))

from helpers_fuzz import fault, mutate, stock  # noqa: E402 (found through the path above)

LIMIT = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)  # noqa: S311 (test inputs, no secret)
    logs = [path.read_bytes() for path in args.logs] or stock()
    begin = time.monotonic()
    for number in range(args.count):
        data = mutate(chance, logs)
        at = time.monotonic()
        try:
            found = fault(data, chance.randrange(1, 5000))
        except Exception:
            found = traceback.format_exc()
        if found is None and time.monotonic() - at > LIMIT:
            found = f"took {time.monotonic() - at:.1f} s"
        if found:
            with tempfile.NamedTemporaryFile(delete=False, suffix=".log") as out:
                out.write(data)
            print(f"input {number} (kept as {out.name}): {found}")
            return 1
    seconds = time.monotonic() - begin
    print(f"{args.count} inputs in {seconds:.0f} s ({args.count / seconds:.0f} a second): no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
