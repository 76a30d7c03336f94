"""What is said of a few scores: interquartile mean, bootstrap intervals, the difference of two groups.

Scores come in strata, one per task, each an array of [n] runs or of [n, M] runs at M places. A run is drawn, trimmed or
averaged within what its stratum allows; the tasks themselves are never resampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Array], Array]
"""[..., n, M] → [..., M]: over the runs."""

RESAMPLES = 2000
CONFIDENCE = 0.95

FEW = 5
"""Fewer scores than this make intervals rough."""

CHUNK = 1 << 21
"""Numbers that are resampled at once: 16 MiB."""


@dataclass(frozen=True)
class Band:
    """A curve and what lies around it, each [M]."""

    middle: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Difference:
    """Of two groups, with the ends of its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return not self.low <= 0 <= self.high


def iqm(scores: Array) -> Array:
    """The interquartile mean, [..., n, M] → [..., M]: without the lowest and the highest quarter, rounded down.

    So it is the mean of up to three scores, of the middle three of five, of the middle six of ten.
    """
    count = scores.shape[-2]
    result: Array = np.sort(scores, axis=-2)[..., count // 4 : count - count // 4, :].mean(axis=-2)
    return result


def quartile_band(strata: Sequence[Array]) -> Band:
    """Median, 25% and 75% of all runs, which are [n, M] in each stratum."""
    low, middle, high = np.percentile(np.concatenate(strata), (25, 50, 75), axis=0)
    return Band(middle, low, high)


def iqm_band(strata: Sequence[Array]) -> Band:
    """Interquartile mean of all runs, which are [n, M] in each stratum, and its 95% interval."""
    return Band(iqm(np.concatenate(strata)), *interval(strata, iqm))


def interval(strata: Sequence[Array], statistic: Statistic, resamples: int = RESAMPLES) -> tuple[Array, Array]:
    """The ends of the 95% interval of a statistic, [M] each, by the stratified bootstrap.

    As many runs as there are of each task are drawn with replacement, whole curves, and the statistic is taken of all
    that were drawn; the interval leaves out 2.5% of such values on either side. The draws are the same at every call.
    """
    return _ends(_drawn(strata, statistic, resamples, np.random.default_rng(0)))


def difference_of_means(first: Sequence[Array], second: Sequence[Array]) -> Difference | None:
    """Welch's interval for the difference of means, averaged over tasks; scores are [n] in each stratum.

    The variances of all groups and tasks may differ; the degrees of freedom are Satterthwaite's. None where a stratum
    has one score, which says nothing of its variance.
    """
    samples = [*first, *second]
    if min(map(len, samples)) < 2:
        return None
    value = float(np.mean([a.mean() - b.mean() for a, b in zip(first, second, strict=True)]))
    terms = [scores.var(ddof=1) / len(scores) / len(first) ** 2 for scores in samples]
    variance = float(sum(terms))
    if not variance:
        return Difference(value, value, value)
    shares = [float(term) / variance for term in terms]
    freedom = 1 / sum(share**2 / (len(scores) - 1) for share, scores in zip(shares, samples, strict=True))
    half = student_quantile(freedom) * math.sqrt(variance)
    return Difference(value, value - half, value + half)


def difference_of_medians(first: Sequence[Array], second: Sequence[Array]) -> Difference | None:
    """The bootstrap's interval for the difference of the medians of all scores, which are [n] in each stratum.

    None where a stratum has less than ``FEW`` scores: the interval would be too narrow.
    """
    if min(map(len, [*first, *second])) < FEW:
        return None
    random = np.random.default_rng(0)
    a, b = (_drawn([scores[:, None] for scores in strata], _median, 10_000, random) for strata in (first, second))
    value = np.median(np.concatenate(first)) - np.median(np.concatenate(second))
    low, high = _ends(a - b)
    return Difference(float(value), float(low[0]), float(high[0]))


def student_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """t with P(|T| < t) = ``confidence`` for Student's T with ``freedom`` ≥ 1, to four digits.

    T is √ν tan φ for an angle φ whose density is proportional to cos(φ)^(ν-1), which is integrated.
    """
    freedom = min(freedom, 1e4)  # beyond, T is a Gaussian to four digits, and its peak too narrow for the grid
    angles = np.linspace(0, np.pi / 2, 50_001)
    density = np.cos(angles).clip(0) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = np.interp(confidence, mass / mass[-1], angles)
    return float(math.sqrt(freedom) * math.tan(angle))


def _drawn(strata: Sequence[Array], statistic: Statistic, resamples: int, random: np.random.Generator) -> Array:
    """[R, M]: the statistic of each resample, computed for so many places at a time as memory allows."""
    rows = [random.integers(len(scores), size=(resamples, len(scores))) for scores in strata]
    step = max(1, CHUNK // (resamples * sum(map(len, strata))))
    parts = [np.empty((resamples, 0))]
    for start in range(0, strata[0].shape[1], step):
        picked = [scores[own, start : start + step] for scores, own in zip(strata, rows, strict=True)]
        parts.append(statistic(np.concatenate(picked, axis=1)))
    return np.concatenate(parts, axis=1)


def _median(scores: Array) -> Array:
    result: Array = np.median(scores, axis=-2)
    return result


def _ends(drawn: Array) -> tuple[Array, Array]:
    """[R, M] → what leaves out the same share on either side, [M] each."""
    outside = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(drawn, (outside, 100 - outside), axis=0)
    return low, high
