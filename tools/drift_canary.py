#!/usr/bin/env python3
"""Which rules of vLLM no longer have a source string in an installed package or a wheel?

usage: drift_canary.py PACKAGE_FOLDER_OR_WHEEL... [--new]

PACKAGE_FOLDER is the folder ``vllm`` (and ``flashinfer``, when its wordings are wanted) of an installed release. Every
string constant and f-string of the sources becomes a sample message (its place-holders filled with numbers, names and
paths); a rule lives when it matches a sample, or when its anchor stands in one. --new lists log strings of the
release that look like facts but match no rule: candidates for new rules. Exit code 1 when a rule without a
source string does not say in ``versions`` that it belongs to other releases.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pytest_startup.engines.lines import Line
from pytest_startup.engines.rules import Rule, RuleTable
from pytest_startup.engines.unknown import looks_like_fact
from pytest_startup.engines.vllm_rules import VLLM_RULES

_PLACE = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?([sdifgr%x])|\{[^{}]*\}")
#: Who prints these is no part of the package.
_FOREIGN = ("FlashInfer", "torch", "container banner")


def sources(path: Path) -> Iterator[tuple[str, str]]:
    """``(name, text)`` of each Python file of a folder or wheel."""
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            yield str(file), file.read_text("utf-8", "replace")
        return
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if name.endswith(".py"):
                yield name, wheel.read(name).decode("utf-8", "replace")


def strings(text: str) -> Iterator[tuple[str, bool]]:
    """String constants and f-strings, ``{}`` for what is filled in; and whether a logger is called with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
    logged: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on = ast.unparse(node.func.value)
            if on.endswith(("logger", "log", "logging")) and not node.func.attr.startswith("debug"):
                logged |= {id(n) for a in node.args[:1] for n in ast.walk(a)}
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(v) for v in node.values}
            yield (
                "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values),
                id(node) in logged,
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value, id(node) in logged


def samples(text: str) -> list[str]:
    """The message with its place-holders filled: with a number, with a name, with a path."""
    out = []
    for number, name in (("12", "12"), ("12.34", "NAME"), ("12", "/a/path"), ("12", "NAME"), ("12", "0")):
        fill = lambda m, n=number, w=name: w if (m.group(1) or "s") in "sr" else "%" if m.group(1) == "%" else n  # noqa: E731
        out.append(_PLACE.sub(fill, text))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="+", type=Path)
    parser.add_argument("--new", action="store_true")
    args = parser.parse_args()
    texts: dict[str, bool] = {}
    for package in args.package:
        for _, source in sources(package):
            for text, logged in strings(source):
                if 8 <= len(text) <= 4000:
                    texts[text] = texts.get(text, False) or logged
    everything = "\n".join(texts)
    print(f"{len(texts)} strings, {len(VLLM_RULES)} rules")
    dead: list[Rule] = []
    for rule in VLLM_RULES:
        table = RuleTable([rule])
        near = [t for t in texts if any(a in t for a in rule.anchors) or any(a in s for a in rule.anchors for s in [t])]
        found = any(table.facts(_line(s), "x") for t in near for s in samples(t))
        if not found and not any(anchor.strip() in everything for anchor in rule.anchors):
            dead.append(rule)
    for rule in dead:
        known = "known" if rule.versions or rule.by.startswith(_FOREIGN) else "UNEXPLAINED"
        print(f"no source string  {known:<11} {rule.fact:<24} {rule.anchors[0]!r}  ({rule.versions or rule.by})")
    if args.new:
        table = RuleTable(VLLM_RULES)
        for text in sorted(t for t, logged in texts.items() if logged):
            lines = [_line(s) for s in samples(text)]
            if any(map(looks_like_fact, lines)) and not any(table.facts(line, "x") for line in lines):
                print(f"no rule  {text[:180]!r}")
    return int(any(not rule.versions and not rule.by.startswith(_FOREIGN) for rule in dead))


def _line(text: str) -> Line:
    return Line(1, b"", text, text, level="INFO", process="EngineCore")


if __name__ == "__main__":
    sys.exit(main())
