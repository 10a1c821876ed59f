"""What every check needs: a collector of findings, and small readings of facts that never invent a value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.base import Finding, Outcome, Verdict
from pytest_startup.ledger.moves import places
from pytest_startup.profile.expect import Range
from pytest_startup.profile.model import Profile, Restart
from pytest_startup.record import JSON, Completion, Evidence, Fact, StartRecord

#: How many lines of evidence one finding shows; the rest is in the record.
SHOWN = 4


class Judging:
    """Collects what a check finds and gives the verdict: failed before not exercised before not observable.

    Without any finding the verdict is passed if something was seen, else not observable with ``unseen`` as its reason.
    """

    def __init__(self, check: str, unseen: str) -> None:
        self.check = check
        self.unseen = unseen
        self.numbers: dict[str, float | int | str] = {}
        self._findings: dict[Outcome, list[Finding]] = {}
        self._evidence: list[Evidence] = []
        self._waivable = True

    def saw(self, *seen: Fact | Evidence) -> None:
        """What the verdict rests on."""
        self._evidence += [s.evidence if isinstance(s, Fact) else s for s in seen]

    def failed(
        self,
        summary: str,
        expected: str,
        observed: Iterable[str],
        evidence: Iterable[Fact | Evidence] = (),
        helps: Sequence[str] = (),
        source: str | None = None,
        waivable: bool = False,
    ) -> None:
        """A reason to reject. ``waivable``: the data could not tell (only the throughput check says so)."""
        self._waivable = self._waivable and waivable
        self._add(Outcome.FAILED, summary, expected, observed, evidence, helps, source)

    def not_exercised(
        self,
        summary: str,
        expected: str,
        observed: Iterable[str],
        evidence: Iterable[Fact | Evidence] = (),
        helps: Sequence[str] = (),
        source: str | None = None,
    ) -> None:
        """Configured, but nothing ever used it."""
        self._add(Outcome.NOT_EXERCISED, summary, expected, observed, evidence, helps, source)

    def not_observable(
        self,
        summary: str,
        expected: str,
        looked: str,
        nearest: Iterable[Fact | Evidence] = (),
        helps: Sequence[str] = (),
        source: str | None = None,
    ) -> None:
        """No evidence. ``looked`` says what was looked for and where; ``nearest`` are the nearest lines there are."""
        self._add(Outcome.NOT_OBSERVABLE, summary, expected, (f"not seen: {looked}",), nearest, helps, source)

    def _add(
        self,
        outcome: Outcome,
        summary: str,
        expected: str,
        observed: Iterable[str],
        evidence: Iterable[Fact | Evidence],
        helps: Sequence[str],
        source: str | None,
    ) -> None:
        seen = [e.evidence if isinstance(e, Fact) else e for e in evidence]
        shown = tuple(dict.fromkeys(seen))[:SHOWN]
        self._findings.setdefault(outcome, []).append(
            Finding(summary, expected, tuple(observed), shown, tuple(helps), source)
        )

    def verdict(self) -> Verdict:
        """The outcome of all that was found and seen; see the class."""
        evidence = tuple(dict.fromkeys(self._evidence))
        for outcome in (Outcome.FAILED, Outcome.NOT_EXERCISED, Outcome.NOT_OBSERVABLE):
            if outcome in self._findings:
                waivable = outcome is Outcome.FAILED and self._waivable
                findings = tuple(self._findings[outcome])
                return Verdict(self.check, outcome, findings, evidence, self.numbers, waivable)
        if evidence:
            return Verdict(self.check, Outcome.PASSED, (), evidence, self.numbers)
        where = ("not seen in log, endpoints, caches or workload",)
        nothing = Finding(f"nothing to judge by: {self.unseen}", "evidence", where)
        return Verdict(self.check, Outcome.NOT_OBSERVABLE, (nothing,), (), self.numbers)


def who(fact: Fact) -> str:
    """The rank, else the engine, else the node that speaks; ``engine`` where the evidence names none."""
    engine = f"engine {fact.engine}" if fact.engine and fact.engine.isdigit() else fact.engine
    return fact.rank or engine or fact.node or "engine"


def on(fact: Fact) -> str:
    """`` on rank TP1_EP1`` as a part of a sentence; empty where the evidence names no rank."""
    return f" on rank {fact.rank}" if fact.rank else ""


def by_rank(facts: Iterable[Fact]) -> dict[str, list[Fact]]:
    """Facts per rank (see ``who``), each in the order of sight, ranks sorted by name and number."""
    found: dict[str, list[Fact]] = {}
    for fact in facts:
        found.setdefault(who(fact), []).append(fact)
    return {rank: found[rank] for rank in sorted(found, key=natural)}


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key under which ``TP10`` follows ``TP9``."""
    return tuple((0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", name) if p)


def number(value: JSON) -> float | None:
    """``value`` as a number, None if it is not one (a boolean is not one)."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def same_name(one: str, other: str) -> bool:
    """Names of backends and modes are equal without regard to case, spaces, ``_`` and ``-``."""
    return plain_name(one) == plain_name(other)


def plain_name(name: str) -> str:
    """A backend's name for comparing: ``FLASHINFER_MLA`` and ``FlashInfer MLA`` are one."""
    return re.sub(r"[\s_\-]+", "", name).lower()


def shown(value: float, unit: str = "") -> str:
    """``338,624 tokens``, ``83.1 GiB``: a number as it is printed."""
    text = f"{int(value):,}" if float(value).is_integer() else f"{value:,.2f}".rstrip("0").rstrip(".")
    return f"{text} {unit}".strip()


def percent(fraction: float) -> str:
    """``2.5 %`` of a fraction 0.025; at most two decimals."""
    return f"{fraction * 100:.2f}".rstrip("0").rstrip(".") + " %"


def excerpt(text: str, length: int = 80) -> str:
    """The beginning of a text as it can be printed in a line: quoted, control characters escaped."""
    return repr(text if len(text) <= length else text[: length - 1] + "…")


def unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order in which they come."""
    return tuple(dict.fromkeys(texts))


def listed(names: Iterable[str], most: int = 6) -> str:
    """``a, b and 3 more``."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def range_text(limits: Range, unit: str) -> str:
    """``= 10 tokens``, ``≥ 10 tokens``, ``10 to 20 tokens``."""
    if limits.exact is not None:
        return shown(limits.exact, unit)
    if limits.min is not None and limits.max is not None:
        return f"{shown(limits.min)} to {shown(limits.max, unit)}"
    if limits.min is not None:
        return f"at least {shown(limits.min, unit)}"
    return f"at most {shown(limits.max, unit)}" if limits.max is not None else "as in the baseline"


def within(value: float, limits: Range, tolerance: float = 0.0) -> bool:
    """Is ``value`` inside? ``tolerance`` (a fraction) only widens an exact number; bounds are bounds."""
    if limits.exact is not None and abs(value - limits.exact) > tolerance * abs(limits.exact):
        return False
    if limits.min is not None and value < limits.min:
        return False
    return limits.max is None or value <= limits.max


def population(baseline: Baseline | None, start: StartRecord) -> Population | None:
    """What was accepted for this kind of restart; None if nothing was."""
    return baseline.populations.get(start.population) if baseline else None


def restart_of(profile: Profile, start: StartRecord) -> Restart | None:
    """The restart that a record belongs to; None for the reference start."""
    return next((r for r in profile.restarts if r.name == start.name), None)


def wiped_kinds(profile: Profile, restart: Restart | None, reference: StartRecord | None = None) -> set[str]:
    """Kinds (compile, autotune …) of the caches that were wiped before this restart.

    A cache that has no kind in the profile (``other``) is of those whose hash directories, as the log of the reference
    start names them, it held.
    """
    names = set(restart.wipe) if restart else set()
    kinds = {c.kind for c in profile.caches if c.name in names}
    unnamed = {c.name for c in profile.caches if c.name in names and c.kind == "other"}
    if reference is not None and unnamed:
        paths = [f.path for tree in reference.caches_after if tree.name in unnamed for f in tree.files]
        for (tier, _), keys in places(reference).items():
            if any(key in path for path in paths for key in keys):
                kinds.add("autotune" if tier == "autotune" else "compile")
    return kinds


def changed_on_purpose(restart: Restart | None) -> str:
    """``--enforce-eager`` or ``""``: what this restart changes by the profile's own wish."""
    return " ".join([*restart.change.args, *(f"{k}=…" for k in restart.change.env)]) if restart else ""


def nearest(record: StartRecord, *prefixes: str) -> list[Fact]:
    """Facts of the same families, to be quoted where the wanted one was not seen."""
    return [f for f in record.facts if f.name.startswith(prefixes)][:SHOWN]


def answer_evidence(answer: Completion) -> Evidence:
    """A completion as evidence: purpose, status and the beginning of its text."""
    text = f"{answer.status} {excerpt(answer.text or answer.reasoning)}"
    if answer.error:
        text += f" {answer.error[:200]}"
    return Evidence("workload", f"completion ({answer.purpose})", text, seconds=answer.seconds_since_launch)
