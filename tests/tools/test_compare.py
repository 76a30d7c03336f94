"""Tables of final scores: every number against a naive one, verdicts, remarks, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tools.made_runs import make_seeds, reports_of

from pronghorn.__main__ import main
from pronghorn.tools import statistics
from pronghorn.tools.compare import compare
from pronghorn.types import UserError

GOOD, BAD = (10.0, 11.0, 12.0, 13.0, 40.0), (1.0, 2.0, 3.0, 4.0, 5.0)


def seeds(directory: Path, scores: tuple[float, ...], env: str = "A-v0", **options) -> list[Path]:
    return make_seeds(directory, [{50: -1000.0, 100: score} for score in scores], env, **options)


def test_the_numbers_of_groups(tmp_path: Path) -> None:
    paths = [*seeds(tmp_path / "a", GOOD), *seeds(tmp_path / "b", BAD, "B-v0")]
    a, b = (found := compare(paths)).groups
    assert (a.env, a.label, a.n, a.median, a.iqm, a.mean) == ("A-v0", "ppo", 5, 12, 12, 17.2)
    assert (b.env, b.n, b.median, b.iqm, b.mean) == ("B-v0", 5, 3, 3, 3)
    assert found.pairs == found.remarks == []
    random = np.random.default_rng(3)
    means = np.asarray(GOOD)[random.integers(5, size=(100_000, 5))].mean(axis=1)
    assert a.interval() == pytest.approx(np.percentile(means, (2.5, 97.5)), rel=0.02)


def test_differences_and_their_verdicts(tmp_path: Path) -> None:
    paths = seeds(tmp_path / "a", GOOD) + seeds(tmp_path / "b", BAD, discount=0.5)
    found = compare([*paths, *seeds(tmp_path / "c", (21.0, 22, 23, 24, 25), discount=0.25)])
    assert [(pair.first, pair.second, pair.means, pair.medians) for pair in found.pairs] == [
        (0, 1, pytest.approx(14.2), 9),
        (0, 2, pytest.approx(-5.8), -11),
        (1, 2, -20, -20),
    ]
    for pair in found.pairs:
        scores = [found.groups[index].tasks for index in (pair.first, pair.second)]
        assert pair.of_means == statistics.difference_of_means(*scores)
        assert pair.of_medians == statistics.difference_of_medians(*scores)
    unclear = "not significant (95% interval includes 0)"
    assert [pair.verdict for pair in found.pairs] == [unclear, unclear, "significant"]
    assert found.remarks == ["3 differences, each at 95%: of twenty that are luck, one is called significant"]


def test_groups_of_an_env_stand_together(tmp_path: Path) -> None:
    paths = seeds(tmp_path / "a", GOOD, "a") + seeds(tmp_path / "b", GOOD, "b")
    assert [group.env for group in compare(paths).groups] == ["a", "b"]
    paths += seeds(tmp_path / "late", BAD, "a", discount=0.5)
    assert [group.env for group in compare(paths).groups] == ["a", "a", "b"]


def test_few_seeds_are_pointed_out(tmp_path: Path) -> None:
    paths = seeds(tmp_path / "a", GOOD[:3]) + seeds(tmp_path / "b", BAD, discount=0.5)
    found = compare([*paths, *seeds(tmp_path / "c", BAD[:1], discount=0.25)])
    assert found.remarks[0] == "n < 5 in #1, #3: intervals are rough, that of a mean too narrow"
    assert [pair.verdict.partition(":")[0] for pair in found.pairs[1:]] == ["no interval"] * 2
    assert found.groups[2].interval() is None


def test_the_newest_value_counts_and_unfinished_runs_are_named(tmp_path: Path) -> None:
    (run,) = make_seeds(tmp_path / "a", [{50: 3.0, 80: 7.0}], steps=1000)
    resumed = make_seeds(tmp_path / "b", [{50: 3.0, 100: 4.0}], discount=0.5)[0]
    with (resumed / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(report) + "\n" for report in [*reports_of({100: 6.0}), {"step": 100, "a": 1}])
    found = compare([run, resumed])
    assert [group.mean for group in found.groups] == [7, 6]
    assert found.remarks[0] == f"{run} stands at step 80 of 1,000; its score is of that moment"


def test_another_key(tmp_path: Path) -> None:
    assert compare(make_seeds(tmp_path, [{5: 2.0}], key="return/mean"), "return/mean").groups[0].mean == 2


def test_runs_without_the_key_are_left_out_by_name(tmp_path: Path) -> None:
    a, b = make_seeds(tmp_path, [{5: 2.0}, {}])
    found = compare([a, b])
    assert found.groups[0].n == 1
    assert found.remarks[0] == f"{b} has no 'eval/return' yet: it has no reports; left out"
    with pytest.raises(UserError, match=f"{b} has no 'eval/return' yet"):
        compare([b])


def test_over_all_envs_with_normalised_scores(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("name,low,high\nA,0,10\nB,100,200\n")
    paths = seeds(tmp_path / "a", (5.0, 10.0)) + seeds(tmp_path / "b", (150.0, 250.0, 200.0), "B-v0")
    paths += seeds(tmp_path / "c", (1.0, 2.0), discount=0.5) + seeds(
        tmp_path / "d", (100.0, 110.0), "B-v0", discount=0.5
    )
    paths += seeds(tmp_path / "e", (1.0,), discount=0.25)
    found = compare(paths, normalise=file)
    first, second = found.groups
    assert (first.env, first.n) == ("2 environments, normalised", 2)
    assert [task.tolist() for task in first.tasks] == [[0.5, 1], [0.5, 1.5, 1]]
    assert first.mean == pytest.approx((0.75 + 1) / 2)
    assert first.median == 1 and first.iqm == pytest.approx((0.5 + 1 + 1) / 3)
    low, high = first.interval() or (0, 0)
    assert (0.5 + 0.5) / 2 <= low < first.mean < high <= (1 + 1.5) / 2
    (pair,) = found.pairs
    assert pair.means == pytest.approx(first.mean - second.mean)
    assert pair.of_medians is None
    assert pair.of_means == statistics.difference_of_means(first.tasks, second.tasks)
    assert found.remarks[0] == "ppo, discount 0.25 has no runs on B-v0; left out"


def test_the_table_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds(tmp_path / "a", (1000.0, 2000.0, 3000.0))
    seeds(tmp_path / "b", (-1.0, 0.0, 1.0), discount=0.5)
    seeds(tmp_path / "c", BAD[:1], "B-v0")
    assert main(["compare", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A-v0: eval/return at the end of each run"
    assert " ".join(lines[1].split()) == "n median IQM mean 95% interval of the mean"
    assert " ".join(lines[2].split()) == "#1 ppo, discount 0.99 3 2,000 2,000 2,000 1,000 … 3,000"
    assert " ".join(lines[3].split()) == "#2 ppo, discount 0.5 3 0 0 0 −1 … 1"
    assert {len(line) for line in lines[1:4]} == {len(lines[1])}
    assert lines[4:6] == [
        "  #1 less #2: means 2,000 (−484.1 … 4,484), medians 2,000",
        "              not significant (95% interval includes 0)",
    ]
    assert lines[6:8] == ["", "B-v0: eval/return at the end of each run"]
    assert " ".join(lines[9].split()) == "#3 ppo, discount 0.99 1 1 1 1 none"
    assert lines[-1] == "n < 5 in #1, #2, #3: intervals are rough, that of a mean too narrow"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds(tmp_path / "a", (1.0, 2.0))
    seeds(tmp_path / "b", (4.0,), discount=0.5)
    assert main(["compare", str(tmp_path), "--json"]) == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    found = json.loads(output)
    assert found["key"] == "eval/return"
    assert found["groups"][0] == {
        "env": "A-v0",
        "label": "ppo, discount 0.99",
        "n": 2,
        "scores": [1, 2],
        "median": 1.5,
        "iqm": 1.5,
        "mean": 1.5,
        "mean_interval": [1, 2],
    }
    assert found["groups"][1]["mean_interval"] is None
    assert found["differences"] == [
        {
            "first": 0,
            "second": 1,
            "difference_of_means": -2.5,
            "means_interval": None,
            "significant": None,
            "difference_of_medians": -2.5,
            "medians_interval": None,
        }
    ]
    assert len(found["remarks"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "RUN is missing; see 'pronghorn compare --help'"),
        ("RUNS --key loss", "RUNS/seed0 has no 'loss' yet; known: eval/return"),
        ("RUNS --keys loss", "unknown option --keys; did you mean --key?"),
        ("RUNS/none", "RUNS/none is not a run, and holds none: there is no config.json with a metrics.jsonl"),
    ],
)
def test_mistakes_are_one_line(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds(tmp_path, (1.0,))
    assert main(["compare", *arguments.replace("RUNS", str(tmp_path)).split()]) == 2
    assert capsys.readouterr().err.replace(str(tmp_path), "RUNS") == f"pronghorn: {message}\n"
