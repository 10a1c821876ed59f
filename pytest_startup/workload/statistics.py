"""Two small samples of a rate (tokens per second), compared: is the second slower by more than is allowed, can we tell?

Pure and exact. The ratio restart/reference is estimated as the median of all pairwise ratios; its bounds come from the
exact distribution of the rank sum (Mann-Whitney), so they assume no shape of the noise and one outlier does not move
them far. With ``confidence`` 0.95 each bound is wrong at most once in 20, as long as the noise within a measurement is
that between measurements: other work on the host that comes and goes over minutes looks like a change of the engine
(the fact ``host.cpu_pressure`` tells of it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from statistics import median


class Decision(str, Enum):
    """Of the second sample against the first, within what is allowed and what the noise lets show."""

    FASTER = "faster"
    SAME = "same"
    SLOWER = "slower"
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True)
class Comparison:
    """``ratio`` restart/reference with its bounds ``low`` and ``high`` (0 and infinite: too few repeats for bounds).

    ``drop`` is 1 - ratio. ``smallest_detectable_drop`` is the smallest that would show above this noise; None if there
    are too few repeats for any to show.
    """

    decision: Decision
    reason: str
    reference: float
    restart: float
    ratio: float
    low: float
    high: float
    smallest_detectable_drop: float | None

    @property
    def drop(self) -> float:
        """The part of the throughput that is gone; negative where it rose."""
        return 1.0 - self.ratio


@cache
def _rank_sums(m: int, n: int) -> tuple[int, ...]:
    """How many of the orderings of ``m`` and ``n`` values give U = 0, 1, … m·n."""
    if m == 0 or n == 0:
        return (1,)
    # the largest value belongs to the first sample (it beats all n of the second) or to the second
    first, second = _rank_sums(m - 1, n), _rank_sums(m, n - 1)
    counts = [0] * (m * n + 1)
    for u, c in enumerate(first):
        counts[u + n] += c
    for u, c in enumerate(second):
        counts[u] += c
    return tuple(counts)


def p_not_above(u: float, m: int, n: int) -> float:
    """P(U ≤ u) for the rank sum of ``m`` and ``n`` values of one population (no ties)."""
    counts = _rank_sums(m, n)
    return sum(counts[: max(0, math.floor(u) + 1)]) / sum(counts)


def compare(
    reference: Sequence[float], restart: Sequence[float], tolerance: float, confidence: float = 0.95
) -> Comparison:
    """Is ``restart`` slower than ``reference`` by more than ``tolerance`` (0.05: 5 %)?

    - slower: the estimate drops by more than the tolerance, and it is not noise (the upper bound is below 1);
    - same, faster: a drop larger than the tolerance can be ruled out (faster: even no gain can);
    - cannot tell: neither; or fewer than three good repeats on a side; or a rate that is not positive.

    Rates must be finite; raises ValueError for others, and for a tolerance outside 0 … 1.
    """
    if not 0.0 <= tolerance < 1.0:
        raise ValueError(f"tolerance {tolerance} is not a fraction of 0 to 1")
    if not all(math.isfinite(v) for v in (*reference, *restart)):
        raise ValueError("rates must be finite")
    n, m = len(reference), len(restart)
    middles = (median(reference) if n else 0.0, median(restart) if m else 0.0)
    if not n or not m or min(*reference, *restart) <= 0.0:
        what = "a batch without any output" if n and m else "no batch was measured"
        return Comparison(Decision.CANNOT_TELL, what, *middles, math.nan, 0.0, math.inf, None)
    ratios = sorted(r / f for r in restart for f in reference)
    ratio = median(ratios)
    low, high = _bounds(ratios, m, n, 1.0 - confidence)
    detectable = max(1.0 - low / ratio, 1.0 - ratio / high) if low > 0.0 else None
    decision, reason = _decide(ratio, low, high, tolerance)
    return Comparison(decision, reason, *middles, ratio, low, high, detectable)


def _bounds(ratios: Sequence[float], m: int, n: int, alpha: float) -> tuple[float, float]:
    """One-sided bounds at ``alpha`` each: the k-th smallest and largest of the pairwise ratios."""
    k = 0
    while k < len(ratios) and p_not_above(k, m, n) <= alpha:
        k += 1
    return (ratios[k - 1], ratios[-k]) if k else (0.0, math.inf)


def _decide(ratio: float, low: float, high: float, tolerance: float) -> tuple[Decision, str]:
    floor = 1.0 - tolerance
    if ratio < floor and high < 1.0:
        return Decision.SLOWER, f"{_percent(1 - ratio)} slower (at least {_percent(1 - high)})"
    if low >= floor:
        if low > 1.0:
            return Decision.FASTER, f"{_percent(ratio - 1)} faster"
        return Decision.SAME, f"a drop of more than {_percent(max(0.0, 1 - low))} is ruled out"
    if low == 0.0:
        return Decision.CANNOT_TELL, "too few repeats: three on each side are the least, five or more are better"
    return (
        Decision.CANNOT_TELL,
        f"noise: the change lies between {_signed(low - 1)} and {_signed(high - 1)}, "
        f"so a drop of {_percent(tolerance)} can be neither seen nor ruled out",
    )


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.1f} %"


def _signed(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"
