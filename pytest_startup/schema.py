"""The command ``pytest-startup schema``: print a JSON schema as shipped, or the profile's keys as a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "schemas"
_SUFFIX = ".schema.json"


def names() -> list[str]:
    """The schemas that are shipped: profile, record, baseline …"""
    return sorted(p.name.removesuffix(_SUFFIX) for p in FOLDER.glob("*" + _SUFFIX))


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0 printed, 2 usage."""
    parser = argparse.ArgumentParser(
        prog="pytest-startup schema",
        description="Print a JSON schema (2020-12). Editors: '# yaml-language-server: $schema=FILE' as the first line.",
    )
    parser.add_argument("name", nargs="?", help="one of: " + ", ".join(names()) + "; without it, they are listed")
    parser.add_argument("--markdown", action="store_true", help="every key of the profile as tables for people")
    given = parser.parse_args(list(argv))
    if given.name is None:
        for name in names():
            print(f"{name:<9} {FOLDER / (name + _SUFFIX)}")
        return 0
    if given.name not in names():
        from pytest_startup.profile.problems import nearest

        near = nearest(given.name, names())
        hint = f"; did you mean {near}?" if near else ""
        print(f"pytest-startup schema: no schema {given.name!r}{hint} (known: {', '.join(names())})", file=sys.stderr)
        return 2
    if given.markdown:
        if given.name != "profile":
            print("pytest-startup schema: --markdown is for the schema profile only", file=sys.stderr)
            return 2
        from pytest_startup.profile.page import tables

        print(tables(), end="")
        return 0
    print((FOLDER / (given.name + _SUFFIX)).read_text("utf-8"), end="")
    return 0
