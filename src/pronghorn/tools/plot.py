"""Learning curves of finished or running runs, read from their JSON files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pronghorn.config import nearest
from pronghorn.types import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""(steps, values), both [N]; steps increase strictly."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#666666")
"""Told apart by the colour-blind (Okabe and Ito), in order of use."""

LABELS = {
    "eval/return": "evaluation return",
    "eval/return_std": "standard deviation of the evaluation return",
    "return/mean": "training return (mean of 100 episodes)",
    "length/mean": "episode length (mean of 100 episodes)",
    "steps_per_second": "steps per second",
}


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    options: dict[str, Any]
    """what decides the learning, flat"""
    runs: list[Series]


def plot(runs: Sequence[Path], out: Path, key: str = "eval/return") -> Path:
    """Draws ``key`` of the metrics over steps, one panel per env, and returns the file written.

    A group of runs is its median and 25–75 % band over seeds; a single run is a thin line. Raises UserError for
    a directory that is no run, a key without values, and a suffix that is no picture.
    """
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--out must end in .png, .svg or .pdf, not {out.name!r}")
    groups = collect(runs, key)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = labels([group.options for group in groups])
    envs = list(dict.fromkeys(group.options["env"] for group in groups))
    columns = min(3, len(envs))
    rows = -(-len(envs) // columns)
    with pyplot.rc_context({"font.size": 10.5, "svg.fonttype": "none", "svg.hashsalt": "pronghorn"}):
        figure, axes = pyplot.subplots(
            rows,
            columns,
            figsize=(6.4 if columns == 1 else 4.6 * columns, 4.2 if columns == 1 else 3.6 * rows),
            squeeze=False,
            layout="constrained",
        )
        for panel in axes.flat[len(envs) :]:
            panel.remove()
        colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(dict.fromkeys(names))}
        for env, panel in zip(envs, axes.flat, strict=False):
            for group, name in zip(groups, names, strict=True):
                if group.options["env"] == env:
                    draw(panel, group.runs, name, colours[name])
            _dress(panel, env)
        for panel in axes[:, 0]:
            panel.set_ylabel(LABELS.get(key, key))
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=160)
        pyplot.close(figure)
    return out


def curve(
    runs: Sequence[Series],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(steps, median, 25 %, 75 %), each [M], over ``runs``.

    The grid holds every step at which some run has a value, within the range that all runs cover; values between
    two points of a run are interpolated linearly. Empty where no step is covered by all.
    """
    first = max(steps[0] for steps, _ in runs)
    last = min(steps[-1] for steps, _ in runs)
    grid = np.unique(np.concatenate([steps for steps, _ in runs]))
    grid = grid[(grid >= first) & (grid <= last)]
    values = np.stack([np.interp(grid, steps, values) for steps, values in runs])
    low, middle, high = np.percentile(values, (25, 50, 75), axis=0)
    return grid, middle, low, high


def collect(runs: Sequence[Path], key: str) -> list[Group]:
    """The runs in groups, in order of appearance. Raises UserError for what cannot be read."""
    groups: dict[str, Group] = {}
    for run in dict.fromkeys(runs):
        options = read_options(run)
        group = groups.setdefault(json.dumps(options, sort_keys=True), Group(options, []))
        group.runs.append(read_metric(run, key))
    return list(groups.values())


def read_options(run: Path) -> dict[str, Any]:
    """What decides the learning in ``config.json``, flat: not the seed, and nothing about where and how fast."""
    try:
        config = json.loads((run / "config.json").read_text())["config"]
        options: dict[str, Any] = {name: config[name] for name in ("env", "env_args", "algorithm", "runner", "steps")}
        options["force_lag"] = config.get("force_lag", 0)
        options["num_envs"] = config["vec"]["num_envs"]
        for part in ("network", "loss", "optimiser"):
            options |= config[part]
        return options
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{run} is not a run: config.json cannot be read ({error})") from None


def read_metric(run: Path, key: str) -> Series:
    """The reports of ``metrics.jsonl`` that have ``key``.

    A last line cut in the middle is ignored; where a resumed run went back, its later reports replace the earlier.
    """
    steps: list[float] = []
    values: list[float] = []
    seen: set[str] = set()
    for report in _reports(run):
        seen |= report.keys()
        if key not in report:
            continue
        while steps and steps[-1] >= report["step"]:
            steps.pop()
            values.pop()
        steps.append(report["step"])
        values.append(report[key])
    if not steps:
        raise UserError(f"{run} has no {key!r} yet; {nearest(key, seen - {'step'}) if seen else 'it has no reports'}")
    return np.asarray(steps, np.float64), np.asarray(values, np.float64)


def labels(options: Sequence[dict[str, Any]]) -> list[str]:
    """A name for each group: its algorithm, and what tells it apart from others of the same env and algorithm."""
    names = []
    for own in options:
        rivals = [other for other in options if all(other[name] == own[name] for name in ("env", "algorithm"))]
        differing = [name for name in own if any(other.get(name) != own[name] for other in rivals)]
        names.append(
            ", ".join([own["algorithm"], *(f"{name.replace('_', ' ')} {_short(own[name])}" for name in differing)])
        )
    return names


def draw(panel: Axes, runs: Sequence[Series], name: str, colour: str) -> None:
    """One group on a panel."""
    if len(runs) == 1:
        panel.plot(*runs[0], color=colour, linewidth=1.0, label=name)
        return
    for steps, values in runs:
        panel.plot(steps, values, color=colour, linewidth=0.5, alpha=0.3)
    grid, median, low, high = curve(runs)
    panel.fill_between(grid, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.plot(grid, median, color=colour, linewidth=2.0, label=f"{name} ({len(runs)} seeds)")


def _dress(panel: Axes, title: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    panel.set_title(title, fontweight="bold", loc="left", fontsize=12)
    panel.set_xlabel("environment steps")
    panel.margins(x=0)
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(6))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    panel.grid(color="#e5e5e5", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#888888")
    panel.tick_params(color="#888888", labelcolor="#333333")
    panel.legend(frameon=False, loc="best", fontsize=9.5)


def _reports(run: Path) -> list[dict[str, Any]]:
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except OSError as error:
        raise UserError(f"{run} is not a run: metrics.jsonl cannot be read ({error.strerror})") from None
    reports = []
    for number, line in enumerate(lines, 1):
        try:
            reports.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise UserError(f"line {number} of {run / 'metrics.jsonl'} is not JSON") from None
    return reports


def _short(value: Any) -> str:
    """250000 → 250k, 1500000 → 1.5M; other values as they are."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        for scale, suffix in ((1e6, "M"), (1e3, "k")):
            if abs(value) >= scale:
                return f"{value / scale:.6g}{suffix}"
        return f"{value:g}"
    return str(value)
