"""Ranks compared while they start: one used its tuning records and another tunes, or did not begin. Red within seconds.

Tuning is a collective. When rank 0 hits and the others miss, each waits for the other in another call; the process
group gives up after 1800 s. A tuning bar has no line end while it stands, so the miss itself is often not in the log:
a rank that began, hit nothing and is not done while another hit or finished is told by that alone. Pure: no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pytest_startup.ledger.log import op_of, progress, short_op
from pytest_startup.ranks import parse_rank, workers
from pytest_startup.record import Evidence, Fact, Failure

#: Seconds that ranks may lie apart in the same step. On two real GPUs they were at most 1.9 s apart.
SKEW = 10.0
KIND = "divergence"
HELPS = (
    "prime the cache once per rank, with keys of its own, or delete it so that all ranks tune together",
    "a release that keeps one record file per rank (vLLM from about 0.30), or none (every start tunes)",
)
NO_HELP = (
    "waiting: the process group gives up after 1800 s",
    "raising a timeout, the KV budget or the memory utilisation",
    "copying rank 0's records under another rank's key",
)


@dataclass
class _Rank:
    """What one rank has shown so far; seconds since launch."""

    name: str
    started: Fact | None = None
    ended: Fact | None = None
    hits: dict[str, Fact] = field(default_factory=dict)
    tuned: dict[str, Fact] = field(default_factory=dict)
    loaded: Fact | None = None
    refused: Fact | None = None
    last: float = 0.0

    @property
    def worked(self) -> bool:
        return bool(self.hits or self.tuned)

    def text(self) -> str:
        parts = [f"hit {short_op(o)}" for o in self.hits if o not in self.tuned]
        parts += [f"tuned {short_op(o)}{progress(f)}" for o, f in self.tuned.items()]
        if self.refused:
            parts.append("refused its records")
        state = "is done" if self.ended else "has begun and is not done" if self.started else "has not begun"
        return f"{self.name} {', '.join([*parts, state] if parts else [state])}"

    def evidence(self) -> tuple[Evidence, ...]:
        seen = [*self.tuned.values(), *self.hits.values(), self.refused, self.ended, self.loaded, self.started]
        return tuple(f.evidence for f in seen if f is not None)


class Watcher:
    """Feed it the facts of a running start as they come, and call it also when none came: time is evidence too."""

    def __init__(self, skew: float = SKEW) -> None:
        self._skew = skew
        self._ranks: dict[str, _Rank] = {}
        self._names: dict[str, str | None] = {}

    def feed(self, facts: Iterable[Fact], now: float) -> Failure | None:
        """New facts, and the seconds since launch; a Failure as soon as two ranks have parted."""
        for fact in facts:
            self._take(fact, now)
        team = [self._ranks[n] for n in self._workers() if n in self._ranks]
        busy = [r for r in team if r.started or r.worked]
        if len(team) < 2 or not busy:
            return None
        for one in busy:
            for other in team:
                if other is not one and _same_stage(one, other) and (why := self._parted(one, other, now)):
                    return _failure(why, one, other, now)
        return None

    def _workers(self) -> list[str]:
        return [w.name for w in workers(self._names.items()) if w.name in self._ranks]

    def _take(self, fact: Fact, now: float) -> None:
        if not fact.rank or fact.evidence.source != "log":
            return
        self._names.setdefault(fact.rank, fact.node)
        rank = self._ranks.setdefault(fact.rank, _Rank(fact.rank))
        if not fact.name.startswith("autotune."):
            return
        rank.last = fact.evidence.seconds if fact.evidence.seconds is not None else now
        if fact.name == "autotune.started":
            rank.started, rank.ended = rank.started or fact, None
        elif fact.name == "autotune.ended":
            rank.ended = fact
        elif fact.name == "autotune.hit":
            rank.hits.setdefault(op_of(fact), fact)
        elif fact.name == "autotune.tuned":
            rank.tuned[op_of(fact)] = fact
        elif fact.name == "autotune.loaded":
            rank.loaded = fact
        elif fact.name == "autotune.refused":
            rank.refused = fact

    def _parted(self, one: _Rank, other: _Rank, now: float) -> str | None:
        """Why ``one`` (further on) and ``other`` have parted; None: they may still be in step."""
        quiet = now - max(one.last, other.last)
        hit_only = [o for o in one.hits if o not in one.tuned]
        again = [o for o in hit_only if o in other.tuned and o not in other.hits]
        if again:
            return f"{one.name} used its records for {short_op(again[0])} while {other.name} tuned it"
        if hit_only and other.ended and not other.hits and not other.tuned:
            ops = ", ".join(short_op(o) for o in hit_only)
            return f"{one.name} used its records for {ops}; {other.name} is done and hit none: it tuned or fell back"
        if not one.worked or quiet < self._skew:
            return None
        if other.started is None and not other.worked:
            done = "is done tuning" if one.ended else "is tuning"
            return f"{one.name} {done} and {other.name} did not begin within {self._skew:.0f} s"
        missed = [o for o in hit_only if o not in other.hits and o not in other.tuned]
        if missed and other.ended is None:
            ops = ", ".join(short_op(o) for o in missed)
            return f"{one.name} used its records for {ops}; {other.name} has begun, hit none of them and is not done"
        if one.ended and other.ended is None and other.started and hit_only and not other.hits:
            return f"{one.name} is done with its records; {other.name} has begun, hit nothing and is not done"
        return None


def _same_stage(one: _Rank, other: _Rank) -> bool:
    """Pipeline stages hold other layers: one may have no op to tune."""
    return parse_rank(one.name).pp == parse_rank(other.name).pp


def _failure(why: str, one: _Rank, other: _Rank, now: float) -> Failure:
    lines = _both(one.evidence()[:2], other.evidence()[:2])
    cause = (other.evidence() or one.evidence())[0]
    return Failure(
        phase="warm-up",
        kind=KIND,
        summary=f"ranks part in autotune: {why} ({one.text()}; {other.text()})",
        cause=cause,
        rank=other.name,
        node=cause.node,
        after_seconds=round(now, 3),
        helps=HELPS,
        no_help=NO_HELP,
        last_lines=lines,
    )


def _both(one: Sequence[Evidence], other: Sequence[Evidence]) -> tuple[Evidence, ...]:
    return tuple(dict.fromkeys((*one, *other)))
