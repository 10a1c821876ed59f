"""Strict YAML: text to plain data with the line of every value, without any of YAML's surprises.

Only what a reader of the file would expect is read: scalars, lists and mappings with text keys. Plain scalars follow
the YAML 1.2 core schema: ``true``/``false``, ``null``, decimal integers and floats; everything else stays text, so
``on``, ``yes``, ``1:30``, ``0755``, ``1_000`` and dates are text. Anchors, aliases, merge keys, tags, directives,
several documents and duplicate keys are errors. The tree is built from the parser's events without recursion, with a
limit on depth and size, so that no input can exhaust stack or memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Union

from pytest_startup.profile.problems import KeyPath, Problem, dotted

MAX_BYTES = 1 << 20
MAX_DEPTH = 32

_INT = re.compile(r"-?(0|[1-9][0-9]{0,39})")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]+|\.)?([eE][-+]?[0-9]{1,2})?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS.update(dict.fromkeys(("true", "True", "TRUE"), True))
_WORDS.update(dict.fromkeys(("false", "False", "FALSE"), False))
#: Control characters (a terminal would act on them) and the line breaks that only YAML 1.1 knows.
_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class SourceInt(int):
    """An integer that knows how it was written (an all-digit revision is compared as written)."""

    source: str


class SourceFloat(float):
    """A float that knows how it was written: version ``0.10`` is not ``0.1``."""

    source: str


class Broken:
    """Stands for a value that was refused; whoever meets it says nothing more about it."""


BROKEN = Broken()
Data = Union[None, bool, int, float, str, list[Any], dict[str, Any], Broken]


@dataclass(frozen=True)
class Tree:
    """``data`` and, by path, the (line, column) of every key and value, counted from 1."""

    data: Data
    marks: dict[KeyPath, tuple[int, int]]
    problems: tuple[Problem, ...] = ()

    def mark(self, path: KeyPath) -> tuple[int, int]:
        """Place of the value, or of the nearest one above that the file holds."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, (1, 1))


class YamlSyntaxError(Exception):
    """The text could not be read at all. ``problem`` says where and why."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(line, column, "", text)


def scalar(text: str) -> Data:
    """The value of a plain (unquoted) scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        whole = SourceInt(text)
        whole.source = text
        return whole
    if (
        len(text) <= 40
        and _FLOAT.fullmatch(text)
        and any(c.isdigit() for c in text.partition("e")[0].partition("E")[0])
    ):
        real = SourceFloat(text)
        real.source = text
        return real
    return text


@dataclass
class _Frame:
    """A list or mapping that is being filled.

    ``has_key``: a value comes next, that of ``key``; with ``key`` None it belongs to a key that was refused. ``first``:
    the line of each key.
    """

    data: list[Any] | dict[str, Any]
    path: KeyPath
    key: str | None = None
    has_key: bool = False
    first: dict[str, int] = field(default_factory=dict)


class _Builder:
    def __init__(self) -> None:
        self.marks: dict[KeyPath, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self.stack: list[_Frame] = []
        self.root: Data = None

    def problem(self, event: Any, path: KeyPath, text: str) -> None:
        mark = event.start_mark
        self.problems.append(Problem(mark.line + 1, mark.column + 1, dotted(path), text))

    def path(self) -> KeyPath:
        """Where the next value belongs."""
        if not self.stack:
            return ()
        top = self.stack[-1]
        if isinstance(top.data, list):
            return (*top.path, len(top.data))
        return (*top.path, top.key) if top.key is not None else top.path

    def expects_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].data, dict) and not self.stack[-1].has_key

    def take(self, value: Data, event: Any) -> None:
        """A finished value (not a key) goes where it belongs."""
        if not self.stack:
            self.root = value
            return
        top = self.stack[-1]
        if isinstance(top.data, list):
            top.data.append(value)
        elif top.has_key:
            if top.key is not None:
                top.data[top.key] = value
            top.key, top.has_key = None, False
        else:  # a list or mapping that stood where a key belongs
            self.problem(event, top.path, "a key must be text; expected NAME: value")
            top.has_key = True

    def key(self, event: Any) -> None:
        top = self.stack[-1]
        top.has_key = True
        word = event.value
        if event.implicit[0] and word in ("", "~"):
            self.problem(event, top.path, "a key is missing before ':'; expected NAME: value")
        elif event.implicit[0] and word == "<<":
            self.problem(event, top.path, "merge keys (<<) are not supported; write the values out")
        elif word in top.first:
            text = f"key is given twice, first in line {top.first[word]}; remove one"
            self.problem(event, (*top.path, word), text)
        else:
            top.key = word
            top.first[word] = event.start_mark.line + 1
            path: KeyPath = (*top.path, word)
            self.marks[path] = (event.start_mark.line + 1, event.start_mark.column + 1)

    def refuse(self, event: Any) -> bool:
        """Anchors and tags are refused; True: the value is not to be used."""
        if getattr(event, "anchor", None) is not None and not type(event).__name__.startswith("Alias"):
            self.problem(event, self.path(), f"anchors (&{event.anchor}) are not supported; write the values out")
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            self.problem(event, self.path(), f"tags ({shown}) are not supported; write the plain value")
        return tag is not None

    def feed(self, event: Any) -> None:
        kind = type(event).__name__
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            self.refuse(event)
            if len(self.stack) >= MAX_DEPTH:
                raise YamlSyntaxError(
                    event.start_mark.line + 1, event.start_mark.column + 1, f"nested deeper than {MAX_DEPTH} levels"
                )
            self.mark(event)
            data: list[Any] | dict[str, Any] = {} if kind.startswith("Map") else []
            self.stack.append(_Frame(data, self.path()))
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self.take(self.stack.pop().data, event)
        elif kind == "AliasEvent":
            self.problem(event, self.path(), f"aliases (*{event.anchor}) are not supported; write the values out")
            if self.expects_key():
                self.stack[-1].has_key = True
            else:
                self.mark(event)
                self.take(BROKEN, event)
        elif kind == "ScalarEvent":
            refused = self.refuse(event)
            if self.expects_key():
                self.key(event)
                return
            self.mark(event)
            if any("\ud800" <= c <= "\udfff" for c in event.value):
                self.problem(event, self.path(), "half of a surrogate pair is not a character")
                refused = True
            value: Data = scalar(event.value) if event.implicit[0] else event.value
            self.take(BROKEN if refused else value, event)

    def mark(self, event: Any) -> None:
        self.marks.setdefault(self.path(), (event.start_mark.line + 1, event.start_mark.column + 1))


def _decode(raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        raise YamlSyntaxError(1, 1, f"larger than {MAX_BYTES >> 20} MiB; that is no profile")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        column = e.start - raw.rfind(b"\n", 0, e.start)
        raise YamlSyntaxError(line, column, f"not UTF-8 text (byte 0x{raw[e.start]:02x})") from None
    found = _REFUSED.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        raise YamlSyntaxError(
            line, column, f"character U+{ord(found[0]):04X} is not allowed; write an escape in quotes"
        )
    return text


def _events(text: str) -> Iterator[Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.parse(text, Loader=loader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        why = e.problem or e.context or "unreadable"
        if e.context and e.problem:
            since = f" that begins in line {e.context_mark.line + 1}" if e.context_mark else ""
            why = f"{why} ({e.context}{since})"
        raise YamlSyntaxError(line, column, f"not YAML: {why}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as e:
        raise YamlSyntaxError(1, 1, f"not YAML: {str(e).splitlines()[0] if str(e) else 'unreadable'}") from None


def parse(raw: bytes) -> Tree:
    """Read one document. Raises YamlSyntaxError; what is merely not allowed is in ``Tree.problems``."""
    builder = _Builder()
    documents = 0
    for event in _events(_decode(raw)):
        if type(event).__name__ == "DocumentStartEvent":
            documents += 1
            mark = event.start_mark
            if documents > 1:
                raise YamlSyntaxError(
                    mark.line + 1, mark.column + 1, "a second document begins; a profile is one document"
                )
            if event.version or event.tags:
                raise YamlSyntaxError(mark.line + 1, mark.column + 1, "directives (%YAML, %TAG) are not supported")
            continue
        builder.feed(event)
    return Tree(builder.root, builder.marks, tuple(builder.problems))
