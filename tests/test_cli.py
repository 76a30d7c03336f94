"""The command line as its user meets it: help, errors of one line, exit codes and options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import pronghorn
from pronghorn import cli
from pronghorn.__main__ import main
from pronghorn.config import ImpalaConfig, RunConfig, option_names, override
from pronghorn.presets.resolve import resolve
from pronghorn.types import UserError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of the API, which is replaced; each ends with the thread budget at its time."""
    seen: list[tuple[Any, ...]] = []

    def record(name: str, answer: Any) -> Any:
        def call(*arguments: Any) -> Any:
            seen.append((name, *arguments, os.environ.get("OMP_NUM_THREADS")))
            return answer

        return call

    result = types.SimpleNamespace(run=Path("r"), exit_code=130, summary="stopped at step 5")
    evaluation = {
        "return_mean": 12.5,
        "return_std": 1.0,
        "return_quartiles": (11.0, 12.0, 13.0),
        "length_mean": 200.0,
        "episodes": 4,
        "capped": 0,
    }
    api = types.ModuleType("pronghorn.api")
    api.__dict__.update(
        train=record("train", result), resume=record("resume", result), evaluate=record("evaluate", evaluation)
    )
    monkeypatch.setitem(sys.modules, "pronghorn.api", api)
    monkeypatch.setattr(pronghorn, "api", api, raising=False)
    for name in THREADS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return seen


def python(code: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in without}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["list"], ["train", "--help"], ["train", "X", "-h"]])
def test_help_loads_no_torch_and_no_gymnasium(arguments: list[str]) -> None:
    done = python(
        f"""
import sys
from pronghorn.__main__ import main
try:
    code = main({arguments})
except SystemExit as stop:
    code = stop.code
print(sorted({{"torch", "gymnasium", "mujoco", "matplotlib"}} & sys.modules.keys()), code)
"""
    )
    assert done.stdout.splitlines()[-1] == "[] 0", done.stderr


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["-h"]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in cli.COMMANDS)


def test_train_help_shows_every_option_and_the_presets_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "HalfCheetah-v5", "--algorithm", "batchppo", "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in option_names(RunConfig(env="e")):
        flag = {"imports": "import"}.get(name, name)
        if name not in ("env", "env_args"):
            assert f"--{flag.replace('_', '-')}" in text
    assert "(default: 200 100)" in text and "(default: batchppo-halfcheetah)" in text


def test_train_help_shows_the_options_of_the_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "ALE/Pong-v5", "--algorithm", "impala", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in option_names(ImpalaConfig()):
        assert f"--{name.replace('_', '-')}" in text
    assert "--clip-ratio" not in text and "(default: impala-atari)" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pronghorn 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian X", "unknown command 'trian'; did you mean train?"),
        ("train", "train needs an environment: pronghorn train ENV; 'pronghorn list' shows some"),
        ("train X --learning-rat 3", "unknown option --learning-rat; did you mean --learning-rate?"),
        ("train X --learning-rat=3", "unknown option --learning-rat; did you mean --learning-rate?"),
        ("train X --zzzzzzzz", "unknown option --zzzzzzzz; see 'pronghorn train --help'"),
        ("train X Y", "unexpected argument 'Y'; see 'pronghorn train --help'"),
        ("train X --algorithm pppo", "unknown algorithm 'pppo'; did you mean ppo?"),
        ("train X --preset ppo-cartpol", "unknown preset 'ppo-cartpol'; did you mean ppo-cartpole?"),
        (
            "train X --preset ppo-mujoco --algorithm batchppo",
            "preset ppo-mujoco belongs to ppo, not to --algorithm batchppo",
        ),
        ("train X --rho-bar 2", "--rho-bar is an option of --algorithm impala or a2c; see 'pronghorn train --help'"),
        (
            "train X --algorithm a2c --clip-ratio=2",
            "--clip-ratio is an option of --algorithm ppo or batchppo; see 'pronghorn train --help'",
        ),
        ("train X --algorithm impala --c-bar 0", "--c-bar must be positive, not 0.0"),
        ("train X --layout pol", "--layout: unknown value 'pol'; did you mean pool?"),
        ("train X --compile maybe", "--compile: unknown value 'maybe'; known: false, true"),
        (
            "train X --mix-bootstrap maybe --algorithm impala",
            "--mix-bootstrap: unknown value 'maybe'; known: false, true",
        ),
        ("train X --quiet none", "--quiet: unknown value 'none'; known: false, true"),
        ("train X --no-quiet true", "unexpected argument 'true'; see 'pronghorn train --help'"),
        ("train X --steps abc", "--steps: 'abc' is not a number"),
        ("train X --steps 2.5", "--steps: '2.5' is not a whole number"),
        ("train X --steps inf", "--steps: 'inf' is not a whole number"),
        ("train X --workers many", "--workers: 'many' is not a number"),
        ("train X --steps -5", "--steps must be positive, not -5"),
        ("train X --env-arg speed", "--env-arg must be KEY=VALUE, not 'speed'"),
        ("train X --device", "Missing value for argument '--device'. Expected 1 values"),
        ("resume", "RUN is missing; see 'pronghorn resume --help'"),
        ("eval R --episode 5", "unknown option --episode; did you mean --episodes?"),
        ("eval R --episodes 0", "--episodes must be positive, not 0"),
        ("doctor", "ENV is missing; see 'pronghorn doctor --help'"),
        ("doctor X --seconds 0", "--seconds must be positive, not 0"),
        ("doctor X --env-timeout 0", "--env-timeout must be positive, not 0.0"),
        ("export", "RUN is missing; see 'pronghorn export --help'"),
        ("export R --sampel", "unknown option --sampel; did you mean --sample?"),
        ("plot", "RUN is missing; see 'pronghorn plot --help'"),
        ("compare", "RUN is missing; see 'pronghorn compare --help'"),
        ("plot R --out curves.gif", "--out must end in .png, .svg or .pdf, not 'curves.gif'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: str, message: str, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"pronghorn: {message}\n"
    assert calls == []


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_mistakes_are_one_line_in_every_terminal(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pronghorn", "train", "X", "--workers", "many"],
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": encoding, "COLUMNS": "40"},
    )
    assert done.returncode == 2
    assert done.stderr == b"pronghorn: --workers: 'many' is not a number\n"


def test_a_user_error_of_the_api_is_one_line(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: Any) -> None:
        raise UserError("run directory r exists;\n choose another")

    monkeypatch.setattr(sys.modules["pronghorn.api"], "train", refuse)
    assert main(["train", "CartPole-v1"]) == 2
    assert capsys.readouterr().err == "pronghorn: run directory r exists; choose another\n"


def test_ctrl_c_is_quiet(calls: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["pronghorn.api"], "evaluate", interrupt)
    assert main(["eval", "R"]) == 130
    assert capsys.readouterr() == ("", "")


def test_other_errors_keep_their_traceback() -> None:
    done = python(
        """
import sys, types, pronghorn
def train(config, quiet): raise RuntimeError("worker 3 died")
pronghorn.api = sys.modules["pronghorn.api"] = types.SimpleNamespace(train=train)
from pronghorn.__main__ import main
sys.exit(main(["train", "CartPole-v1"]))
"""
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "worker 3 died" in done.stderr


def test_train_passes_preset_options_and_threads(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "train --algorithm batchppo HalfCheetah-v5 --seed 4 --threads 3 --learning-rate 1e-3 --quiet"
    assert main(arguments.split()) == 130
    expected = override(
        resolve("HalfCheetah-v5", "batchppo")[1],
        seed=4,
        threads=3,
        learning_rate=1e-3,
        run="runs/HalfCheetah-v5-batchppo-seed4",
    )
    assert calls == [("train", expected, True, "1")]
    assert capsys.readouterr().out.splitlines()[-1] == "stopped at step 5"


def test_train_options_of_every_kind(calls: list[Any]) -> None:
    arguments = (
        "train CartPole-v1 --preset batchppo-cartpole --run my/run --steps 5e5 --layers 7 8 9 --compile True "
        "--clip-ratio 0.3 --kl-penalty None --workers none --no-normalise-observations --num_envs=2 "
        "--env-arg render_mode=human --env-arg size=[1,2] --env-arg easy=true"
    )
    main(arguments.split())
    ((_, config, quiet, threads),) = calls
    assert config == override(
        resolve("CartPole-v1", preset="batchppo-cartpole")[1],
        run="my/run",
        steps=500_000,
        layers=(7, 8, 9),
        compile=True,
        clip_ratio=0.3,
        kl_penalty=None,
        normalise_observations=False,
        num_envs=2,
        env_args={"render_mode": "human", "size": [1, 2], "easy": True},
    )
    assert (quiet, threads) == (False, "1")


def test_the_algorithm_decides_what_the_options_are(calls: list[Any]) -> None:
    # Were --trace-lambda not known, 0.9 would be taken for ENV.
    options = ["--trace-lambda", "0.9", "--reward-clip", "unit", "--rho-bar", "none"]
    main(["train", *options, "CartPole-v1", "--algorithm", "impala"])
    main(["train", "--preset", "a2c-cartpole", "--trace-lambda", "0.9", "CartPole-v1"])
    expected = [
        override(resolve("CartPole-v1", "impala")[1], trace_lambda=0.9, reward_clip="unit", rho_bar=None),
        override(resolve("CartPole-v1", "a2c")[1], trace_lambda=0.9),
    ]
    names = "runs/CartPole-v1-impala-seed0", "runs/CartPole-v1-a2c-seed0"
    found = [call[1] for call in calls]
    assert found == [override(config, run=run) for config, run in zip(expected, names, strict=True)]


def test_env_args_add_to_those_of_the_preset(calls: list[Any]) -> None:
    main(["train", "ALE/Pong-v5", "--algorithm", "impala", "--env-arg", "frame_stack=2"])
    main(["train", "ALE/Pong-v5", "--algorithm", "impala", "--env-arg", "life_loss=false"])
    pronghorn.train("ALE/Pong-v5", "impala", env_args={"frame_stack": 3})
    pronghorn.train("ALE/Pong-v5", "impala")
    assert [call[1].env_args for call in calls] == [
        {"life_loss": True, "frame_stack": 2},
        {"life_loss": False},
        {"life_loss": True, "frame_stack": 3},
        {"life_loss": True},
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("500k", 500_000), ("5e5", 500_000), ("1.5M", 1_500_000), ("12", 12), ("12G", None), ("k", None)],
)
def test_steps_may_be_short(text: str, value: int | None, calls: list[Any]) -> None:
    if value is None:
        assert main(["train", "X", "--steps", text]) == 2
    else:
        main(["train", "X", "--steps", text])
        assert calls[0][1].steps == value


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("none", None), ("None", None)])
def test_compile_is_one_of_three(text: str, value: bool | None, calls: list[Any]) -> None:
    main(["train", "X", "--compile", text])
    assert calls[0][1].compile is value


@pytest.mark.parametrize("name", ["mix_bootstrap", "normalise_observations", "compile"])  # by default no, yes, neither
@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--{}", True),
        ("--no-{}", False),
        ("--{} true", True),
        ("--{} False", False),
        ("--{}=true", True),
        ("--{}=false", False),
    ],
)
def test_what_is_true_or_false(name: str, words: str, value: bool, calls: list[Any]) -> None:
    for spelling in (name, name.replace("_", "-")):
        given = words.format(spelling).split()
        main(["train", *given, "CartPole-v1", "--algorithm", "impala"])
        main(["train", "CartPole-v1", "--algorithm", "impala", *given])
    expected = override(resolve("CartPole-v1", "impala")[1], run="runs/CartPole-v1-impala-seed0", **{name: value})
    assert [call[1] for call in calls] == [expected] * 4


def test_flags_of_a_command_may_have_a_value(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("--json R", "R --json", "R --json true", "--sample false --json R", "R --sample --no-json"):
        main(["eval", *words.split()])
    assert [call[3] for call in calls] == [False] * 4 + [True]
    assert [line.startswith("{") for line in capsys.readouterr().out.splitlines()] == [True] * 4 + [False]


def test_threads_of_the_user_stay(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    main(["train", "X", "--threads", "2"])
    assert calls[0][-1] == "7"
    assert os.environ["MKL_NUM_THREADS"] == "1"
    assert [os.environ[name] for name in THREADS[2:]] == ["PASSIVE", "0", "0"]


def test_the_budget_is_set_before_numpy_loads() -> None:
    done = python(
        """
import os, sys
class Watch:
    def find_spec(self, name, *rest):
        if name == "numpy":
            print(os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("OMP_NUM_THREADS"))
sys.meta_path.insert(0, Watch())
from pronghorn.__main__ import main
main(["list"])
""",
        without=("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"),
    )
    assert done.stdout.splitlines()[0] == "1 1", done.stderr


def test_resume(calls: list[Any], tmp_path: Path) -> None:
    assert main(["resume", str(tmp_path), "--steps", "2M"]) == 130
    assert calls == [("resume", tmp_path, 2_000_000, False, "1")]


def test_eval_prints_a_line_or_json(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "R", "--episodes", "4"]) == 0
    line = "return 12.50 ± 1.00 over 4 episodes (quartiles 11.00 … 12.00 … 13.00), length 200.0\n"
    assert capsys.readouterr().out == line
    assert main(["eval", "R", "--sample", "--seed", "9", "--json"]) == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    assert json.loads(output)["return_quartiles"] == [11.0, 12.0, 13.0]
    assert calls == [("evaluate", Path("R"), 4, False, None, "1"), ("evaluate", Path("R"), 20, True, 9, "1")]


def test_evaluation_tells_of_episodes_cut_short() -> None:
    assert cli.describe({"episodes": 0, "capped": 3}) == "no episode ended, 3 cut short"
    result = {"return_mean": 1, "return_std": 0, "return_quartiles": [1, 1, 1], "length_mean": 2}
    assert cli.describe(result | {"episodes": 4, "capped": 2}).endswith(
        "over 4 episodes (quartiles 1.00 … 1.00 … 1.00), length 2.0, 2 cut short"
    )


def test_list_tells_how_to_get_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "FAMILIES", (("A", "json", "pip install a", "A-v0"), ("B", "no_b", "pip install b", "B")))
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["A", "A-v0", "(installed)"],
        ["B", "B", "(pip", "install", "b)"],
    ]
    assert any("ppo-cartpole" in line for line in lines)
