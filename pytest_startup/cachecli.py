"""``pytest-startup cache DIR``: the rank ledger of a cache folder, and the difference of two."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

EXIT_CODES = """\
exit codes:
  0  nothing wrong was found (and with --against: both folders hold the same files)
  1  something was found, or the folders differ
  2  wrong arguments
  3  a folder is not there or can't be read
"""


def main(argv: Sequence[str]) -> int:
    """The subcommand. Exit codes: see ``EXIT_CODES``."""
    try:
        args = _parser().parse_args(argv)
    except SystemExit as done:
        return int(done.code or 0)
    from pytest_startup import cache_report
    from pytest_startup.observe.caches import snapshot

    folders = []
    for name in [args.folder, *([args.against] if args.against else [])]:
        problem = _problem(name)
        if problem:
            print(f"pytest-startup cache: {name}: {problem}", file=sys.stderr)
            return 3
        shot = snapshot("cache", name, kind=args.kind)
        folders.append(cache_report.look(shot, args.ranks, args.records))
    found = bool(folders[0].ledger.findings)
    change = cache_report.difference(folders[0], folders[1]) if len(folders) == 2 else None
    if args.json:
        out = cache_report.to_json(folders[0])
        if change is not None:
            out["against"] = change
        print(json.dumps(out, indent=2, ensure_ascii=False))
    else:
        print("\n".join(cache_report.text(folders[0])))
        if change is not None:
            print("\n".join(["", *cache_report.difference_text(folders[1], change)]))
    return int(found or (change is not None and cache_report.differs(change)))


def _problem(name: str) -> str | None:
    path = Path(name)
    try:
        if not path.exists():
            near = path.parent if path.parent.is_dir() else None
            return "no such folder" + (f" (its parent {near} exists)" if near and str(near) != "." else "")
        if not path.is_dir():
            return "a folder is expected, this is a file"
        next(path.iterdir(), None)
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 is expected, not {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-startup cache",
        description="The rank ledger of a cache folder: tuning records and compiled artifacts, per rank; nothing in it"
        " is executed. Two folders (head and worker, before and after) are compared file by file, record by record.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="a cache root (VLLM_CACHE_ROOT) or any folder below it")
    parser.add_argument("--against", metavar="DIR2", help="a second folder to compare with")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--ranks", type=_positive, metavar="N", help="so many ranks must have records")
    parser.add_argument("--records", type=_positive, metavar="N", help="so many own tuning records per rank")
    parser.add_argument(
        "--kind",
        choices=("compile", "autotune", "triton", "inductor", "jit", "other"),
        default="other",
        help="what the folder is, where file names don't tell (autotune: every JSON file holds records)",
    )
    return parser
