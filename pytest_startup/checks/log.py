"""log: the profile's own patterns: forbidden lines are absent, required ones stand in every start, node or rank."""

from __future__ import annotations

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.leftup import left_up
from pytest_startup.profile.expect import LogPattern
from pytest_startup.profile.model import Profile
from pytest_startup.record import Evidence, Fact, StartRecord


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, _baseline: Baseline | None) -> Verdict:
    """Judges ``log.match`` facts: one for each line that a pattern of the profile matched."""
    judging = common.Judging("log", "the log of this start: no line of it was read")
    read = _was_read(start)
    wanted = profile.expect.log
    if not wanted.forbid and not wanted.require:
        judging.unseen = "a pattern to look for: expect.log names none"
        return judging.verdict()
    if read is None:
        return judging.verdict()
    judging.saw(read)
    for fact in start.named("log.incomplete"):
        judging.not_observable(
            f"the log of this start is incomplete, so that an absent line proves nothing: {fact.value}",
            "a complete log",
            "the lines behind the break",
            [fact],
            ("look at the free space of the artifacts folder",),
        )
    for i, pattern in enumerate(wanted.forbid):
        _forbidden(judging, pattern, matches(start, pattern, "forbid"), f"expect.log.forbid.{i}")
    for i, pattern in enumerate(wanted.require):
        _required(judging, pattern, reference, start, f"expect.log.require.{i}")
    return judging.verdict()


def matches(start: StartRecord, pattern: LogPattern, kind: str) -> list[Fact]:
    """Facts ``log.match`` of this pattern (``kind``: forbid or require)."""
    return [
        f
        for f in start.named("log.match")
        if f.detail.get("pattern") == pattern.pattern and f.detail.get("kind", kind) == kind
    ]


def _was_read(start: StartRecord) -> Evidence | None:
    """That a forbidden line is absent can only be said of a log that was read."""
    for fact in (*start.named("log.lines"), *start.facts):
        if fact.name == "log.lines" or fact.evidence.source == "log":
            return fact.evidence
    return None


def _forbidden(judging: common.Judging, pattern: LogPattern, found: list[Fact], source: str) -> None:
    if found:
        judging.failed(
            f"a forbidden line stands in the log {len(found)} time{'s' if len(found) > 1 else ''}, first on "
            f"{common.who(found[0])}",
            f"no line that matches {pattern.pattern!r}",
            [f"{common.who(f)}: {f.evidence.place()}" for f in found[:6]],
            found,
            source=source,
        )


def _required(
    judging: common.Judging, pattern: LogPattern, reference: StartRecord | None, start: StartRecord, source: str
) -> None:
    found = matches(start, pattern, "require")
    judging.saw(*found)
    if not found and (up := left_up(start)):
        judging.not_observable(
            f"no line of the log matches {pattern.pattern!r}, and {common.listed(up)} was left up",
            f"at least one line in every {pattern.every}",
            "that line in the logs of the nodes that started",
            up.values(),
            source=source,
        )
        return
    if not found:
        judging.failed(
            f"no line of the log matches {pattern.pattern!r}",
            f"at least one line in every {pattern.every}",
            ["no line"],
            source=source,
        )
        return
    places = _places(pattern.every, reference, start)
    seen = {f.rank if pattern.every == "rank" else f.node for f in found}
    missing = sorted((p for p in places if p not in seen), key=common.natural)
    if missing:
        judging.failed(
            f"{pattern.every} {common.listed(missing)} lacks a line that matches {pattern.pattern!r}",
            f"a line on every {pattern.every}: {common.listed(sorted(places, key=common.natural), 16)}",
            [f"{f.rank or f.node or 'engine'}: {f.evidence.place()}" for f in found[:6]],
            found,
            ("lines that are printed once stand on the first rank only: ask for every: start then",),
            source,
        )


def _places(every: str, reference: StartRecord | None, start: StartRecord) -> set[str]:
    """The ranks or nodes that any fact of this start or of the reference names."""
    up = left_up(start)
    facts = [f for f in (*start.facts, *(reference.facts if reference else ())) if f.node not in up]
    if every == "rank":
        return {f.rank for f in facts if f.rank}
    return {f.node for f in facts if f.node} if every == "node" else set()
