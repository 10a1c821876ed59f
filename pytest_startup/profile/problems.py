"""What is wrong with a profile: every problem with its line, its key, what was expected and how to write it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: From the root of the file to a value: keys and list indices.
KeyPath = tuple[str | int, ...]


def dotted(path: KeyPath) -> str:
    """``restarts.0.kind``, as in messages and in ``Profile.origin``."""
    return ".".join(str(part) for part in path)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The legal spelling that is closest to ``word``, hyphens and case put aside; None: nothing is close."""
    import difflib

    by_plain = {k.replace("-", "_").casefold(): k for k in known}
    found = difflib.get_close_matches(word.replace("-", "_").casefold(), by_plain, n=1, cutoff=0.6)
    return by_plain[found[0]] if found else None


def suggested(word: str, legal: Collection[str]) -> str:
    """``did you mean check?``, or all that is legal where nothing is close."""
    near = nearest(word, legal)
    return f"did you mean {near}?" if near else f"known: {', '.join(legal) or 'none'}"


def meant(text: str, legal: Iterable[str]) -> str:
    """``; did you mean 'check'?`` or nothing."""
    import difflib

    near = difflib.get_close_matches(text, list(legal), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def not_a_pattern(text: str) -> str | None:
    """What is wrong with ``text`` as a regular expression; None: nothing."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as e:
        return f"not a regular expression: {e}; for the text itself write {re.escape(text[:60])}"
    return None


def printable(text: str) -> str:
    """``text`` on one line, with control characters made visible: a key, a file's name or a log line must not steer the
    user's terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True, order=True)
class Problem:
    """``line`` and ``column`` count from 1 (0: the file could not be opened); ``key`` is dotted, may be empty."""

    line: int
    column: int
    key: str
    text: str

    def shown(self, file: Path | str, with_column: bool = False) -> str:
        """``FILE:LINE: KEY: TEXT``, the form that editors and CI logs link."""
        numbers = [self.line, self.column] if with_column else [self.line]
        place = ":".join(str(part) for part in (file, *numbers) if part != 0)
        return printable(f"{place}: {self.key}: {self.text}" if self.key else f"{place}: {self.text}")


class ProfileError(Exception):
    """A profile that can't be used. ``problems`` holds all that is wrong, in the order of the file.

    ``syntax`` True: the text is not YAML as we read it, and its single problem is shown with its column. ``data``: what
    could be read, unchecked.
    """

    def __init__(
        self, path: Path, problems: Iterable[Problem], syntax: bool = False, data: Mapping[str, Any] | None = None
    ) -> None:
        self.path = path
        self.data: Mapping[str, Any] = data or {}
        self.problems = tuple(sorted(set(problems)))
        self.syntax = syntax
        super().__init__(str(path))

    def lines(self) -> list[str]:
        """One message per line, each beginning with ``file:line``."""
        return [p.shown(self.path, self.syntax) for p in self.problems]

    def __str__(self) -> str:
        return "\n".join(self.lines())
