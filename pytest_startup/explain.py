"""``pytest-startup explain``: read start-up logs; say what they state, where a start stands, and why it failed."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from pytest_startup.engines.base import LogSummary
from pytest_startup.engines.merge import merged
from pytest_startup.engines.output import JsonStream, summary_to_json, unknown_to_json
from pytest_startup.engines.reader import Reader
from pytest_startup.engines.registry import UnknownEngine, tables
from pytest_startup.engines.rules import RuleTable
from pytest_startup.engines.sources import (
    SourceError,
    backwards,
    beginning,
    chunks,
    is_newest_first,
    open_source,
    spooled,
)
from pytest_startup.engines.unknown import UnknownLines
from pytest_startup.explain_text import Digest
from pytest_startup.record import JSON, Fact

EXIT_CODES = """\
exit codes:
  0  every log was read, and the last start of each did not fail (it is ready, or the log does not say)
  1  the last start of a log failed
  2  wrong arguments
  3  a log can't be read, or nothing in it is of an engine that is known here
"""


def main(argv: Sequence[str]) -> int:
    """The subcommand. Exit codes: see ``EXIT_CODES``."""
    try:
        args = _parser().parse_args(argv)
    except SystemExit as done:
        return int(done.code or 0)
    try:
        rules = tables(*([args.engine] if args.engine else []))
    except UnknownEngine as error:
        print(f"pytest-startup explain: --engine: {error}", file=sys.stderr)
        return 2
    if sys.stdout is None:
        return 3
    try:
        code = _run(args, rules)
        sys.stdout.flush()
        return code
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"pytest-startup explain: writing the answer: {error.strerror or error}", file=sys.stderr)
        # Whoever read our output has seen enough; Python must not complain about it when it exits.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if isinstance(error, BrokenPipeError) else 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-startup explain",
        description="Read start-up logs of vLLM and SGLang: starts, phases, facts, the cause of a failure.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log", nargs="+", metavar="LOG", help="a log file, also .gz or .zst; - is standard input")
    parser.add_argument("--json", action="store_true", help="print facts and starts as JSON")
    parser.add_argument("--nodes", action="store_true", help="the LOGs are those of several nodes of the same starts")
    parser.add_argument("--engine", metavar="NAME", help="read as the log of this engine (default: look)")
    parser.add_argument("--unknown", action="store_true", help="also list lines that look like facts but match no rule")
    return parser


def _run(args: argparse.Namespace, rules: Sequence[tuple[str, RuleTable]]) -> int:
    stream = JsonStream(sys.stdout) if args.json else None
    code = 0
    starts: list[dict[str, JSON]] = []
    strange: list[JSON] = []
    for paths in [args.log] if args.nodes else [[path] for path in args.log]:
        unknown = UnknownLines() if args.unknown else None
        nodes = node_names(paths) if len(paths) > 1 else {}
        reader = Reader(rules, paths[0], unknown, {node: path for path, node in nodes.items()}, series=True)
        digest = Digest(paths)
        told = 0
        try:
            for facts in _facts(reader, paths, nodes):
                told += len(facts)
                if stream:
                    stream.facts(facts)
                else:
                    digest.facts(facts)
        except SourceError as error:
            print(f"pytest-startup explain: {error}", file=sys.stderr)
            code = 3
        facts, summaries = reader.close()
        told += len(facts)
        if stream:
            stream.facts(facts)
        else:
            digest.facts(facts)
        if not told and all(s.last_line == 0 for s in summaries):
            if code < 3:
                print(f"pytest-startup explain: {' + '.join(paths)}: empty", file=sys.stderr)
            code = 3
            continue
        starts.extend(summary_to_json(s, paths[0]) for s in summaries)
        if unknown is not None:
            strange.extend(unknown_to_json(line, paths[0]) for line in unknown.lines)
        if not stream:
            print(digest.text(summaries, unknown.lines if unknown else ()))
        code = max(code, _code(summaries, told))
    if stream:
        more: dict[str, JSON] = {"unknown": strange} if args.unknown else {}
        stream.close(starts, **more)
    return code


def _code(summaries: Sequence[LogSummary], told: int) -> int:
    if not told and all(s.engine is None and not s.failed for s in summaries):
        return 3
    return 1 if summaries and summaries[-1].failed else 0


def node_names(paths: Sequence[str]) -> dict[str, str]:
    """Path → a short distinct name of the node: the stem, or the folder's name where the stems are equal."""
    stems = [PurePath(p).name.split(".")[0] for p in paths]
    if len(set(stems)) < len(stems):
        stems = [PurePath(p).parent.name or p for p in paths]
    if len(set(stems)) < len(stems):
        stems = list(paths)
    return dict(zip(paths, stems, strict=True))


def _facts(reader: Reader, paths: Sequence[str], nodes: dict[str, str]) -> Iterator[list[Fact]]:
    """The facts of a log, or of those of all nodes in the order of their times, as they are read."""
    with contextlib.ExitStack() as stack:
        streams: dict[str, Iterator[bytes]] = {}
        for path in paths:
            pieces = chunks(stack.enter_context(open_source(path)), path)
            head, error = beginning(pieces)
            if is_newest_first(head):
                with contextlib.closing(spooled(head, pieces)) as whole:
                    for number, lines in backwards(whole):
                        yield reader.lines(lines, number, -1, nodes.get(path))
            elif len(paths) > 1:
                streams[nodes[path]] = _whole(head, error, pieces)
            else:
                for data in _whole(head, error, pieces):
                    yield reader.feed(data)
        for node, data in merged(streams):
            yield reader.feed(data, None, node)


def _whole(head: bytes, error: SourceError | None, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    if error is not None:
        raise error
    yield from pieces
