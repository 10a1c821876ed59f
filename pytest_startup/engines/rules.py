"""Rules as data: what one wording of an engine's log states, and the table that applies all of them to a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pytest_startup.engines.lines import Line
from pytest_startup.engines.search import has_fast_search, search_any
from pytest_startup.record import JSON, Evidence, Fact
from pytest_startup.redact import Redactor

#: How a rule makes its value: text and numbers from the group ``value``; ``members`` is an object of all named groups.
KINDS = ("text", "number", "integer", "list", "members")

TEXT_LIMIT = 400
#: Longer numbers are damage, and Python refuses to read very long ones.
_DIGITS = 30
_WORTH_IT = 1000
#: Behind a whole number it shows that the line was damaged: the number is another.
_FRACTION = re.compile(r"\.\d")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Rule:
    """One wording that states one fact.

    ``anchor``: one literal, or several of which any one will do; the pattern can only match where one of them occurs
    (the reader skims whole blocks for them), so one is part of every match. ``pattern`` is searched in ``Line.message``
    (in ``Line.text`` when ``whole``). Its named groups: ``value`` (see ``kind``), ``unit`` (overrides ``unit``),
    ``rank`` (overrides the line's rank), those that start with ``_`` are ignored; all others become members of
    ``Fact.detail`` (numbers where they look like numbers). Without a group ``value`` the whole match is the text.
    ``every``: use each match of the line, not only the first. ``bar``: the line is a progress bar, only its last state
    counts (groups ``done`` and ``total``; 0 of N is no statement). ``tally``: a row of a table that comes again and
    again; of the rows of one ``kind`` that with the most ``steps`` is kept, and their total. ``by`` who prints it (API,
    EC, W, R each rank, 1 local rank 0, G global rank 0), ``versions`` where the wording occurs. ``example`` must match,
    ``counter`` must not.
    """

    fact: str
    anchor: str | tuple[str, ...]
    pattern: str
    example: str
    counter: str
    kind: str = "text"
    unit: str | None = None
    by: str = ""
    versions: str = ""
    detail: Mapping[str, JSON] = field(default_factory=dict)
    whole: bool = False
    every: bool = False
    bar: bool = False
    tally: bool = False

    @property
    def anchors(self) -> tuple[str, ...]:
        """Literals, one of which is in every line that the rule fits."""
        return (self.anchor,) if isinstance(self.anchor, str) else self.anchor


class _Compiled:
    """A rule, whose pattern is compiled when its anchor is met for the first time: most logs need few of them."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.rule.pattern)


def number(text: str) -> int | float | None:
    """``1,234`` → 1234, ``3.50`` → 3.5, None where the text is no number (or one that no engine can mean)."""
    if len(text) > _DIGITS or not _NUMBER.fullmatch(text):
        return None
    plain = text.replace(",", "")
    return float(plain) if any(c in plain for c in ".eE") else int(plain)


#: Without what looks like a key, a token or a password. The secrets of a profile are not known here.
masked = Redactor().text


def member(text: str) -> JSON:
    """A member of a compound statement: a number where it looks like one, else the text, masked."""
    found = number(text)
    return masked(text.strip()) if found is None else found


def shortened(text: str) -> str:
    """Evidence text: at most 400 characters, no secret, no line break."""
    text = masked(text[:8192]).strip()
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 1] + "…"


def evidence(line: Line, where: str) -> Evidence:
    """The line as evidence."""
    return Evidence("log", where, shortened(line.text), line.number, line.node, line.rank, line.seconds)


class RuleTable:
    """All rules of one or several engines, applied to lines by way of their anchors."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self._by_anchor: dict[str, list[_Compiled]] = {}
        for rule in self.rules:
            compiled = _Compiled(rule)
            for anchor in rule.anchors:
                self._by_anchor.setdefault(anchor, []).append(compiled)
        self.anchors: tuple[str, ...] = tuple(self._by_anchor)
        self._any: Callable[..., Any] | None = None
        self._lines = 0

    def facts(self, line: Line, where: str, start: int = 0) -> list[Fact]:
        """What the line states, in the order of the table; equal statements of two rules count once."""
        return [fact for fact, _ in self.matches(line, where, start)]

    def matches(self, line: Line, where: str, start: int = 0) -> list[tuple[Fact, Rule]]:
        """As ``facts``, each with the rule that gave it."""
        text = line.text
        if not self._may_match(text):
            return []
        tried: set[int] = set()
        out: list[tuple[Fact, Rule]] = []
        seen: set[tuple[str, str]] = set()
        proof: Evidence | None = None
        for anchor, candidates in self._by_anchor.items():
            if anchor not in text:
                continue
            for compiled in candidates:
                if id(compiled) in tried:
                    continue
                tried.add(id(compiled))
                subject = text if compiled.rule.whole else line.message
                for match in _matches(compiled, subject):
                    proof = proof or evidence(line, where)
                    fact = _fact(compiled, match, line, proof, start)
                    if fact is None:
                        continue
                    mark = (fact.name, repr((fact.value, fact.rank, sorted(fact.detail.items(), key=str))))
                    if mark not in seen:
                        seen.add(mark)
                        out.append((fact, compiled.rule))
        return out

    def _may_match(self, text: str) -> bool:
        """Whether any anchor is in the text, where a quick search can tell; else a loop over them has to.

        Building the search takes as long as looping for some hundred lines does.
        """
        if self._any is None:
            self._lines += 1
            if self._lines < _WORTH_IT:
                return True
            quick = has_fast_search() and len(self.anchors) > 20
            self._any = search_any(a.encode() for a in self.anchors) if quick else _always
        return bool(self._any(text.encode("utf-8", "replace"), 0))


def _always(_text: bytes, _position: int) -> bool:
    return True


def _matches(compiled: _Compiled, subject: str) -> Iterator[re.Match[str]]:
    if compiled.rule.bar:
        last: dict[str, re.Match[str]] = {}
        for match in compiled.regex.finditer(subject):
            names = match.groupdict()
            last[f"{names.get('who')} {names.get('kind')}"] = match
        yield from last.values()
    elif compiled.rule.every:
        yield from compiled.regex.finditer(subject)
    else:
        found = compiled.regex.search(subject)
        if found:
            yield found


def _fact(compiled: _Compiled, match: re.Match[str], line: Line, proof: Evidence, start: int) -> Fact | None:
    rule = compiled.rule
    found = {k: v for k, v in match.groupdict().items() if v is not None and not k.startswith("_")}
    unit = found.pop("unit", rule.unit)
    rank = found.pop("rank", None) or line.rank
    raw = found.pop("value", None)
    value: JSON
    if rule.kind == "members":
        value = {k: member(v) for k, v in found.items() if v != "N/A"}
        found = {k: v for k, v in found.items() if k in ("kind", "who")}
        if rule.bar and not (isinstance(value, dict) and value.get("done")):
            return None
    elif rule.kind in ("number", "integer"):
        if raw is None:
            return None
        value = number(raw)
        end = match.end("value")
        if value is None or (rule.kind == "integer" and _FRACTION.match(match.string, end)):
            return None
    elif rule.kind == "list":
        value = [item for part in (raw or "").split(",") if (item := member(part.strip(" '\"\t"))) != ""]
    else:
        value = masked(raw if raw is not None else match.group(0)).strip()
        if not value:
            return None
    detail: dict[str, JSON] = dict(rule.detail)
    detail.update({k: member(v) for k, v in found.items()})
    if line.repeated > 1:
        detail["repeated"] = line.repeated
    if line.process and line.process != rank:
        detail["process"] = line.process
    return Fact(rule.fact, value, proof, unit, rank, line.node, line.engine, start, detail)


def broken(rules: Sequence[Rule]) -> list[str]:
    """What is wrong with rules as data: examples that do not match, counter-examples that do, weak anchors."""
    faults: list[str] = []
    for rule in rules:
        name = f"{rule.fact} /{rule.pattern}/"
        table = RuleTable([rule])
        if rule.kind not in KINDS:
            faults.append(f"{name}: kind {rule.kind!r}, expected one of {', '.join(KINDS)}")
        if any(len(anchor) < 5 for anchor in rule.anchors):
            faults.append(f"{name}: an anchor of fewer than 5 characters")
        if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", rule.fact):
            faults.append(f"{name}: {rule.fact!r} is no fact name")
        good = Line(1, rule.example.encode(), rule.example, rule.example)
        bad = Line(1, rule.counter.encode(), rule.counter, rule.counter)
        if not table.facts(good, "example"):
            faults.append(f"{name}: the example does not match: {rule.example}")
        if not rule.counter or table.facts(bad, "counter"):
            faults.append(f"{name}: the counter-example is missing or matches: {rule.counter}")
    return faults
