"""Pictures by what is in them: panels, lines, bands and their vertices, axes, legend; and the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from tools.made_runs import make_run, make_seeds, reports_of

from pronghorn.__main__ import main
from pronghorn.config import RunConfig
from pronghorn.tools import groups, plot, statistics
from pronghorn.tools.groups import Series
from pronghorn.types import UserError

CURVES = [{100: 1.0, 200: 4.0, 300: 9.0}, {100: 3.0, 200: 8.0, 300: 1.0}, {100: 7.0, 200: 5.0, 300: 6.0}]


def series(places: list[float], values: list[float]) -> Series:
    return np.asarray(places, np.float64), np.asarray(values, np.float64)


def drawn(
    paths: list[Path], key: str = "eval/return", x: plot.X = "steps", statistic: plot.Statistic = "median"
) -> Figure:
    panels, _ = plot.arrange(groups.collect(paths), key, x)
    return plot.draw(panels, x, statistic)


def thick(place):
    return [line for line in place.lines if line.get_linewidth() > 1]


def legend(figure: Figure) -> list[str]:
    (one,) = figure.legends
    return [text.get_text() for text in one.get_texts()]


def outline(band) -> set[tuple[float, float]]:
    return {(float(x), float(y)) for x, y in band.get_paths()[0].vertices}


def test_the_grid_is_where_every_run_has_data() -> None:
    runs = [
        series([0, 10, 20], [0, 10, 20]),
        series([10, 20, 40], [20, 40, 80]),
        series([5, 15, 25], [15, 45, 75]),
    ]
    grid, (values,) = plot.on_grid([runs])
    assert grid.tolist() == [10, 15, 20]
    assert values.tolist() == [[10, 15, 20], [20, 30, 40], [30, 45, 60]]


def test_the_grid_is_common_to_all_tasks() -> None:
    grid, tasks = plot.on_grid([[series([0, 10], [0, 10])], [series([5, 20], [5, 20]), series([6, 8], [0, 0])]])
    assert grid.tolist() == [6, 8]
    assert [values.tolist() for values in tasks] == [[[6, 8]], [[6, 8], [0, 0]]]


def test_a_grid_of_many_reports_is_thinned() -> None:
    run = series(list(range(10_000)), list(range(10_000)))
    grid, (values,) = plot.on_grid([[run, run]])
    assert len(grid) == plot.PLACES and grid[[0, -1]].tolist() == [0, 9999]
    assert np.allclose(values, grid)


def test_smoothing_takes_the_newest_reports() -> None:
    places, values = plot.smoothed(series([1, 2, 3, 4], [4, 8, 0, 6]), 3)
    assert places.tolist() == [1, 2, 3, 4]
    assert values.tolist() == [4, 6, 4, pytest.approx(14 / 3)]


def test_median_and_middle_half_of_the_seeds(tmp_path: Path) -> None:
    figure = drawn(make_seeds(tmp_path, CURVES))
    (place,) = figure.axes
    (line,) = thick(place)
    assert line.get_xydata().tolist() == [[100, 3], [200, 5], [300, 6]]
    assert len(place.lines) == 1 + len(CURVES)
    (band,) = place.collections
    columns = [sorted(curve[step] for curve in CURVES) for step in (100, 200, 300)]
    ends = {(100.0 * index, (c[0] + c[1]) / 2) for index, c in enumerate(columns, 1)}
    ends |= {(100.0 * index, (c[1] + c[2]) / 2) for index, c in enumerate(columns, 1)}
    assert outline(band) == ends
    assert legend(figure) == ["ppo (n=3)"]
    assert figure.legends[0].get_title().get_text() == "line: median; band: 25% to 75% of the seeds"
    assert (place.get_title("left"), place.get_xlabel(), place.get_ylabel()) == (
        "CartPole-v1",
        "environment steps",
        "evaluation return",
    )


def test_interquartile_mean_with_its_interval(tmp_path: Path) -> None:
    curves = [{1: value, 2: 10 * value} for value in (0.0, 2.0, 4.0, 6.0, 100.0)]
    figure = drawn(make_seeds(tmp_path, curves), statistic="iqm")
    (place,) = figure.axes
    (line,) = thick(place)
    assert line.get_ydata().tolist() == [4, 40]
    low, high = statistics.interval([np.array([[0.0], [2], [4], [6], [100]]) * [[1, 10]]], statistics.iqm)
    assert 0 <= low[0] < 4 < high[0] <= 100
    assert outline(place.collections[0]) == {(1, low[0]), (2, low[1]), (1, high[0]), (2, high[1])}
    assert "95% bootstrap interval" in figure.legends[0].get_title().get_text()


def test_one_seed_is_a_line_without_a_band(tmp_path: Path) -> None:
    figure = drawn(make_seeds(tmp_path, CURVES[:1]))
    (place,) = figure.axes
    assert [line.get_ydata().tolist() for line in place.lines] == [[1, 4, 9]]
    assert not place.collections and legend(figure) == ["ppo (n=1)"]
    assert figure.legends[0].get_title().get_text() == ""


def test_a_single_evaluation_is_a_visible_point(tmp_path: Path) -> None:
    (place,) = drawn(make_seeds(tmp_path, [{100: 5.0}])).axes
    (line,) = place.lines
    assert line.get_xydata().tolist() == [[100, 5]] and line.get_marker() == "o"


def test_single_evaluations_at_nearly_the_same_step_are_a_dot_on_a_bar(tmp_path: Path) -> None:
    (place,) = drawn(make_seeds(tmp_path, [{1000: 1.0}, {1004: 2.0}, {1005: 4.0}])).axes
    assert len(place.lines) == 4
    assert thick(place)[0].get_xydata().tolist() == [[1003, 2]]
    (bar,) = place.collections
    assert outline(bar) == {(1003, 1.5), (1003, 3)}


def test_seeds_that_end_at_nearly_the_same_step_are_drawn_to_the_end(tmp_path: Path) -> None:
    grid, (values,) = plot.on_grid([[series([0, 1000], [0, 1000]), series([8, 1009], [8, 1009])]])
    assert grid.tolist() == [0, 8, 1000, 1009]
    assert values.tolist() == [[0, 8, 1000, 1000], [8, 8, 1000, 1009]]


def test_many_groups_are_drawn_without_their_single_runs(tmp_path: Path) -> None:
    paths = [path for n in range(4) for path in make_seeds(tmp_path / str(n), CURVES, gae_lambda=n / 100)]
    (place,) = drawn(paths).axes
    assert len(place.lines) == len(place.collections) == 4


def test_panels_of_envs_and_colours_of_labels(tmp_path: Path) -> None:
    paths = make_seeds(tmp_path / "a", CURVES, "A-v0") + make_seeds(tmp_path / "b", CURVES[:2], "A-v0", discount=0.5)
    paths += make_seeds(tmp_path / "c", CURVES[:2], "B-v0", discount=0.5)
    figure = drawn(paths)
    assert [place.get_title("left") for place in figure.axes] == ["A-v0", "B-v0"]
    assert legend(figure) == ["ppo, discount 0.99 (n=3)", "ppo, discount 0.5 (n=2)"]
    colours = [[to_hex(line.get_color()) for line in thick(place)] for place in figure.axes]
    assert colours == [list(plot.COLOURS[:2]), [plot.COLOURS[1]]]
    assert [len(place.collections) for place in figure.axes] == [2, 1]
    assert [place.get_ylabel() for place in figure.axes] == ["evaluation return", ""]


def test_more_groups_than_colours_differ_in_their_dashes(tmp_path: Path) -> None:
    count = len(plot.COLOURS) + 2
    paths = [make_seeds(tmp_path / str(n), CURVES[:1], gae_lambda=n / 100)[0] for n in range(count)]
    (place,) = drawn(paths).axes
    styles = {(line.get_color(), line.get_linestyle()) for line in place.lines}
    assert len(place.lines) == len(styles) == count


def test_counts_that_differ_between_panels_are_a_range(tmp_path: Path) -> None:
    paths = make_seeds(tmp_path / "a", CURVES, "A-v0") + make_seeds(tmp_path / "b", CURVES[:1], "B-v0")
    assert legend(drawn(paths)) == ["ppo (n=1 to 3)"]


def test_each_task_has_a_panel(tmp_path: Path) -> None:
    reports = [*reports_of({1: 5.0, 2: 6.0}), {"step": 3, "task/maze/return": 7.0, "task/arena/return": 8.0}]
    run = make_run(tmp_path / "r", RunConfig(env="Lab"), reports)
    figure = drawn([run])
    assert [place.get_title("left") for place in figure.axes if place.lines] == ["Lab", "Lab: arena", "Lab: maze"]
    assert [place.get_ylabel() for place in figure.axes][:2] == [
        "evaluation return",
        "training return (mean of 100 episodes)",
    ]
    assert [place.get_title("left") for place in drawn([run], "task/maze/return").axes] == ["Lab: maze"]


@pytest.mark.parametrize(
    ("x", "factor", "label"),
    [
        ("steps", 1, "environment steps"),
        ("frames", 4, "simulator frames"),
        ("seconds", 1 / 100 / 60, "wall-clock time (minutes)"),
    ],
)
def test_the_axis_may_be_steps_frames_or_time(x: plot.X, factor: float, label: str, tmp_path: Path) -> None:
    (place,) = drawn(make_seeds(tmp_path, [{10_000: 1.0, 100_000: 2.0}]), x=x).axes
    assert place.lines[0].get_xdata() == pytest.approx([10_000 * factor, 100_000 * factor])
    assert place.get_xlabel() == label
    format_x, format_y = (axis.get_major_formatter() for axis in (place.xaxis, place.yaxis))
    assert (format_x(250_000), format_y(-1234.5)) == ("250k", "−1,234.5")


@pytest.mark.parametrize(("seconds", "unit"), [(20, "seconds"), (600, "minutes"), (20_000, "hours")])
def test_the_unit_of_time_follows_its_length(seconds: int, unit: str, tmp_path: Path) -> None:
    (place,) = drawn(make_seeds(tmp_path, [{100: 1.0, 100 * seconds: 2.0}]), x="seconds").axes
    assert place.get_xlabel() == f"wall-clock time ({unit})"


def test_runs_of_different_lengths_are_pointed_out(tmp_path: Path) -> None:
    a, b = make_seeds(tmp_path, [{0: 0.0, 1000: 10.0}, {0: 0.0, 500: 5.0}])
    panels, remarks = plot.arrange(groups.collect([a, b]), "eval/return", "steps")
    assert remarks == [f"{b} ends at 500 of 1,000 steps, and with it the curve of its group"]
    (place,) = plot.draw(panels, "steps").axes
    assert thick(place)[0].get_xydata().tolist() == [[0, 0], [500, 5]]


def test_runs_without_common_steps_are_thin_lines_and_a_remark(tmp_path: Path) -> None:
    paths = make_seeds(tmp_path, [{1: 0.0, 2: 1.0}, {5: 1.0, 6: 2.0}])
    panels, remarks = plot.arrange(groups.collect(paths), "eval/return", "steps")
    assert remarks == ["the 2 runs of ppo on CartPole-v1 have no steps in common: no curve is drawn"]
    (place,) = plot.draw(panels, "steps").axes
    assert len(place.lines) == 2 and not thick(place) and not place.collections


def test_runs_without_the_key_are_left_out_by_name(tmp_path: Path) -> None:
    a, b = make_seeds(tmp_path, [{1: 0.0}, {}])
    panels, remarks = plot.arrange(groups.collect([a, b]), "eval/return", "steps")
    assert remarks == [f"{b} has no 'eval/return' yet: it has no reports; left out"]
    assert [curve.n for panel in panels for curve in panel.curves] == [1]
    with pytest.raises(UserError, match=f"{b} has no 'eval/return' yet: it has no reports$"):
        plot.arrange(groups.collect([b]), "eval/return", "steps")


def test_one_panel_over_all_envs_of_normalised_scores(tmp_path: Path) -> None:
    a = make_seeds(tmp_path / "a", [{1: 10.0, 2: 20.0}, {1: 30.0, 2: 40.0}], "A-v0")
    b = make_seeds(tmp_path / "b", [{1: 200.0, 2: 100.0}, {1: 200.0, 2: 100.0}], "B-v0")
    alone = make_seeds(tmp_path / "c", [{1: 0.0, 2: 0.0}], "A-v0", discount=0.5)
    panels, _ = plot.arrange(groups.collect([*a, *b, *alone]), "eval/return", "steps")
    whole, remarks = plot.aggregate(panels, {"A": (0, 100), "B": (0, 200)})
    assert remarks == ["ppo, discount 0.5 has no runs on B-v0; left out of the aggregate"]
    figure = plot.draw([whole], "steps", "iqm")
    (place,) = figure.axes
    (line,) = place.lines  # no single runs: they would be of different envs
    scores = [[0.1, 0.3, 1, 1], [0.2, 0.4, 0.5, 0.5]]
    assert line.get_ydata() == pytest.approx([np.mean(sorted(column)[1:3]) for column in scores])
    assert (place.get_title("left"), place.get_ylabel()) == ("2 environments", "normalised evaluation return")
    assert legend(figure) == ["ppo, discount 0.99 (n=2)"]
    with pytest.raises(UserError, match="--normalise has no row for B-v0 or B"):
        plot.aggregate(panels, {"A": (0, 100)})


def test_the_legend_covers_no_panel(tmp_path: Path) -> None:
    """Not even a long one, and the panels keep their size."""
    changes = {"learning_rate": 0.5, "entropy_cost": 0.25, "unroll_length": 77, "num_envs": 99}
    paths = [path for n in range(9) for path in make_seeds(tmp_path / str(n), CURVES[:1], gae_lambda=n / 100)]
    paths += make_seeds(tmp_path / "b", CURVES, **changes)
    for several in (paths, paths + make_seeds(tmp_path / "c", CURVES, "Other-v0")):
        figure = drawn(several)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        panels = [place.get_tightbbox() for place in figure.axes]
        assert all(not box.overlaps(panel) for panel in panels)
        assert figure.bbox.containsx(box.x0) and figure.bbox.containsx(box.x1)
        assert all(panel.height > 3.3 * figure.dpi for panel in panels)


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_the_command_writes_a_picture(
    suffix: str, start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for env in ("A-v0", "B-v0"):
        make_seeds(tmp_path / "runs" / env, CURVES, env)
    out = tmp_path / "new" / f"curves{suffix}"
    assert main(["plot", str(tmp_path / "runs"), "--out", str(out), "--smooth", "2", "--statistic", "iqm"]) == 0
    assert capsys.readouterr() == (f"wrote {out}\n", "")
    content = out.read_bytes()
    assert content.startswith(start)
    if suffix == ".svg":
        for text in ("A-v0", "B-v0", "environment steps", "evaluation return", "ppo (n=3)"):
            assert text in content.decode()
    if suffix == ".png":
        pixels = imread(out)[..., :3]
        assert min(pixels.shape[:2]) > 400
        assert 0.02 < np.any(pixels < 0.95, axis=-1).mean() < 0.5
        blue = np.array([int(plot.COLOURS[0][index : index + 2], 16) for index in (1, 3, 5)]) / 255
        assert np.all(np.abs(pixels - blue) < 0.01, axis=-1).sum() > 500


def test_the_command_tells_of_runs_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, empty = make_seeds(tmp_path / "runs", [{1: 0.0, 2: 1.0}, {}])
    assert main(["plot", str(tmp_path / "runs"), "--out", str(tmp_path / "c.svg")]) == 0
    assert capsys.readouterr().err == f"pronghorn: {empty} has no 'eval/return' yet: it has no reports; left out\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("RUNS --key eval/retrun", "RUNS/seed0 has no 'eval/retrun' yet; did you mean eval/return?"),
        ("RUNS/nothing", "RUNS/nothing is not a run, and holds none: there is no config.json with a metrics.jsonl"),
        ("RUNS --smooth 0", "--smooth must be positive, not 0"),
        ("RUNS --x hours", "--x: unknown value 'hours'; known: frames, seconds, steps"),
        (
            "RUNS --out RUNS/seed0/config.json/c.png",
            "--out RUNS/seed0/config.json/c.png cannot be written: File exists",
        ),
        ("RUNS --normalise RUNS/seed0", "--normalise RUNS/seed0 cannot be read (Is a directory)"),
    ],
)
def test_mistakes_are_one_line(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_seeds(tmp_path, CURVES)
    monkeypatch.chdir(tmp_path)
    assert main(["plot", *arguments.replace("RUNS", str(tmp_path)).split()]) == 2
    assert capsys.readouterr().err.replace(str(tmp_path), "RUNS") == f"pronghorn: {message}\n"
