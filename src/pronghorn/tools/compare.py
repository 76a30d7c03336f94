"""``pronghorn compare RUN ...``: final scores of groups of runs, and which differences are more than luck."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from pronghorn.tools import groups, statistics
from pronghorn.tools.groups import Group, Scale
from pronghorn.tools.statistics import FEW, Array, Difference
from pronghorn.types import UserError

RESAMPLES = 10_000


@dataclass(frozen=True)
class Scores:
    """Of a group, on one env or on each of several."""

    env: str
    label: str
    tasks: tuple[Array, ...]
    """[n] of each env"""

    @property
    def n(self) -> int:
        """Runs on the env that has the fewest."""
        return min(map(len, self.tasks))

    @property
    def mean(self) -> float:
        """Over envs, of the mean over runs."""
        return float(np.mean([scores.mean() for scores in self.tasks]))

    @property
    def median(self) -> float:
        """Of all runs."""
        return float(np.median(np.concatenate(self.tasks)))

    @property
    def iqm(self) -> float:
        """Of all runs."""
        return float(statistics.iqm(np.concatenate(self.tasks)[:, None])[0])

    def interval(self) -> tuple[float, float] | None:
        """95%, of the mean; None for a single run."""
        if self.n < 2:
            return None
        weights = np.concatenate([np.full(len(scores), 1 / len(scores)) for scores in self.tasks]) / len(self.tasks)

        def mean(drawn: Array) -> Array:
            """[R, n, 1] → [R, 1]: every env weighs the same, however many runs it has."""
            return np.asarray(np.einsum("rnm,n->rm", drawn, weights), np.float64)

        low, high = statistics.interval([scores[:, None] for scores in self.tasks], mean, RESAMPLES)
        return float(low[0]), float(high[0])

    def as_json(self) -> dict[str, Any]:
        """With every score."""
        scores = [task.tolist() for task in self.tasks]
        return {
            "env": self.env,
            "label": self.label,
            "n": self.n,
            "scores": scores[0] if len(scores) == 1 else scores,
            "median": self.median,
            "iqm": self.iqm,
            "mean": self.mean,
            "mean_interval": self.interval(),
        }


@dataclass(frozen=True)
class Pair:
    """The first less the second, both by their place in ``Comparison.groups``."""

    first: int
    second: int
    means: float
    medians: float
    of_means: Difference | None
    """with Welch's interval; None where a group is a single run"""
    of_medians: Difference | None
    """with the bootstrap's interval; None where a group has few runs"""

    @property
    def verdict(self) -> str:
        """On the means, in words."""
        if self.of_means is None:
            return "no interval: one of the two is a single run"
        return "significant" if self.of_means.significant else "not significant (95% interval includes 0)"

    def as_json(self) -> dict[str, Any]:
        """Intervals and verdict are null where there is none."""
        return {
            "first": self.first,
            "second": self.second,
            "difference_of_means": self.means,
            "means_interval": _interval(self.of_means),
            "significant": None if self.of_means is None else self.of_means.significant,
            "difference_of_medians": self.medians,
            "medians_interval": _interval(self.of_medians),
        }


@dataclass(frozen=True)
class Comparison:
    """All groups, and all pairs of those with the same env."""

    key: str
    groups: list[Scores]
    pairs: list[Pair]
    remarks: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``. Differences name groups by their place."""
        return {
            "key": self.key,
            "groups": [group.as_json() for group in self.groups],
            "differences": [pair.as_json() for pair in self.pairs],
            "remarks": self.remarks,
        }

    def table(self) -> str:
        """For people: a paragraph per env."""
        return "\n".join([*self._lines(), *self.remarks])

    def _lines(self) -> Iterator[str]:
        for env in dict.fromkeys(group.env for group in self.groups):
            rows = [["", "", "n", "median", "IQM", "mean", "95% interval of the mean"]]
            own = {index: group for index, group in enumerate(self.groups) if group.env == env}
            for index, group in own.items():
                ends = group.interval()
                numbers = [_number(value) for value in (group.median, group.iqm, group.mean)]
                rows.append([f"#{index + 1}", group.label, str(group.n), *numbers, _ends(ends) if ends else "none"])
            yield f"{env}: {self.key} at the end of each run"
            yield from _aligned(rows)
            for pair in self.pairs:
                if pair.first in own:
                    means = _number(pair.means) + _bracket(_interval(pair.of_means))
                    medians = _number(pair.medians) + _bracket(_interval(pair.of_medians))
                    yield f"  #{pair.first + 1} less #{pair.second + 1}: means {means}, medians {medians}"
                    yield f"  {' ' * len(f'#{pair.first + 1} less #{pair.second + 1}:')} {pair.verdict}"
            yield ""


def compare(runs: Sequence[Path], key: str = "eval/return", normalise: Path | None = None) -> Comparison:
    """Of the newest ``key`` of each run; ``runs`` are runs or directories that hold some.

    Groups are compared where they have the same env, or with ``normalise``, a file for ``groups.read_scales``, over all
    envs. Raises UserError for what cannot be read, and where no run has ``key``.
    """
    scales = None if normalise is None else groups.read_scales(normalise)
    found = groups.collect(runs, timed=key == "steps_per_second")
    scores, remarks = final_scores(found, key)
    if scales is not None:
        scores, left_out = normalised(scores, scales)
        remarks += left_out
    pairs = [
        Pair(
            i,
            j,
            a.mean - b.mean,
            a.median - b.median,
            statistics.difference_of_means(a.tasks, b.tasks),
            statistics.difference_of_medians(a.tasks, b.tasks),
        )
        for (i, a), (j, b) in combinations(enumerate(scores), 2)
        if a.env == b.env
    ]
    few = [str(index) for index, group in enumerate(scores, 1) if group.n < FEW]
    if few:
        remarks.append(f"n < {FEW} in #{', #'.join(few)}: intervals are rough, that of a mean too narrow")
    if len(pairs) > 1:
        remarks.append(f"{len(pairs)} differences, each at 95%: of twenty that are luck, one is called significant")
    return Comparison(key, scores, pairs, remarks)


def final_scores(found: Sequence[Group], key: str) -> tuple[list[Scores], list[str]]:
    """(scores of the groups that have any, by env; remarks). Raises UserError where no run has the key."""
    result = []
    lacking: list[str] = []
    remarks = groups.repeated_seeds(found)
    for group in found:
        scores = []
        for run in group.runs:
            metrics = groups.read_metrics(run.path, {"step", key}.__contains__)
            if key not in metrics:
                lacking.append(groups.lacks(run.path, key))
                continue
            last = int(metrics["step"][1][-1])
            if last < run.steps:
                remarks.append(f"{run.path} stands at step {last:,} of {run.steps:,}; its score is of that moment")
            scores.append(metrics[key][1][-1])
        if scores:
            result.append(Scores(group.env, group.label, (np.asarray(scores, np.float64),)))
    if not result:
        raise UserError(lacking[0])
    envs = list(dict.fromkeys(scores.env for scores in result))
    result.sort(key=lambda scores: envs.index(scores.env))
    return result, [*(f"{line}; left out" for line in lacking), *remarks]


def normalised(scores: Sequence[Scores], scales: dict[str, Scale]) -> tuple[list[Scores], list[str]]:
    """(groups of the same label over all envs, remarks on those that have not been on each)."""
    by_env: dict[str, dict[str, Array]] = {}
    for group in scores:
        low, high = groups.scale_of(group.env, scales)
        by_env.setdefault(group.env, {})[group.label] = (group.tasks[0] - low) / (high - low)
    labels = list(dict.fromkeys(group.label for group in scores))
    missing = {label: [env for env, own in by_env.items() if label not in own] for label in labels}
    remarks = [f"{label} has no runs on {', '.join(envs)}; left out" for label, envs in missing.items() if envs]
    whole = [
        Scores(f"{len(by_env)} environments, normalised", label, tuple(own[label] for own in by_env.values()))
        for label in labels
        if not missing[label]
    ]
    if not whole:
        raise UserError(f"--normalise needs a group with runs on every env; {remarks[0]}")
    return whole, remarks


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Two columns of text, the others of numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()


def _interval(difference: Difference | None) -> tuple[float, float] | None:
    return None if difference is None else (difference.low, difference.high)


def _bracket(ends: tuple[float, float] | None) -> str:
    return f" ({_ends(ends)})" if ends else ""


def _ends(ends: tuple[float, float]) -> str:
    return f"{_number(ends[0])} … {_number(ends[1])}"


def _number(value: float) -> str:
    """Four digits, more where they are before the point."""
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "−")
