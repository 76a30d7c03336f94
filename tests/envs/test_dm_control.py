"""The adapter of the DeepMind Control Suite against the suite itself, and its ends against a task that has them."""

import sys

import numpy as np
import pytest
from envs.one_env import OneEnv

from pronghorn import tree
from pronghorn.envs.gymnasium import env_factory, make
from pronghorn.seeding import Domain
from pronghorn.types import UserError


def one(env, **env_args):
    return OneEnv(env_factory(env, env_args), 3, Domain.TRAINING_ENV, 1)


def test_without_dm_control(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    monkeypatch.setitem(sys.modules, "dm_control.suite", None)
    with pytest.raises(UserError, match=r"dm_control/cheetah-run needs dm_control.*: pip install 'pronghorn\[dm-contr"):
        make("dm_control/cheetah-run", {})


def test_leaves_are_those_of_the_suite():
    pytest.importorskip("dm_control")
    spec = make("dm_control/humanoid-walk", {}).spec
    described = {name: leaf.describe() for name, leaf in tree.named(spec.observation).items()}
    assert described["head_height"] == "box () float64 [-inf, inf]"
    assert described["velocity"] == "box (27,) float64 [-inf, inf]"
    assert spec.action.describe() == "box (21,) float64 [-1, 1]"
    assert spec.max_episode_steps == 1000


def test_rows_are_those_of_the_suite():
    suite = pytest.importorskip("dm_control.suite")
    env = one("dm_control/cartpole-swingup")
    first = env.begin(0)
    seeds = []
    env.env._env.reset, kept = lambda *, seed: (seeds.append(seed), kept(seed=seed))[1], env.env._env.reset
    env.begin(1)
    env.begin(0)
    oracle = suite.load("cartpole", "swingup", task_kwargs={"random": seeds[1]})
    expected = oracle.reset()
    random = np.random.default_rng(0)
    for _ in range(5):
        action = random.uniform(-1, 1, 1)
        expected, row = oracle.step(action), env.step(action)
        assert row.reward == expected.reward and not (row.terminated or row.truncated)
        for name, array in expected.observation.items():
            np.testing.assert_array_equal(row.observation[name], array)
    again = env.begin(0)
    for name in first.observation:
        np.testing.assert_array_equal(first.observation[name], again.observation[name])


def test_the_time_limit_is_truncation():
    pytest.importorskip("dm_control")
    env = one("dm_control/cartpole-balance", time_limit=0.05)
    env.begin(0)
    rows = [env.step(np.zeros(1)) for _ in range(5)]
    assert [(row.terminated, row.truncated) for row in rows] == [(False, False)] * 4 + [(False, True)]


def test_a_real_end_is_terminated():
    pytest.importorskip("dm_control")
    env = one("dm_control/lqr-lqr_2_1")
    env.begin(0)
    env.env._env._env.task.get_termination = lambda physics: 0.0
    row = env.step(np.zeros(1))
    assert (row.terminated, row.truncated, row.over) == (True, False, True)


def test_no_window_is_opened_to_show_a_new_terrain():
    pytest.importorskip("dm_control")
    env = make("dm_control/quadruped-escape", {})
    physics = env._env.physics
    env.reset(seed=0)
    assert physics._contexts is None
    assert "_make_rendering_contexts" not in vars(physics)  # pictures can still be had


@pytest.mark.parametrize(
    ("env", "env_args", "message"),
    [
        ("dm_control/cheetah-rum", {}, "there is no environment .*; did you mean dm_control/cheetah-run?"),
        ("dm_control/cheetah", {}, "did you mean dm_control/cheetah-run?"),
        ("dm_control/cheetah-run", {"speed": 3}, r"with these --env-arg: unexpected keyword argument 'speed'"),
    ],
)
def test_mistakes_are_one_line(env, env_args, message):
    pytest.importorskip("dm_control")
    with pytest.raises(UserError, match=message) as caught:
        make(env, env_args)
    assert "\n" not in str(caught.value)
