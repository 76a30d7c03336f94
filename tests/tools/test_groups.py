"""Which runs are found, which belong together, what a group is called, and what is read of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tools.made_runs import make_run, make_seeds, reports_of

from pronghorn.config import ImpalaConfig, RunConfig, override
from pronghorn.presets.resolve import resolve
from pronghorn.tools import groups
from pronghorn.types import UserError

REPORTS = reports_of({1: 2.0})


def collected(tmp_path: Path, configs: list[RunConfig], timed: bool = False) -> list[groups.Group]:
    paths = [make_run(tmp_path / f"{index}", config, REPORTS) for index, config in enumerate(configs)]
    return groups.collect(paths, timed)


def test_runs_are_found_once_and_below_a_directory(tmp_path: Path) -> None:
    a, b, c = (make_run(tmp_path / name, RunConfig(env="e"), REPORTS) for name in ("x/a", "x/deep/b", "c"))
    (tmp_path / "x" / "other").mkdir()
    (tmp_path / "x" / "other" / "config.json").write_text("{}")
    make_run(a / "checkpoints" / "within", RunConfig(env="e"), REPORTS)
    assert groups.find([c, tmp_path / "x", a, a / ".." / "a"]) == [c, a, b]


@pytest.mark.parametrize("name", ["empty", "missing", "a.log"])
def test_what_holds_no_run_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.log").touch()
    with pytest.raises(UserError, match=f"{tmp_path / name} is not a run, and holds none"):
        groups.find([tmp_path / name])


def test_files_beside_runs_are_passed_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", RunConfig(env="e"), REPORTS)
    (tmp_path / "a.log").touch()
    assert groups.find([run, tmp_path / "a.log"]) == [run]


def test_runs_that_differ_in_what_does_not_matter_are_one_group(tmp_path: Path) -> None:
    base = RunConfig(env="e")
    same = {"seed": 1, "run": "elsewhere", "workers": 3, "compile": True, "device": "cuda", "evaluate_every": 7}
    configs = [base, override(base, **same), override(base, learning_rate=0.5), override(base, env="f")]
    found = collected(tmp_path, configs)
    assert [(group.env, [run.path.name for run in group.runs]) for group in found] == [
        ("e", ["0", "1"]),
        ("e", ["2"]),
        ("f", ["3"]),
    ]
    usual = "ppo, learning rate 0.0003"
    assert [group.label for group in found] == [usual, "ppo, learning rate 0.5", usual]


def test_over_wall_clock_what_decides_the_speed_matters(tmp_path: Path) -> None:
    base = RunConfig(env="e")
    found = collected(tmp_path, [base, override(base, layout="pool", seed=1)], timed=True)
    assert [group.label for group in found] == ["ppo, layout auto", "ppo, layout pool"]


def test_arguments_of_the_env_tell_groups_apart(tmp_path: Path) -> None:
    base = RunConfig(env="e")
    found = collected(tmp_path, [base, override(base, env_args={"life_loss": True})])
    assert [group.label for group in found] == ["ppo, life loss none", "ppo, life loss true"]


def test_a_label_names_the_preset_and_what_was_changed_from_it(tmp_path: Path) -> None:
    _, generic = resolve("CartPole-v1", preset="ppo-generic")
    _, special = resolve("CartPole-v1", preset="ppo-cartpole")
    assert special.loss != generic.loss or special.vec != generic.vec  # else nothing is shown to be left out
    found = collected(tmp_path, [generic, special, override(special, discount=0.5)])
    assert [group.label for group in found] == [
        f"ppo, preset ppo-generic, discount {generic.loss.discount:g}",
        f"ppo, preset ppo-cartpole, discount {special.loss.discount:g}",
        "ppo, preset ppo-cartpole, discount 0.5",
    ]


def test_of_many_options_a_label_names_those_that_tell_groups_apart(tmp_path: Path) -> None:
    """Six differ, four of them together; two are needed."""
    many = {"learning_rate": 0.5, "epochs": 3, "minibatches": 2, "num_envs": 8}
    base = RunConfig(env="e")
    configs = [override(base, **changes, discount=g) for changes in ({}, many) for g in (0.5, 0.75)]
    configs[0] = override(configs[0], gae_lambda=0.25)
    found = collected(tmp_path, configs)
    assert [group.label for group in found] == [
        f"ppo, num envs {envs}, discount {discount} … 4 more" for envs in (16, 8) for discount in (0.5, 0.75)
    ]
    few = collected(tmp_path / "few", [base, override(base, **many)])
    assert few[1].label == "ppo, num envs 8, epochs 3, minibatches 2, learning rate 0.5"


def test_other_algorithms_are_told_by_their_name_alone(tmp_path: Path) -> None:
    impala = RunConfig(env="e", algorithm="impala", loss=ImpalaConfig())
    assert [group.label for group in collected(tmp_path, [RunConfig(env="e"), impala])] == ["ppo", "impala"]


def test_options_that_an_older_version_did_not_have_are_defaults(tmp_path: Path) -> None:
    new, old = make_seeds(tmp_path, [{1: 2.0}, {1: 2.0}])
    content = json.loads((old / "config.json").read_text())
    for part, name in (("network", "torso"), ("vec", "env_errors"), ("loss", "entropy_schedule")):
        del content["config"][part][name]
    del content["config"]["force_lag"]
    (old / "config.json").write_text(json.dumps(content))
    assert len(groups.collect([new, old])) == 1


def test_an_algorithm_of_ones_own_is_grouped_too(tmp_path: Path) -> None:
    paths = make_seeds(tmp_path, [{1: 2.0}] * 3)
    for index, path in enumerate(paths):
        content = json.loads((path / "config.json").read_text())
        content["config"] |= {"algorithm": "mine", "loss": {"gain": index // 2}}
        (path / "config.json").write_text(json.dumps(content))
    assert [(group.label, len(group.runs)) for group in groups.collect(paths)] == [
        ("mine, gain 0", 2),
        ("mine, gain 1", 1),
    ]


def test_metrics_of_a_resumed_and_cut_run(tmp_path: Path) -> None:
    reports = reports_of({10: 10.5, 20: 20.5, 30: 30.5})
    again = [*reports_of({20: -1.0}), {"step": 25, "frames": 100, "loss/value": 3.0}, *reports_of({40: -2.0})]
    run = make_run(tmp_path / "r", RunConfig(env="e"), reports + again, '{"step": 50, "eval/re')
    metrics = groups.read_metrics(run, lambda name: name in ("eval/return", "step"), "frames")
    assert {name: [part.tolist() for part in series] for name, series in metrics.items()} == {
        "eval/return": [[40, 80, 160], [10.5, -1.0, -2.0]],
        "step": [[40, 80, 100, 160], [10, 20, 25, 40]],
    }


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    lines = '{"step": 1, "a": NaN}\n{"step": 2, "a": "x"}\n{"step": 3, "a": true}\n{"step": 4, "a": 5}\n'
    run = make_run(tmp_path / "r", RunConfig(env="e"), [], lines)
    assert [part.tolist() for part in groups.read_metrics(run, "a".__eq__)["a"]] == [[4], [5]]


@pytest.mark.parametrize("line", ["{", "[]", '{"a": 1}', '{"step": "x"}'])
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", RunConfig(env="e"), [], '{"step": 1}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(UserError, match=f"line 2 of {run}/metrics.jsonl is not a report"):
        groups.read_metrics(run, lambda name: True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl cannot be read (No such file or directory)"),
        (lambda run: (run / "config.json").unlink(), "config.json cannot be read (No such file or directory)"),
        (lambda run: (run / "config.json").write_text("{"), "config.json cannot be read (JSONDecodeError"),
        (lambda run: (run / "config.json").write_text("[]"), "config.json cannot be read (TypeError"),
        (
            lambda run: (run / "config.json").write_text('{"config": {}}'),
            "config.json cannot be read (KeyError: 'env')",
        ),
    ],
)
def test_what_is_no_run_is_named(damage, message, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", RunConfig(env="e"), REPORTS)
    damage(run)
    with pytest.raises(UserError) as caught:
        groups.collect([run])
        groups.read_metrics(run, lambda name: True)
    assert str(caught.value).startswith(f"{run} is not a run: {message}")


@pytest.mark.parametrize(
    ("key", "place", "end"),
    [
        ("eval/retrun", "step", "has no 'eval/retrun' yet; did you mean eval/return?"),
        ("eval/return", "hours", "has no 'eval/return' over 'hours', which its reports lack"),
    ],
)
def test_why_a_run_lacks_a_key(key: str, place: str, end: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", RunConfig(env="e"), REPORTS)
    assert groups.lacks(run, key, place) == f"{run} {end}"


def test_why_a_run_without_reports_lacks_a_key(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", RunConfig(env="e"), [])
    assert groups.lacks(run, "a") == f"{run} has no 'a' yet: it has no reports"


def test_copies_of_a_run_are_pointed_out(tmp_path: Path) -> None:
    first, _, last = make_seeds(tmp_path, [{1: 2.0}] * 3)
    for run in (first, last):
        shutil.copytree(run, tmp_path / f"copy of {run.name}")
    remarks = groups.repeated_seeds(groups.collect([tmp_path]))
    assert remarks == ["ppo on CartPole-v1 has more than one run of seed 0, 2: such runs are not independent"]


def test_scales_are_found_by_the_env_or_its_short_name(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("game,random,human\nPong,-20.7,14.6\n\nHopper-v5,0,3000\n")
    scales = groups.read_scales(file)
    assert scales == {"Pong": (-20.7, 14.6), "Hopper-v5": (0, 3000)}
    assert groups.scale_of("ALE/Pong-v5", scales) == (-20.7, 14.6)
    assert groups.scale_of("Hopper-v5", scales) == (0, 3000)
    with pytest.raises(UserError, match="no row for ALE/Pnog-v5 or Pnog; did you mean Pong"):
        groups.scale_of("ALE/Pnog-v5", scales)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\nPong,1\n", "row 2 of FILE must be NAME,LOW,HIGH, not 'Pong,1'"),
        ("Pong,1,1\n", "row 1 of FILE needs two different numbers, not 1 and 1"),
        ("Pong,1,nan\n", "row 1 of FILE needs two different numbers, not 1 and nan"),
    ],
)
def test_damaged_scales_are_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        groups.read_scales(file)
    assert str(caught.value) == message.replace("FILE", str(file))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (250_000, "250k"),
        (1_500_000, "1.5M"),
        (2e9, "2G"),
        (0.0003, "0.0003"),
        (-2000, "-2k"),
        (None, "none"),
        (True, "true"),
        ([64, 64], "[64, 64]"),
        ("pool", "pool"),
    ],
)
def test_numbers_are_short(value, text: str) -> None:
    assert groups.number(value) == text
