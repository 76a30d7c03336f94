"""Learning curves of finished or running runs, read from their JSON files."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from pronghorn.tools import groups, statistics
from pronghorn.tools.groups import Group, Scale, Series, number
from pronghorn.tools.statistics import Array, Band
from pronghorn.types import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

X: TypeAlias = Literal["steps", "frames", "seconds"]
Statistic: TypeAlias = Literal["median", "iqm"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#666666")
"""Told apart by the colour-blind (Okabe and Ito), in order of use."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
"""The next is taken when the colours have been used up."""

LABELS = {
    "eval/return": "evaluation return",
    "eval/return_std": "standard deviation of the evaluation return",
    "return/mean": "training return (mean of 100 episodes)",
    "length/mean": "episode length (mean of 100 episodes)",
    "steps_per_second": "steps per second",
}

RETURNS = ("eval/return", "return/mean")
"""Keys with which the returns of single tasks are shown too."""

TASK = re.compile(r"task/(.+)/return")

BANDS: dict[Statistic, tuple[str, Callable[[Sequence[Array]], Band]]] = {
    "median": ("line: median; band: 25% to 75% of the seeds", statistics.quartile_band),
    "iqm": ("line: interquartile mean; band: its 95% bootstrap interval", statistics.iqm_band),
}

PLACES = 500
"""Points of a curve, at most."""

SLACK = 0.01
"""Share of the longest run by which reports of different seeds may lie apart and count as of the same place."""

SINGLE_RUNS = 3
"""Groups on a panel with which single runs are shown as thin lines; of more they would be a thicket."""

DOTTED = 12
"""Places of a curve, up to which each is a dot too."""

CUT_SHORT = 0.9
"""Runs that end before this share of the longest of their group are pointed out."""


@dataclass(frozen=True)
class Curve:
    """A group on a panel: its runs on each of several tasks, mostly on one."""

    label: str
    tasks: tuple[list[Series], ...]

    @property
    def n(self) -> int:
        """Runs on the task that has the fewest."""
        return min(map(len, self.tasks))


@dataclass(frozen=True)
class Panel:
    """The curves of a key on an env."""

    env: str
    key: str
    title: str
    ylabel: str
    curves: list[Curve] = field(default_factory=list)


def plot(
    runs: Sequence[Path],
    out: Path,
    key: str = "eval/return",
    x: X = "steps",
    statistic: Statistic = "median",
    smooth: int = 1,
    normalise: Path | None = None,
) -> list[str]:
    """Draws ``key`` of the metrics into the file ``out``; returns remarks about runs, a line each.

    ``runs`` are runs or directories that hold some; those that differ only in their seed are drawn as one. There is a
    panel per env, and per task where the runs tell of several. ``smooth`` averages that many reports. ``normalise`` is
    a file for ``groups.read_scales`` and asks for one panel over all envs instead. Raises UserError for what cannot be
    read or written, and where no run has ``key``.
    """
    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"--out must end in .png, .svg or .pdf, not {out.name!r}")
    scales = None if normalise is None else groups.read_scales(normalise)
    found = groups.collect(runs, timed=x == "seconds" or key == "steps_per_second")
    panels, remarks = arrange(found, key, x, smooth)
    if scales is not None:
        whole, left_out = aggregate([panel for panel in panels if panel.key == key], scales)
        panels, remarks = [whole], remarks + left_out
    from matplotlib import rc_context

    with rc_context({"font.size": 10.5, "svg.fonttype": "none", "svg.hashsalt": "pronghorn"}):
        figure = draw(panels, x, statistic)
        fresh = out.with_name(f".{out.name}")  # out is complete or untouched
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            try:
                figure.savefig(fresh, dpi=160)
                fresh.replace(out)
            finally:
                fresh.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"--out {out} cannot be written: {error.strerror}") from None
    return remarks


def arrange(found: Sequence[Group], key: str, x: X, smooth: int = 1) -> tuple[list[Panel], list[str]]:
    """(panels, remarks): of each env the key, then its tasks. Raises UserError where no run has the key."""
    panels: dict[tuple[str, str], Panel] = {}
    remarks = groups.repeated_seeds(found)
    lacking: list[str] = []
    place = "step" if x == "steps" else x
    for group in found:
        by_key: dict[str, list[Series]] = {}
        shown: list[Path] = []
        for run in group.runs:
            metrics = groups.read_metrics(run.path, lambda name: _is_shown(name, key), place)
            for name, series in metrics.items():
                by_key.setdefault(name, []).append(smoothed(series, smooth))
            if key in metrics:
                shown.append(run.path)
            else:
                lacking.append(groups.lacks(run.path, key, place))
        if len(shown) > 1:
            remarks += _ends(f"{group.label} on {group.env}", shown, by_key[key], x)
        for name, several in by_key.items():
            panel = panels.setdefault((group.env, name), _panel(group.env, name))
            panel.curves.append(Curve(group.label, (several,)))
    if all(panel.key != key for panel in panels.values()):
        raise UserError(lacking[0])
    envs = list(dict.fromkeys(group.env for group in found))
    ordered = sorted(panels.values(), key=lambda panel: (envs.index(panel.env), panel.key != key, panel.key))
    return ordered, [*(f"{line}; left out" for line in lacking), *remarks]


def aggregate(panels: Sequence[Panel], scales: dict[str, Scale]) -> tuple[Panel, list[str]]:
    """(one panel of normalised scores over the envs of ``panels``, remarks on groups that have not been on each)."""
    envs = [panel.env for panel in panels]
    tasks: dict[str, dict[str, list[Series]]] = {}
    for panel in panels:
        low, high = groups.scale_of(panel.env, scales)
        for curve in panel.curves:
            scaled = [(places, (values - low) / (high - low)) for places, values in curve.tasks[0]]
            tasks.setdefault(curve.label, {})[panel.env] = scaled
    whole = Panel("", panels[0].key, f"{len(envs)} environments", f"normalised {panels[0].ylabel}".replace(" (", "\n("))
    remarks = []
    for label, by_env in tasks.items():
        missing = [env for env in envs if env not in by_env]
        if missing:
            remarks.append(f"{label} has no runs on {', '.join(missing)}; left out of the aggregate")
        else:
            whole.curves.append(Curve(label, tuple(by_env.values())))
    if not whole.curves:
        raise UserError(f"--normalise needs a group with runs on every env; {remarks[0]}")
    return whole, remarks


def on_grid(tasks: Sequence[Sequence[Series]]) -> tuple[Array, list[Array]]:
    """(places [M], values [n, M] of each task) where all runs of all tasks have data.

    The places are those of all reports within the range that every run covers, or evenly spaced where these are more
    than ``PLACES``; one where every run has a single report. A run covers what lies between its reports, where it is
    interpolated linearly, and ``SLACK`` around. M is 0 where no range is covered by all.
    """
    runs = [run for task in tasks for run in task]
    slack = SLACK * max(places[-1] for places, _ in runs)
    first = max(places[0] for places, _ in runs) - slack
    last = min(places[-1] for places, _ in runs) + slack
    grid = np.unique(np.concatenate([places for places, _ in runs]))
    grid = grid[(grid >= first) & (grid <= last)]
    if len(grid) and all(len(places) == 1 for places, _ in runs):
        grid = grid.mean(keepdims=True)
    elif len(grid) > PLACES:
        grid = np.linspace(grid[0], grid[-1], PLACES)
    return grid, [np.stack([np.interp(grid, *run) for run in task]) for task in tasks]


def smoothed(series: Series, window: int) -> Series:
    """Each value averaged with those before it, ``window`` in all where there are as many."""
    places, values = series
    return places, np.asarray([values[max(0, end - window) : end].mean() for end in range(1, len(values) + 1)])


def draw(panels: Sequence[Panel], x: X, statistic: Statistic = "median") -> Figure:
    """The whole picture, with one legend below the panels."""
    from matplotlib.figure import Figure

    columns = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    width, height = (6.4, 4.1) if columns == 1 else (4.4, 3.5) if columns <= 3 else (3.4, 2.8)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for unused in axes.flat[len(panels) :]:
        unused.remove()
    scale, xlabel = _unit(panels, x)
    for index, (panel, place) in enumerate(zip(panels, axes.flat, strict=False)):
        for curve in panel.curves:
            colour, dashes = _style(names.index(curve.label))
            if curve.n > 1 and len(curve.tasks) == 1 and len(panel.curves) <= SINGLE_RUNS:
                draw_runs(place, curve.tasks[0], colour, scale)
            draw_curve(place, curve, colour, dashes, scale, statistic)
        _dress(place, panel.title)
        if index % columns == 0 or panel.ylabel != panels[index - 1].ylabel:
            place.set_ylabel(panel.ylabel)
        if index + columns >= len(panels):
            place.set_xlabel(xlabel)
    _legend(figure, panels, names, statistic)
    return figure


def draw_runs(place: Axes, runs: Sequence[Series], colour: str, scale: float) -> None:
    """Thin lines, or dots."""
    for places, values in runs:
        marker = "." if len(places) == 1 else ""
        place.plot(places / scale, values, color=colour, linewidth=0.5, alpha=0.35, marker=marker)


def draw_curve(place: Axes, curve: Curve, colour: str, dashes: Any, scale: float, statistic: Statistic) -> None:
    """A line on a band, for one seed a line alone; where there is a single place, a dot on a bar."""
    grid, values = on_grid(curve.tasks)
    if not len(grid):
        return
    band = BANDS[statistic][1](values)
    several, point = curve.n > 1, len(grid) == 1
    if several and point:
        place.vlines(grid / scale, band.low, band.high, color=colour, alpha=0.3, linewidth=6)
    elif several:
        place.fill_between(grid / scale, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
    place.plot(
        grid / scale,
        band.middle,
        color=colour,
        linestyle=dashes,
        linewidth=2.0 if several else 1.2,
        marker="o" if len(grid) <= DOTTED else "",
        markersize=6 if point else 3.5,
    )


def _is_shown(name: str, key: str) -> bool:
    return name == key or (key in RETURNS and TASK.fullmatch(name) is not None)


def _panel(env: str, key: str) -> Panel:
    task = TASK.fullmatch(key)
    if task:
        return Panel(env, key, f"{env}: {task[1]}", LABELS["return/mean"])
    return Panel(env, key, env, LABELS.get(key, key))


def _ends(group: str, runs: Sequence[Path], several: Sequence[Series], x: X) -> list[str]:
    """Remarks on runs whose end is the end of their group's curve."""
    if not len(on_grid([several])[0]):
        return [f"the {len(runs)} runs of {group} have no {x} in common: no curve is drawn"]
    ends = [float(places[-1]) for places, _ in several]
    return [
        f"{run} ends at {end:,.0f} of {max(ends):,.0f} {x}, and with it the curve of its group"
        for run, end in zip(runs, ends, strict=True)
        if end == min(ends) < CUT_SHORT * max(ends)
    ]


def _unit(panels: Sequence[Panel], x: X) -> tuple[float, str]:
    """(what places are divided by, the axis' label)."""
    if x != "seconds":
        return 1.0, "environment steps" if x == "steps" else "simulator frames"
    longest = max(
        float(run[0][-1]) for panel in panels for curve in panel.curves for task in curve.tasks for run in task
    )
    scale, unit = next(
        (size, name)
        for least, size, name in ((10800, 3600, "hours"), (180, 60, "minutes"), (0, 1, "seconds"))
        if longest >= least
    )
    return float(scale), f"wall-clock time ({unit})"


def _style(index: int) -> tuple[str, Any]:
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def _dress(place: Axes, title: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    place.set_title(title, fontweight="bold", loc="left", fontsize=11.5)
    place.set_xlim(0, 1.02 * place.dataLim.x1 or 1)
    place.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}".replace("-", "−")))
    place.grid(color="#e5e5e5", linewidth=0.8)
    place.set_axisbelow(True)
    place.spines[["top", "right"]].set_visible(False)
    place.spines[["left", "bottom"]].set_color("#888888")
    place.tick_params(color="#888888", labelcolor="#333333")


def _legend(figure: Figure, panels: Sequence[Panel], names: Sequence[str], statistic: Statistic) -> None:
    """Below all panels, in height that is added: what each line is and of how many runs, and what a band is."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    texts = []
    for index, name in enumerate(names):
        counts = [curve.n for panel in panels for curve in panel.curves if curve.label == name]
        least, most = min(counts), max(counts)
        colour, dashes = _style(index)
        line = Line2D([], [], color=colour, linestyle=dashes, linewidth=2.0 if most > 1 else 1.2)
        handles.append((Patch(color=colour, alpha=0.2, linewidth=0), line) if most > 1 else line)
        count = f"n={least}" if least == most else f"n={least} to {most}"
        texts.append("\n".join(textwrap.wrap(f"{name} ({count})", 72)))
    longest = max(len(line) for text in texts for line in text.splitlines())
    columns = min(len(names), max(1, int(figure.get_figwidth() / (0.085 * longest + 0.7))))
    lines = sum(text.count("\n") + 1.3 for text in texts) / columns + 2
    figure.set_figheight(figure.get_figheight() + 0.17 * lines)
    figure.legend(
        handles,
        texts,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9.5,
        title=BANDS[statistic][0] if any(curve.n > 1 for panel in panels for curve in panel.curves) else None,
        title_fontsize=9,
    )
