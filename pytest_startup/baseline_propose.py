"""A proposed baseline: what this run's starts showed, and what that changes, by category; refused when it must be."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pytest_startup.baseline import DECISIVE, NOTED, Baseline, Population, cache_hashes, identity
from pytest_startup.checks import autotune, backend, graphs, kv, memory
from pytest_startup.checks.base import Verdict
from pytest_startup.checks.quality import accepted as answers_of
from pytest_startup.profile.model import Profile
from pytest_startup.record import JSON, StartRecord
from pytest_startup.waivers import judge

CATEGORIES = ("identity", "loosened", "tightened", "new")
#: Samples whose median moves by less than this fraction are not told as a change.
NOISE = 0.05
#: Beginnings of names of which less is better; of all other numbers more is better.
_LESS_IS_BETTER = ("ready_seconds", "phase.", "weights.")


@dataclass(frozen=True)
class Change:
    """One line of a proposal. ``population`` None: of the whole baseline. ``old`` None: new; ``new`` None: dropped."""

    category: str
    name: str
    old: JSON
    new: JSON
    population: str | None = None

    def text(self) -> str:
        """One line, as the terminal and the proposal show it: ``new  kv.tokens: 4096``."""
        where = f"{self.population}: " if self.population else ""
        if self.old is None:
            return f"{self.category:<9}  {where}{self.name}: {_shown(self.new)}"
        new = "dropped" if self.new is None else _shown(self.new)
        return f"{self.category:<9}  {where}{self.name}: {_shown(self.old)} → {new}"


@dataclass(frozen=True)
class Proposal:
    """``baseline`` is None when ``refused`` says why there must be none. ``changes`` are sorted by category."""

    baseline: Baseline | None
    changes: tuple[Change, ...] = ()
    refused: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """What is printed at the end of the run."""
        if self.refused:
            return [f"no baseline proposed: {reason}" for reason in self.refused]
        return [c.text() for c in self.changes] or ["the proposed baseline changes nothing"]


def propose(
    profile: Profile,
    records: Sequence[StartRecord],
    verdicts: Iterable[tuple[str, Verdict]],
    old: Baseline | None,
    environ: Mapping[str, str],
    today: datetime.date | None = None,
) -> Proposal:
    """What the baseline would be after this run.

    ``verdicts`` are (start name, verdict) of every check of the run, waivers not applied. Refused in CI and where any
    of them is not green; a run without verdicts proves nothing. Populations that this run did not exercise are kept
    as they were, unless the identity changed: then they belong to something else, and are dropped.
    """
    refused = list(_refusals(profile, records, verdicts, environ, today))
    if refused:
        return Proposal(None, refused=tuple(refused))
    now = identity(profile, records)
    kept = old.populations if old and all(old.identity.get(n) == now.get(n) for n in DECISIVE) else {}
    populations = {**kept, **populations_of(profile, records)}
    new = Baseline(profile.name, now, populations)
    return Proposal(new, tuple(_changes(old, new)))


def why_not_here(environ: Mapping[str, str]) -> str | None:
    """Why nothing is proposed wherever this runs, whatever comes of the run; None: it may be."""
    if environ.get("CI", "").lower() in ("", "0", "false"):
        return None
    return "this is CI (CI is set in the environment): propose from a run that somebody watches, and commit the file"


def _refusals(
    profile: Profile,
    records: Sequence[StartRecord],
    verdicts: Iterable[tuple[str, Verdict]],
    environ: Mapping[str, str],
    today: datetime.date | None,
) -> Iterable[str]:
    if reason := why_not_here(environ):
        yield reason
    judged = [(start, judge(profile, verdict, today)) for start, verdict in verdicts]
    if not judged or not records:
        yield "nothing was judged in this run"
    red = [f"{start}::{j.verdict.check} ({j.verdict.outcome.value})" for start, j in judged if not j.green]
    if red:
        yield f"{len(red)} of {len(judged)} checks are not green: {', '.join(red[:5])}"
    missing = [r.name for r in records if not any(start == r.name for start, _ in judged)]
    if judged and missing:
        yield f"{', '.join(missing)} was not judged by any check: run the whole gate"


def populations_of(profile: Profile, records: Sequence[StartRecord]) -> dict[str, Population]:
    """One population per restart kind; several records of one kind give the worse value and all samples."""
    found: dict[str, Population] = {}
    for record in records:
        one = Population(values_of(record), samples_of(record), cache_hashes(profile, record))
        before = found.get(record.population)
        found[record.population] = one if before is None else _join(before, one)
    return found


def _join(one: Population, other: Population) -> Population:
    values = dict(one.values)
    for name, value in other.values.items():
        mine = values.get(name)
        if isinstance(value, (int, float)) and isinstance(mine, (int, float)):
            values[name] = max(mine, value) if name.startswith(_LESS_IS_BETTER) else min(mine, value)
        else:
            values.setdefault(name, value)
    names = {**one.samples, **other.samples}
    samples = {n: one.samples.get(n, ()) + other.samples.get(n, ()) for n in names}
    return replace(one, values=values, samples=samples, caches=other.caches or one.caches)


def values_of(record: StartRecord) -> dict[str, JSON]:
    """The values of a start that later starts are compared with; what was not seen is left out."""
    values: dict[str, JSON] = {}
    if (capacity := kv.smallest(record)) is not None:
        values["kv.tokens"] = int(capacity[0])
    if captured := graphs.captured(record):
        values["graphs.captured"] = {kind: done for kind, (done, _) in captured.items()}
    if weights := memory.figures(record, "weights.memory"):
        values["weights.gib_max"] = round(max(memory.gib(f) for f in weights), 3)
    for key in backend.NAMES:
        if facts := backend.of_role(record, key):
            values[f"backend.{key}"] = list[JSON](sorted(backend.names(facts)))
    if loaded := autotune.records_loaded(record):
        values["autotune.records"] = dict[str, JSON](loaded)
    if answers := answers_of(record):
        values["quality.answers"] = dict[str, JSON](answers)
    if ranks := record.ranks():
        values["ranks"] = list[JSON](ranks)
    return values


def samples_of(record: StartRecord) -> dict[str, tuple[float, ...]]:
    """Times in seconds and rates in tokens per second, by name."""
    samples: dict[str, tuple[float, ...]] = {}
    if record.ready_seconds is not None:
        samples["ready_seconds"] = (round(record.ready_seconds, 3),)
    samples.update({f"phase.{name}": (round(taken, 3),) for name, taken in record.phase_seconds().items()})
    for batch in record.throughput:
        if not batch.failed:
            name = f"tokens_per_second.c{batch.concurrency}"
            samples[name] = (*samples.get(name, ()), round(batch.tokens_per_second, 3))
    return samples


def _changes(old: Baseline | None, new: Baseline) -> list[Change]:
    before = old or Baseline(new.profile)
    found = [
        Change(
            "identity" if name in before.identity else "new", name, before.identity.get(name), new.identity.get(name)
        )
        for name in (*DECISIVE, *NOTED)
        if before.identity.get(name) != new.identity.get(name)
    ]
    for name, population in new.populations.items():
        found += _population_changes(name, before.populations.get(name), population)
    found += [
        Change("loosened", "population", name, None) for name in before.populations if name not in new.populations
    ]
    return sorted(found, key=lambda c: (CATEGORIES.index(c.category), c.population or "", c.name))


def _population_changes(name: str, old: Population | None, new: Population) -> list[Change]:
    before = old or Population()
    found: list[Change] = []
    was, now = _flat(before.values), _flat(new.values)
    for key in {**was, **now}:
        if was.get(key) != now.get(key):
            found.append(Change(_category(key, was.get(key), now.get(key)), key, was.get(key), now.get(key), name))
    for key in {**before.samples, **new.samples}:
        a, b = (median(s) if s else None for s in (before.samples.get(key, ()), new.samples.get(key, ())))
        if a is None or b is None or abs(a - b) > NOISE * abs(a):
            found.append(Change(_category(key, a, b), key, a, b, name))
    for cache in {**before.caches, **new.caches}:
        a_files, b_files = before.caches.get(cache, {}), new.caches.get(cache, {})
        if a_files != b_files:
            category = "identity" if a_files else "new"
            found.append(Change(category, f"cache {cache}", _files(a_files, b_files), f"{len(b_files)} files", name))
    return found


def _files(old: Mapping[str, str], new: Mapping[str, str]) -> JSON:
    if not old:
        return None
    other = sum(1 for p, h in old.items() if p in new and new[p] != h)
    gone = sum(1 for p in old if p not in new)
    return f"{len(old)} files ({gone} gone, {other} changed, {sum(1 for p in new if p not in old)} new)"


def _flat(values: Mapping[str, JSON]) -> dict[str, JSON]:
    """``graphs.captured`` with its kinds apart, so that each is a change of its own."""
    out: dict[str, JSON] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out.update({f"{key} {k}": v for k, v in value.items()})
        else:
            out[key] = value
    return out


def _category(name: str, old: JSON, new: JSON) -> str:
    if old is None:
        return "new"
    if new is None:
        return "loosened"
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        better = new < old if name.startswith(_LESS_IS_BETTER) else new > old
        return "tightened" if better else "loosened"
    return "identity"


def _shown(value: JSON) -> str:
    if isinstance(value, list):
        return " ".join(str(v) for v in value) or "none"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"
    return str(value)
