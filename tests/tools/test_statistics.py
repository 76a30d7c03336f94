"""Interquartile mean, bands and intervals against naive oracles and published tables; what the intervals are worth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pronghorn.tools import statistics

RANDOM = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([5], 5),
        ([9, 1, 2], 4),  # nothing to leave out
        ([100, 1, 2, 3], 2.5),
        ([100, 3, -50, 1, 2], 2),
        ([0, 1, 2, 3, 4, 5, 6, 700, 8, 9], 5.5 - 0.5),  # two of ten on either side
    ],
)
def test_interquartile_mean(scores: list[float], expected: float) -> None:
    column = np.asarray(scores, np.float64)[:, None]
    if len(scores) == 10:
        expected = sum(sorted(scores)[2:8]) / 6
    assert statistics.iqm(column).tolist() == [expected]


def test_quartile_band_is_that_of_each_place() -> None:
    a, b = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(3, 6))
    band = statistics.quartile_band([a, b])
    for place in range(6):
        ordered = sorted([*a[:, place], *b[:, place]])  # of seven: 25% is half way between the second and the third
        assert band.middle[place] == ordered[3]
        assert band.low[place] == pytest.approx((ordered[1] + ordered[2]) / 2)
        assert band.high[place] == pytest.approx((ordered[4] + ordered[5]) / 2)


def test_bootstrap_approaches_all_possible_draws() -> None:
    """Of three runs there are 27 draws: each is as likely, and whole runs are drawn."""
    scores = np.array([[0.0, 5.0], [1.0, 0.0], [5.0, 1.0]])
    low, high = statistics.interval([scores], statistics.iqm, resamples=20_000)
    means = np.array([scores[list(rows)].mean(axis=0) for rows in itertools.product(range(3), repeat=3)])
    for place in range(2):
        ordered = np.sort(means[:, place])
        assert low[place] in ordered[:2] and high[place] in ordered[-2:]  # 2.5% of 27 is the lowest or its neighbour
    assert low.tolist() != high.tolist()


def test_bootstrap_draws_within_each_task() -> None:
    """Constant tasks leave nothing to chance; mixed up they would."""
    low, high = statistics.interval([np.full((3, 1), 0.0), np.full((3, 1), 1.0)], statistics.iqm)
    assert (low.tolist(), high.tolist()) == ([0.5], [0.5])
    assert statistics.interval([np.array([[0.0]] * 3 + [[1.0]] * 3)], statistics.iqm)[0] < 0.5


def test_bootstrap_in_parts_is_bootstrap_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = RANDOM.normal(size=(5, 7))
    whole = statistics.interval([scores], statistics.iqm, 100)
    monkeypatch.setattr(statistics, "CHUNK", 1000)  # two places at a time
    assert np.array_equal(statistics.interval([scores], statistics.iqm, 100), whole)


def test_bands_of_nothing_are_empty() -> None:
    for band in (statistics.quartile_band([np.empty((3, 0))]), statistics.iqm_band([np.empty((3, 0))])):
        assert band.middle.shape == band.low.shape == band.high.shape == (0,)


@pytest.mark.parametrize(
    ("freedom", "confidence", "expected"),
    [
        (1, 0.95, 12.70620),
        (1.5, 0.95, 6.01666),
        (2, 0.95, 4.30265),
        (4, 0.95, 2.77645),
        (4, 0.99, 4.60409),
        (8, 0.95, 2.30600),
        (30, 0.95, 2.04227),
        (1000, 0.95, 1.96234),
        (1e9, 0.95, 1.95996),
    ],
)
def test_student_quantiles_are_those_of_the_tables(freedom: float, confidence: float, expected: float) -> None:
    assert statistics.student_quantile(freedom, confidence) == pytest.approx(expected, rel=2e-4)


def test_welch_by_hand() -> None:
    """Means 2 and 7, variances 1 and 4, so errors 1/3 and 4/4; degrees of freedom by Satterthwaite."""
    a, b = np.array([1.0, 2.0, 3.0]), np.array([5.0, 9.0, 7.0, 7.0])
    assert (a.var(ddof=1), b.var(ddof=1)) == (1, pytest.approx(8 / 3))
    error = math.sqrt(1 / 3 + 2 / 3)
    freedom = 1 / ((1 / 3) ** 2 / 2 + (2 / 3) ** 2 / 3)
    found = statistics.difference_of_means([a], [b])
    assert found is not None and found.value == -5
    half = statistics.student_quantile(freedom) * error
    assert (found.low, found.high) == (pytest.approx(-5 - half), pytest.approx(-5 + half))
    assert found.significant


def test_welch_over_tasks_is_the_mean_of_independent_differences() -> None:
    """The same scores on two tasks: the same difference, half the squared error, twice the degrees of freedom."""
    a, b = np.array([0.0, 2.0]), np.array([1.0, 3.0, 5.0])
    one, two = statistics.difference_of_means([a], [b]), statistics.difference_of_means([a, a], [b, b])
    assert one is not None and two is not None and two.value == one.value == -2
    variance = 2 / 2 + 4 / 3
    freedom = variance**2 / (1**2 / 1 + (4 / 3) ** 2 / 2)
    expected = statistics.student_quantile(2 * freedom) * math.sqrt(variance / 2)
    assert two.high - two.value == pytest.approx(expected)
    assert not one.significant


def test_welch_without_spread_and_without_a_second_run() -> None:
    a, b, one = np.array([5.0, 5.0]), np.array([5.0, 5.0, 5.0]), np.array([9.0])
    same, other = statistics.difference_of_means([a], [b]), statistics.difference_of_means([a], [b - 1])
    assert same == statistics.Difference(0, 0, 0) and not same.significant
    assert other == statistics.Difference(1, 1, 1) and other.significant
    assert statistics.difference_of_means([a], [one]) is None


def test_difference_of_medians_is_bootstrapped_where_there_are_enough_scores() -> None:
    a, b = np.array([[10.0, 20, 30, 40, 90], [0.0, 1, 2, 3, 100]])
    found = statistics.difference_of_medians([a], [b])
    random = np.random.default_rng(5)
    draws = [np.median(scores[random.integers(5, size=(20_000, 5))], axis=1) for scores in (a, b)]
    assert found is not None and found.value == 28
    assert (found.low, found.high) == tuple(np.percentile(draws[0] - draws[1], (2.5, 97.5)))
    assert statistics.difference_of_medians([a], [b[:4]]) is None
    same = statistics.difference_of_medians([a], [a])
    assert same is not None and same.low == -same.high  # each group is drawn for itself


def test_welch_covers_with_three_seeds_where_the_bootstrap_does_not() -> None:
    """Why differences are not bootstrapped: of 95% intervals about four fifths would hold what they promise."""
    random = np.random.default_rng(0)
    repeats, welch, bootstrap = 400, 0, 0
    for _ in range(repeats):
        a, b = random.normal(size=3), random.normal(size=3)
        found = statistics.difference_of_means([a], [b])
        assert found is not None
        welch += not found.significant
        draws = a[random.integers(3, size=(400, 3))].mean(axis=1) - b[random.integers(3, size=(400, 3))].mean(axis=1)
        low, high = np.percentile(draws, (2.5, 97.5))
        bootstrap += low <= 0 <= high
    assert welch / repeats > 0.93
    assert bootstrap / repeats < 0.88
