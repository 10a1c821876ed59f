"""The comparison of two small samples: exact, honest about what it can't tell, and right in long simulated series."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.workload.statistics import (
    Decision,
    compare,
    p_not_above,
)


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - simulated noise, the same in every run


def visible_drop(reference: list[float], restart: list[float]) -> float | None:
    return compare(reference, restart, 0.0).smallest_detectable_drop


rates = st.lists(st.floats(1.0, 1e5), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("m", "n", "critical"),
    [(3, 3, 0), (4, 4, 1), (5, 5, 4), (6, 6, 7), (7, 7, 11), (8, 8, 15), (10, 10, 27), (5, 7, 6), (3, 8, 3), (4, 9, 6)],
)
def test_critical_values_of_the_printed_tables(m: int, n: int, critical: int) -> None:
    """One-sided 5 % critical values of U, as in any table of the Mann-Whitney test."""
    assert p_not_above(critical, m, n) <= 0.05 < p_not_above(critical + 1, m, n)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (3, 4), (4, 4)])
def test_distribution_by_enumeration(m: int, n: int) -> None:
    """Against every way of dealing the ranks out."""
    us = []
    for chosen in combinations(range(m + n), m):
        us.append(sum(x > y for x in chosen for y in range(m + n) if y not in chosen))
    for u in range(m * n + 1):
        assert p_not_above(u, m, n) == pytest.approx(sum(x <= u for x in us) / len(us))
    assert p_not_above(-1, m, n) == 0.0


@pytest.mark.parametrize(
    ("reference", "restart", "tolerance", "decision"),
    [
        ([61.4, 61.2, 61.5, 61.3, 61.6], [61.2, 61.5, 61.1, 61.4, 61.3], 0.03, "same"),
        ([61.4, 61.2, 61.5, 61.3, 61.6], [58.0, 58.3, 58.1, 57.9, 58.2], 0.03, "slower"),
        ([61.4, 61.2, 61.5, 61.3, 61.6], [60.6, 60.7, 60.5, 60.4, 60.6], 0.03, "same"),  # a drop within the tolerance
        ([61.4, 61.2, 61.5, 61.3, 61.6], [64.0, 64.1, 63.8, 64.2, 63.9], 0.03, "faster"),
        ([100, 60, 140, 80, 120], [90, 55, 130, 75, 110], 0.05, "cannot-tell"),
        ([100, 60, 140, 80, 120], [20, 12, 28, 16, 24], 0.05, "slower"),  # noisy, but nobody can miss it
        ([100, 101, 99, 100, 100, 102, 98], [100, 101, 99, 100, 10, 99, 100], 0.30, "same"),  # one bad batch of seven
        ([100.0] * 5, [100.0] * 5, 0.0, "same"),
        ([100.0] * 3, [69.0] * 3, 0.30, "slower"),
        ([100.0] * 2, [100.0] * 2, 0.30, "cannot-tell"),
        ([100.0], [10.0], 0.30, "cannot-tell"),
        ([], [10.0], 0.30, "cannot-tell"),
        ([100.0] * 5, [], 0.30, "cannot-tell"),
        ([100.0] * 5, [100, 0.0, 100, 100, 100], 0.30, "cannot-tell"),
    ],
)
def test_decisions(reference: list[float], restart: list[float], tolerance: float, decision: str) -> None:
    result = compare(reference, restart, tolerance)
    assert result.decision == decision, result
    assert result.reason


def test_texts_of_the_reasons() -> None:
    assert compare([100.0] * 5, [60.0] * 5, 0.3).reason == "40.0 % slower (at least 40.0 %)"
    assert compare([100.0] * 5, [110.0] * 5, 0.3).reason == "10.0 % faster"
    assert compare([100.0] * 5, [95.0] * 5, 0.3).reason == "a drop of more than 5.0 % is ruled out"
    assert compare([100.0] * 2, [95.0] * 2, 0.3).reason.startswith("too few repeats")
    assert compare([], [95.0], 0.3).reason == "no batch was measured"
    assert compare([100.0, 0.0], [95.0], 0.3).reason == "a batch without any output"
    noisy = compare([100, 60, 140, 80, 120], [90, 55, 130, 75, 110], 0.05).reason
    assert noisy.startswith("noise: the change lies between -")
    assert noisy.endswith("so a drop of 5.0 % can be neither seen nor ruled out")


def test_smallest_detectable_drop() -> None:
    quiet = visible_drop([61.4, 61.2, 61.5, 61.3, 61.6], [61.2, 61.5, 61.1, 61.4, 61.3])
    noisy = visible_drop([100, 60, 140, 80, 120], [90, 55, 130, 75, 110])
    assert quiet is not None
    assert noisy is not None
    assert 0.0 < quiet < 0.01
    assert 0.3 < noisy < 1.0
    assert visible_drop([1.0, 2.0], [1.0, 2.0]) is None
    assert compare([100.0] * 2, [100.0] * 2, 0.3).smallest_detectable_drop is None


def test_a_drop_of_the_detectable_size_shows() -> None:
    rng = seeded(1)
    for _ in range(50):
        reference = [rng.gauss(100, 5) for _ in range(7)]
        restart = [rng.gauss(100, 5) for _ in range(7)]
        limit = visible_drop(reference, restart)
        assert limit is not None
        slowed = [r * (1 - limit) * 0.999 / compare(reference, restart, 0.0).ratio for r in restart]
        assert compare(reference, slowed, 0.0).decision is Decision.SLOWER


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rates_must_be_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        compare([1.0], [bad], 0.1)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, 5.0])
def test_tolerance_is_a_fraction(tolerance: float) -> None:
    with pytest.raises(ValueError, match="not a fraction"):
        compare([1.0], [1.0], tolerance)


@given(rates, rates, st.floats(0.0, 0.9))
def test_it_never_contradicts_itself(reference: list[float], restart: list[float], tolerance: float) -> None:
    result = compare(reference, restart, tolerance)
    assert result.low <= result.ratio <= result.high
    if result.decision is Decision.SLOWER:
        assert result.drop > tolerance
        assert result.high < 1.0
        assert compare(restart, reference, tolerance).decision in (Decision.FASTER, Decision.CANNOT_TELL)
    if result.decision in (Decision.SAME, Decision.FASTER):
        assert result.low >= 1.0 - tolerance


@given(rates, rates, st.floats(0.1, 10.0))
def test_only_ratios_matter(reference: list[float], restart: list[float], factor: float) -> None:
    one = compare(reference, restart, 0.1)
    other = compare([r * factor for r in reference], [r * factor for r in restart], 0.1)
    assert other.ratio == pytest.approx(one.ratio)
    assert other.low == pytest.approx(one.low)


def test_false_alarms_and_misses_in_a_long_series() -> None:
    """10 % noise, 7 repeats, tolerance 30 %: no false alarm in 400 equal restarts, and half the speed always shows."""
    rng = seeded(2)

    def sample(level: float) -> list[float]:
        return [max(1.0, rng.gauss(level, level * 0.10)) for _ in range(7)]

    equal = [compare(sample(100), sample(100), 0.30).decision for _ in range(400)]
    halved = [compare(sample(100), sample(50), 0.30).decision for _ in range(400)]
    assert Decision.SLOWER not in equal
    assert equal.count(Decision.CANNOT_TELL) <= 2
    assert set(halved) == {Decision.SLOWER}


def test_the_bounds_hold_as_often_as_they_promise() -> None:
    rng = seeded(3)
    wrong = 0
    for _ in range(1000):
        reference = [rng.lognormvariate(0, 0.3) for _ in range(5)]
        restart = [rng.lognormvariate(0, 0.3) for _ in range(5)]
        wrong += compare(reference, restart, 0.1).high < 1.0
    assert 20 <= wrong <= 75  # 4.76 % is exact for five and five
