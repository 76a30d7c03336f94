"""Runs as their JSON files tell of them, in groups of those that differ only in their seed."""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pronghorn.config import LOSSES, RunConfig, nearest, to_json
from pronghorn.presets import resolve
from pronghorn.types import UserError

Series: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""(places, values), both [N]; places increase."""

Scale: TypeAlias = tuple[float, float]
"""(low, high): the scores of an env that count as 0 and as 1."""

BESIDE = frozenset(
    {
        "env",
        "seed",
        "run",
        "preset",
        "imports",
        "evaluate_every",
        "evaluation_episodes",
        "checkpoint_every",
        "keep_checkpoints",
        "env_timeout",
        "env_restarts",
        "env_errors",
    }
)
"""Options that decide neither what is learnt nor how fast, or that are told in other ways."""

NAMED = 4
"""Options that a label names, unless more are needed to tell groups apart."""

SPEED = frozenset({"device", "threads", "compile", "layout", "workers"})
"""Options that decide only how fast."""


@dataclass(frozen=True)
class Run:
    """What ``config.json`` says."""

    path: Path
    env: str
    algorithm: str
    preset: str
    seed: int
    steps: int
    options: dict[str, Any]
    """all others, flat, with defaults for those that an older version did not have"""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, and what tells them from the other groups."""

    env: str
    label: str
    runs: tuple[Run, ...]


def find(paths: Sequence[Path]) -> list[Path]:
    """The runs among ``paths`` and, where a path is no run, below it; each once.

    Files are passed over: a pattern of the shell may take logs with it. Raises UserError for a directory that holds no
    run, a path that does not exist, and where there are only files.
    """
    found: dict[Path, Path] = {}
    directories = [path for path in paths if not path.is_file()]
    for path in directories or paths:
        is_run = (path / "config.json").exists() or (path / "metrics.jsonl").exists()
        runs = [path] if is_run else list(_below(path))
        if not runs:
            raise UserError(f"{path} is not a run, and holds none: there is no config.json with a metrics.jsonl")
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_run(path: Path) -> Run:
    """Raises UserError where ``config.json`` is not that of a run."""
    try:
        config = json.loads((path / "config.json").read_text())["config"]
        env, algorithm, seed, steps = (config[name] for name in ("env", "algorithm", "seed", "steps"))
        options = _defaults(algorithm) | _flat(config)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is not a run: config.json cannot be read ({reason})") from None
    options = {name: value for name, value in options.items() if name not in BESIDE}
    return Run(path, env, algorithm, config.get("preset", ""), seed, steps, options)


def collect(paths: Sequence[Path], timed: bool = False) -> list[Group]:
    """The runs of ``find`` in groups, in order of appearance.

    Groups differ in what decides the learning; where it is ``timed``, also in what decides the speed. Raises UserError
    for what cannot be read.
    """
    groups: dict[str, list[Run]] = {}
    for run in map(read_run, find(paths)):
        if not timed:
            run = replace(run, options={name: value for name, value in run.options.items() if name not in SPEED})
        groups.setdefault(json.dumps([run.env, run.options], sort_keys=True), []).append(run)
    names = labels([runs[0] for runs in groups.values()])
    return [Group(runs[0].env, name, tuple(runs)) for runs, name in zip(groups.values(), names, strict=True)]


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run, one of each group: the algorithm, and what tells it from others of that algorithm and env.

    Where presets differ, the preset and what was changed from it. Options named for one env are named for all, so that
    a label means the same in every panel. Of more than ``NAMED`` options only as many are named as tell groups apart.
    """
    kin = {run.algorithm: [other for other in runs if other.algorithm == run.algorithm] for run in runs}
    telling = {algorithm: _telling(several) for algorithm, several in kin.items()}
    return [_label(run, *telling[run.algorithm]) for run in runs]


def read_metrics(path: Path, wanted: Callable[[str], bool], place: str = "step") -> dict[str, Series]:
    """The finite values in ``metrics.jsonl`` of every key that is ``wanted``, over those of ``place``.

    A last line cut in the middle is ignored; where a resumed run went back, its later reports replace the earlier.
    Raises UserError where the file cannot be read.
    """
    points: dict[str, list[tuple[float, float, float]]] = {}
    for report in _reports(path):
        for name in filter(wanted, report):
            if _is_number(report[name]) and _is_number(report.get(place)):
                series = points.setdefault(name, [])
                while series and series[-1][0] >= report["step"]:
                    series.pop()
                series.append((report["step"], report[place], report[name]))
    series_of = {name: np.asarray(rows, np.float64) for name, rows in points.items()}
    return {name: (rows[:, 1], rows[:, 2]) for name, rows in series_of.items()}


def lacks(path: Path, key: str, place: str = "step") -> str:
    """Why a run has no values of ``key``, a line."""
    seen = set(read_metrics(path, lambda name: True))
    if not seen:
        return f"{path} has no {key!r} yet: it has no reports"
    if key in seen:
        return f"{path} has no {key!r} over {place!r}, which its reports lack"
    return f"{path} has no {key!r} yet; {nearest(key, seen - {'step', 'frames', 'seconds'})}"


def repeated_seeds(groups: Sequence[Group]) -> list[str]:
    """Remarks on groups with runs that are likely copies of each other, a line each."""
    repeated = {
        (group.env, group.label): [
            str(seed) for seed, count in Counter(run.seed for run in group.runs).items() if count > 1
        ]
        for group in groups
    }
    return [
        f"{label} on {env} has more than one run of seed {', '.join(seeds)}: such runs are not independent"
        for (env, label), seeds in repeated.items()
        if seeds
    ]


def read_scales(path: Path) -> dict[str, Scale]:
    """A CSV file of name, low, high (such as a game, the random and the human score); its first line may be a title.

    Raises UserError for what cannot be read, and where low is high.
    """
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"--normalise {path} cannot be read ({reason})") from None
    scales: dict[str, Scale] = {}
    for index, row in enumerate(rows):
        try:
            name, low, high = row[0].strip(), float(row[1]), float(row[2])
        except (IndexError, ValueError):
            if index:
                raise UserError(f"row {index + 1} of {path} must be NAME,LOW,HIGH, not {','.join(row)!r}") from None
            continue
        if not (math.isfinite(low) and math.isfinite(high) and low != high):
            raise UserError(f"row {index + 1} of {path} needs two different numbers, not {row[1]} and {row[2]}")
        scales[name] = low, high
    return scales


def scale_of(env: str, scales: dict[str, Scale]) -> Scale:
    """By the env's name, whole or without namespace and version. Raises UserError where there is none."""
    short = re.sub(r"-v\d+$", "", env.rpartition("/")[2])
    for name in (env, short):
        if name in scales:
            return scales[name]
    raise UserError(f"--normalise has no row for {env} or {short}; {nearest(short, scales)}")


def number(value: Any) -> str:
    """250000 → 250k, 1500000 → 1.5M, None → none; text as it is."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= scale:
                return f"{value / scale:.6g}{suffix}"
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")


def _below(path: Path) -> Iterator[Path]:
    for folder, children, files in os.walk(path):
        if "config.json" in files and "metrics.jsonl" in files:
            children.clear()
            yield Path(folder)
        children.sort()


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in config.items():
        if name == "env_args":
            options |= {f"{name}.{key}": item for key, item in value.items()}
        elif isinstance(value, dict):
            options |= value
        else:
            options[name] = value
    return options


def _defaults(algorithm: str) -> dict[str, Any]:
    """Of a known algorithm, as JSON has them."""
    if algorithm not in LOSSES:
        return {}
    return _plain(RunConfig(env="", algorithm=algorithm, loss=LOSSES[algorithm]()))


def _plain(config: RunConfig) -> dict[str, Any]:
    return _flat(json.loads(json.dumps(to_json(config))))


@functools.cache
def _of_preset(env: str, algorithm: str, preset: str) -> dict[str, Any] | None:
    """What a preset says, None where it is not known any more."""
    try:
        return _plain(resolve.resolve(env, algorithm, preset)[1])
    except (UserError, KeyError):
        return None


def _changed(run: Run) -> set[str]:
    """Options that are not as the run's preset has them."""
    usual = _of_preset(run.env, run.algorithm, run.preset)
    return set() if usual is None else {name for name, value in run.options.items() if usual.get(name) != value}


def _label(run: Run, presets: bool, names: Sequence[str], others: int) -> str:
    words = [run.algorithm, *([f"preset {run.preset or 'none'}"] if presets else [])]
    for name in names:
        words.append(f"{name.removeprefix('env_args.').replace('_', ' ')} {number(run.options.get(name))}")
    return ", ".join(words) + (f" … {others} more" if others else "")


def _telling(kin: Sequence[Run]) -> tuple[bool, list[str], int]:
    """(whether presets differ, the options to name, how many differ besides) among runs of one algorithm."""
    rivals = [(a, b) for a, b in combinations(kin, 2) if a.env == b.env]
    differing: dict[str, list[int]] = {}
    """by option: the pairs that it tells apart"""
    for index, (a, b) in enumerate(rivals):
        for name in a.options | b.options:
            if a.options.get(name) != b.options.get(name) and (
                a.preset == b.preset or name in _changed(a) | _changed(b)
            ):
                differing.setdefault(name, []).append(index)
    names = [name for name in dict.fromkeys(name for run in kin for name in run.options) if name in differing]
    if len(names) > NAMED:
        names = _enough(names, differing, {index for index, (a, b) in enumerate(rivals) if a.preset == b.preset})
    return any(a.preset != b.preset for a, b in rivals), names, len(differing) - len(names)


def _enough(names: Sequence[str], differing: dict[str, list[int]], pairs: set[int]) -> list[str]:
    """Those of ``names`` that tell all ``pairs`` apart, the most telling first chosen."""
    chosen = []
    while pairs:
        best = max(names, key=lambda name: len(pairs.intersection(differing[name])))
        pairs = pairs.difference(differing[best])
        chosen.append(best)
    return [name for name in names if name in chosen]


def _reports(path: Path) -> Iterator[dict[str, Any]]:
    file = path / "metrics.jsonl"
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise UserError(f"{path} is not a run: metrics.jsonl cannot be read ({error.strerror})") from None
    for index, line in enumerate(lines, 1):
        try:
            report = json.loads(line)
            if not (isinstance(report, dict) and _is_number(report.get("step"))):
                raise ValueError
        except ValueError:
            if index < len(lines):
                raise UserError(f"line {index} of {file} is not a report: a JSON object with its step") from None
        else:
            yield report


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
