"""The configuration: its options, their round trip through JSON, overrides and what is refused."""

from __future__ import annotations

import ast
import dataclasses
import json
import typing
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pronghorn
from pronghorn import config
from pronghorn.config import (
    LOSSES,
    ImpalaConfig,
    NetworkConfig,
    PPOConfig,
    RunConfig,
    VecConfig,
    from_json,
    override,
    to_json,
    validate,
)
from pronghorn.types import UserError

OPTIONS = [
    "env",
    "env_args",
    "frame_stack",
    "imports",
    "algorithm",
    "runner",
    "actors",
    "batch_size",
    "max_policy_lag",
    "force_lag",
    "inference",
    "inference_minimum",
    "inference_maximum",
    "inference_timeout",
    "preset",
    "steps",
    "seed",
    "run",
    "device",
    "precision",
    "threads",
    "compile",
    "evaluate_every",
    "evaluation_episodes",
    "checkpoint_every",
    "keep_checkpoints",
    "sinks",
    "callbacks",
    "num_envs",
    "groups",
    "ready_envs",
    "layout",
    "workers",
    "env_timeout",
    "env_restarts",
    "env_errors",
    "layers",
    "activation",
    "mean_activation",
    "initial_std",
    "std_parametrisation",
    "init",
    "torso",
    "core",
    "core_size",
    "last_action_and_reward",
    "image_encoder",
    "normalise_observations",
    "normalise_images",
    "observation_clip",
    "unroll_length",
    "episodes_per_update",
    "epochs",
    "minibatches",
    "discount",
    "gae_lambda",
    "recompute_advantages",
    "normalise_advantages",
    "clip_ratio",
    "kl_penalty",
    "kl_target",
    "kl_cutoff_factor",
    "kl_cutoff_coefficient",
    "value_cost",
    "entropy_cost",
    "entropy_schedule",
    "reward_scaling",
    "reward_clip",
    "optimiser_name",
    "learning_rate",
    "schedule",
    "epsilon",
    "max_gradient_norm",
]
IMPALA_OPTIONS = [
    "unroll_length",
    "discount",
    "corrections",
    "rho_bar",
    "c_bar",
    "pg_rho_bar",
    "trace_lambda",
    "mix_bootstrap",
    "reduction",
    "value_cost",
    "entropy_cost",
    "entropy_schedule",
    "reward_scaling",
    "reward_clip",
    "replay_share",
    "replay_capacity",
    "replay_burn_in",
]
IMPALA = RunConfig("e", algorithm="impala", loss=ImpalaConfig())


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of an option's type."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: values(inner) for name, inner in hints.items()})
    if typing.get_origin(hint) is Literal:
        return st.sampled_from(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0])).map(tuple)
    if typing.get_origin(hint) is dict:
        plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
        return st.dictionaries(st.text(), st.recursive(plain, st.lists, max_leaves=4), max_size=3)
    if hint is float:
        return st.floats(allow_nan=False)
    if len(config.alternatives(hint)) > 1:
        return st.one_of(*map(values, config.alternatives(hint)))
    return st.from_type(hint)


def test_options_are_these() -> None:
    assert config.option_names(RunConfig(env="e")) == OPTIONS
    assert config.option_names(ImpalaConfig()) == IMPALA_OPTIONS


@pytest.mark.parametrize("base", [RunConfig(env="e"), IMPALA], ids=["ppo", "impala"])
def test_no_option_name_is_used_twice(base: RunConfig) -> None:
    names = config.option_names(base)
    assert len(set(names)) == len(names)


def test_every_option_has_a_reader() -> None:
    read: set[str] = set()
    for path in Path(pronghorn.__file__).parent.rglob("*.py"):
        parts = [part for part in ast.parse(path.read_text()).body if getattr(part, "name", "") != "validate"]
        nodes = [node for part in parts for node in ast.walk(part)]
        read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert [name for name in OPTIONS + IMPALA_OPTIONS if name not in read] == []


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # it is about values, on any machine
@given(values(RunConfig), st.data())
def test_json_round_trip(original: RunConfig, data: st.DataObject) -> None:
    algorithm = data.draw(st.sampled_from(sorted(LOSSES)))
    original = dataclasses.replace(original, algorithm=algorithm, loss=data.draw(values(LOSSES[algorithm])))
    assert from_json(RunConfig, json.loads(json.dumps(to_json(original)))) == original


def test_missing_keys_are_defaults() -> None:
    assert from_json(RunConfig, {"env": "e", "loss": {"epochs": 3}}) == RunConfig("e", loss=PPOConfig(epochs=3))
    assert from_json(RunConfig, {"env": "e", "algorithm": "impala"}) == IMPALA
    found = from_json(RunConfig, {"env": "e", "algorithm": "a2c", "loss": {"corrections": "none"}})
    assert found == RunConfig("e", algorithm="a2c", loss=ImpalaConfig(corrections="none"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"env": "e", "step": 1}, "unknown option 'step' in RunConfig; did you mean steps"),
        ({"env": "e", "vec": {"num_env": 1}}, "unknown option 'num_env' in VecConfig; did you mean num_envs"),
        ({"steps": 1}, "option 'env' is missing in RunConfig"),
        ({"env": "e", "algorithm": "impala", "loss": {"epochs": 3}}, "unknown option 'epochs' in ImpalaConfig"),
        ({"env": "e", "loss": {"rho_bar": 3}}, "unknown option 'rho_bar' in PPOConfig"),
        ({"env": "e", "vec": 3}, "VecConfig must be an object with options, not 3"),
    ],
)
def test_from_json_refuses(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_json(RunConfig, data)


def test_override_finds_nested_options() -> None:
    base = RunConfig(env="e")
    changed = override(base, steps=7, num_envs=3, layers=[5, 6], clip_ratio=None)
    assert (changed.steps, changed.vec.num_envs, changed.network.layers) == (7, 3, (5, 6))
    assert changed.loss.clip_ratio is None
    assert changed == RunConfig(
        "e", steps=7, vec=VecConfig(num_envs=3), network=NetworkConfig(layers=(5, 6)), loss=PPOConfig(clip_ratio=None)
    )
    assert base == RunConfig(env="e")


def test_override_refuses_unknown_options() -> None:
    with pytest.raises(UserError, match="unknown option 'learning_rat'; did you mean learning_rate"):
        override(RunConfig(env="e"), steps=7, learning_rat=1.0)


@pytest.mark.parametrize(
    ("base", "name"),
    [*((RunConfig(env="e"), name) for name in OPTIONS), *((IMPALA, name) for name in IMPALA_OPTIONS)],
)
def test_override_reaches_every_option(base: RunConfig, name: str) -> None:
    marker: Any = object()
    changed = override(base, **{name: marker})
    parts = [changed, changed.vec, changed.network, changed.loss, changed.optimiser]
    assert [getattr(part, name) for part in parts if hasattr(part, name)] == [marker]


def test_validate_accepts_the_defaults() -> None:
    validate(RunConfig(env="e"))
    validate(IMPALA)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frame_stack": 0}, "--frame-stack must be positive, not 0"),
        ({"frame_stack": 4, "layout": "native"}, "--frame-stack 4 is for envs that are stepped one by one"),
        ({"steps": 0}, "--steps must be positive, not 0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be positive, not nan"),
        ({"layers": (4, 0)}, "--layers must be positive, not 0"),
        ({"torso": (0,)}, "--torso must be positive, not 0"),
        ({"core_size": 0}, "--core-size must be positive, not 0"),
        ({"workers": -1}, "--workers must be positive, not -1"),
        ({"max_gradient_norm": 0.0}, "--max-gradient-norm must be positive, not 0.0"),
        ({"seed": -1}, "--seed must not be negative, not -1"),
        ({"value_cost": -0.5}, "--value-cost must not be negative, not -0.5"),
        ({"discount": 1.5}, "--discount must be between 0 and 1, not 1.5"),
        ({"gae_lambda": -0.1}, "--gae-lambda must be between 0 and 1, not -0.1"),
        ({"groups": 17}, "--groups 17 is more than --num-envs 16"),
        ({"clip_ratio": None}, "--clip-ratio and --kl-penalty are both off"),
        ({"num_envs": 2, "unroll_length": 3, "minibatches": 7}, "--minibatches 7 is more than the 6 rows"),
        ({"layout": "auot"}, "--layout must be one of auto, serial, pool, native, not 'auot'"),
        ({"batch_size": 8}, "--batch-size belongs to --runner async"),
        ({"runner": "async", "layout": "pool"}, "--layout pool, --groups and --ready-envs belong to --runner sync"),
        ({"runner": "async", "actors": 17}, "--actors 17 is more than --num-envs 16"),
        ({"runner": "async", "max_policy_lag": -1}, "--max-policy-lag must not be negative, not -1"),
        ({"force_lag": -1}, "--force-lag must not be negative, not -1"),
        (
            {"runner": "async", "max_policy_lag": 3, "batch_size": 5, "num_envs": 16},
            "--max-policy-lag 3 is too small: 16 unrolls are under way at once and a batch takes 5, so they grow 4 "
            "updates old; use --max-policy-lag 4 or --batch-size 6",
        ),
        (
            {"runner": "async", "max_policy_lag": 0, "batch_size": 8},
            "--max-policy-lag 0 learns from one unroll of each",
        ),
        ({"runner": "async", "episodes_per_update": 8}, "--runner async learns from unrolls"),
        ({"inference": "learner"}, "--inference learner belongs to --runner async"),
        ({"runner": "async", "inference": "learner", "max_policy_lag": 0}, "--inference learner may change weights"),
        ({"runner": "async", "inference": "learner", "inference_minimum": 17}, "--inference-minimum 17 is more than"),
        (
            {"runner": "async", "inference": "learner", "inference_minimum": 9, "inference_maximum": 8},
            "--inference-minimum 9 is more than --inference-maximum 8",
        ),
        ({"inference_minimum": 0}, "--inference-minimum must be positive, not 0"),
        ({"inference_maximum": 0}, "--inference-maximum must be positive, not 0"),
        ({"inference_timeout": 0.0}, "--inference-timeout must be positive, not 0.0"),
        ({"env_errors": "ignore"}, "--env-errors must be one of restart, fail, not 'ignore'"),
        ({"env_restarts": -1}, "--env-restarts must not be negative, not -1"),
        ({"ready_envs": 17}, "--ready-envs 17 is more than --num-envs 16"),
        ({"ready_envs": 2, "groups": 2}, "--ready-envs takes envs as they come, --groups 2 in turn"),
        ({"algorithm": "pppo"}, "--algorithm must be one of ppo, batchppo, impala, a2c, not 'pppo'"),
        ({"image_encoder": "wide"}, "--image-encoder must be one of nature, shallow, deep, not 'wide'"),
        ({"sinks": ("csv", "tensorbord")}, "unknown sink 'tensorbord' in --sinks; did you mean tensorboard"),
        ({"sinks": "csv"}, "--sinks must be .*, not 'csv'"),
        ({"callbacks": ("solved",)}, "unknown callback 'solved' in --callbacks; register it in a file and name that"),
        ({"imports": "mine.py"}, "--imports must be .*, not 'mine.py'"),
        ({"steps": 1.5}, "--steps must be int, not 1.5"),
        ({"epochs": True}, "--epochs must be int, not True"),
        ({"layers": ("4",)}, "--layers must be .*, not"),
        ({"compile": "yes"}, "--compile must be .*, not 'yes'"),
    ],
)
def test_validate_names_the_option(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(override(RunConfig(env="e"), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho_bar": 0.0}, "--rho-bar must be positive, not 0.0"),
        ({"c_bar": -1.0}, "--c-bar must be positive, not -1.0"),
        ({"pg_rho_bar": 0.0}, "--pg-rho-bar must be positive, not 0.0"),
        ({"trace_lambda": 1.1}, "--trace-lambda must be between 0 and 1, not 1.1"),
        ({"unroll_length": 0}, "--unroll-length must be positive, not 0"),
        ({"entropy_cost": -1.0}, "--entropy-cost must not be negative, not -1.0"),
        ({"corrections": "all"}, "--corrections must be one of vtrace, one-step, epsilon, none, not 'all'"),
        ({"reward_clip": 1.0}, "--reward-clip must be one of none, unit, soft_asymmetric, not 1.0"),
        ({"replay_share": 1.0}, "--replay-share must be at least 0 and less than 1, not 1.0"),
        ({"replay_share": -0.1}, "--replay-share must be at least 0 and less than 1, not -0.1"),
        ({"replay_share": 0.01}, "--replay-share 0.01 is not one unroll beside 16 fresh ones"),
        ({"replay_capacity": 0}, "--replay-capacity must be positive, not 0"),
        ({"replay_share": 0.75, "replay_capacity": 47}, "--replay-capacity 47 is less than .* 48 and 16 unrolls"),
        ({"replay_burn_in": -1}, "--replay-burn-in must not be negative, not -1"),
        ({"replay_burn_in": 4}, "--replay-burn-in 4 is for a recurrent core; use one with --core"),
        ({"replay_burn_in": 20, "core": "lstm"}, "--replay-burn-in 20 leaves nothing of --unroll-length 20"),
        ({"algorithm": "ppo"}, "--algorithm ppo learns by the options of PPOConfig, not ImpalaConfig"),
    ],
)
def test_validate_names_the_option_of_impala(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(override(IMPALA, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 2},
        {"learning_rate": 1},
        {"compile": False},
        {"layers": ()},
        {"clip_ratio": None, "kl_penalty": 1.0},
        {"sinks": ()},
        {"sinks": ("tensorboard", "csv", "wandb")},
    ],
)
def test_validate_accepts(changes: dict[str, Any]) -> None:
    validate(override(RunConfig(env="e"), **changes))


@pytest.mark.parametrize(
    ("env", "run"),
    [
        ("HalfCheetah-v5", "runs/HalfCheetah-v5-ppo-seed3"),
        ("ALE/Pong-v5", "runs/ALE-Pong-v5-ppo-seed3"),
        ("./my/env.py:Maze", "runs/my-env.py-Maze-ppo-seed3"),
        ("../env.py:Maze", "runs/env.py-Maze-ppo-seed3"),
    ],
)
def test_default_run_is_one_directory_deep(env: str, run: str) -> None:
    assert config.default_run(RunConfig(env=env, seed=3)) == run
