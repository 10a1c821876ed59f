#!/usr/bin/env python3
"""How fast is ``explain --json``, as a ratio to ``grep -cE`` of all the rules' literal anchors on the same log?

usage: explain_speed.py [--megabytes 200] [--statistics 100] [--start START.log] [--keep FILE] [--bar 2]

Makes a log (one start, then access lines, and a statistics line after each N of them), runs both by turns, five times
each, and prints the medians of wall and CPU time, their ratios, and the peak memory of explain. An engine prints a
statistics line every ten seconds and an access line per request, so a hundred to one is ten requests a second;
health and metrics requests are access lines too. Exit code 1 when the ratio of CPU times is above --bar (wall time is
that of the machine's other work too) or the memory above 80 MB.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pytest_startup.engines.anchors import ANCHORS
from pytest_startup.engines.registry import tables

MEMORY_MIB = 80
START = """\
(APIServer pid=7) INFO 11-29 12:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.31.0
(APIServer pid=7) INFO 11-29 12:00:00 [api_utils.py:286] non-default args: {'model': 'm'}
(EngineCore pid=9) INFO 11-29 12:00:09 [core.py:129] Initializing a V1 LLM engine (v0.31.0) with config: model='m'
(EngineCore pid=9) INFO 11-29 12:00:12 [default_loader.py:430] Loading weights took 2.10 seconds
(EngineCore pid=9) INFO 11-29 12:00:13 [model_runner.py:5405] Model loading took 27.67 GiB memory and 3.710028 seconds
(EngineCore pid=9) INFO 11-29 12:00:31 [gpu_worker.py:563] Available KV cache memory: 41.03 GiB
(EngineCore pid=9) INFO 11-29 12:00:31 [kv_cache_utils.py:2235] GPU KV cache size: 292,522 tokens
(APIServer pid=7) INFO:     Started server process [7]
(APIServer pid=7) INFO:     Application startup complete.
"""


def write(path: Path, megabytes: int, every: int, start: bytes) -> None:
    """One start, then traffic."""
    chance = random.Random(1)  # noqa: S311 (traffic, no secret)
    left = megabytes * 1_000_000 - len(start)
    number = 0
    with path.open("wb") as out:
        out.write(start)
        while left > 0:
            block = []
            for _ in range(2000):
                number += 1
                if number % every:
                    way = chance.choice(
                        ("POST /v1/chat/completions", "POST /v1/completions", "GET /metrics", "GET /health")
                    )
                    block.append(
                        f"(APIServer pid=7) INFO:     10.0.{chance.randrange(256)}.7:{chance.randrange(1 << 16)} - "
                        f'"{way} HTTP/1.1" 200 OK\n'
                    )
                else:
                    now = f"{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
                    block.append(
                        f"(APIServer pid=7) INFO 11-29 {now} "
                        f"[loggers.py:310] Engine 000: Avg prompt throughput: {chance.random() * 9000:.1f} tokens/s, "
                        f"Avg generation throughput: {chance.random() * 900:.1f} tokens/s, "
                        f"Running: {chance.randrange(64)} reqs, Waiting: {chance.randrange(3)} reqs, "
                        f"GPU KV cache usage: {chance.random() * 100:.1f}%, "
                        f"Prefix cache hit rate: {chance.random() * 100:.1f}%\n"
                    )
            data = "".join(block).encode()
            out.write(data)
            left -= len(data)


def once(argv: list[str]) -> tuple[float, float, int]:
    """Seconds of wall time and of CPU time (user and system) of a run, and its peak memory in KiB."""
    begin = time.perf_counter()
    # Into a file: grep stops at the first match when its output is /dev/null.
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(argv, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--statistics", type=int, default=100, help="one statistics line in so many lines")
    parser.add_argument("--start", type=Path, help="a real log to begin with")
    parser.add_argument("--keep", type=Path, help="write the log here and keep it")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--bar", type=float, default=2.0)
    args = parser.parse_args()
    grep = shutil.which("grep")
    if grep is None:
        print("grep is missing")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        log = args.keep or Path(folder, "engine.log")
        write(log, args.megabytes, args.statistics, args.start.read_bytes() if args.start else START.encode())
        told = [anchor if isinstance(anchor, str) else anchor.decode() for anchor in ANCHORS]
        anchors = sorted({*told, *(anchor for _, table in tables() for anchor in table.anchors)})
        pattern = "|".join(re.sub(r"([.\[\]{}()*+?^$|\\])", r"\\\1", anchor) for anchor in anchors)
        search = [grep, "-cE", "--", pattern, str(log)]
        explain = [sys.executable, "-m", "pytest_startup.cli", "explain", "--json", str(log)]
        runs = [(once(search), once(explain)) for _ in range(args.times)]
    theirs, their_cpu = (statistics.median(run[0][i] for run in runs) for i in (0, 1))
    ours, our_cpu = (statistics.median(run[1][i] for run in runs) for i in (0, 1))
    peak = max(run[1][2] for run in runs)
    ratio = our_cpu / their_cpu
    print(
        f"{args.megabytes} MB, 1 statistics line in {args.statistics}, {len(anchors)} anchors: explain {ours:.2f} s, "
        f"grep -cE {theirs:.2f} s, ratio {ours / theirs:.2f}; CPU {our_cpu:.2f} s to {their_cpu:.2f} s, "
        f"ratio {ratio:.2f} (bar {args.bar:g}); peak memory {peak / 1024:.0f} MiB (bar {MEMORY_MIB})"
    )
    return int(ratio > args.bar or peak > MEMORY_MIB * 1024)


if __name__ == "__main__":
    sys.exit(main())
