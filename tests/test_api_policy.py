"""A loaded policy for several envs at once, and single envs as training sees them."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import rig

import pronghorn
from pronghorn import api, tree
from pronghorn.types import UserError


def run_of(path, env="CountingEnv", **options):
    made = rig.config(env, run=str(path / "run"), **{"steps": 60, "evaluation_episodes": 1, **options})
    api.train(made, quiet=True)
    return path / "run"


@pytest.mark.parametrize(
    "options", [{"core": "gru", "core_size": 5}, {"core": "lstm", "core_size": 5, "last_action_and_reward": True}]
)
def test_each_row_is_an_env_of_its_own(tmp_path, options):
    run = run_of(tmp_path, **options)
    many, singles = pronghorn.load(run), [pronghorn.load(run) for _ in range(3)]
    random = np.random.default_rng(0)
    for _ in range(2):
        many.reset()
        for single in singles:
            single.reset()
        for step in range(6):
            observation, reward = random.normal(size=(3, 3)), random.normal(size=3)
            first = random.random(3) < 0.3 if step else np.zeros(3, bool)
            for single, starts in zip(singles, first, strict=True):
                if starts:
                    single.reset()
            actions = many.act(observation, reward, first)
            assert actions.shape == (3,)
            expected = [single.act(o, r) for single, o, r in zip(singles, observation, reward, strict=True)]
            assert actions.tolist() == expected
            for row, single in enumerate(singles):
                for ours, theirs in zip(many._core_state, single._core_state, strict=True):
                    np.testing.assert_allclose(ours[row], theirs[0], atol=1e-6)


def test_a_core_counts_the_steps_of_each_row(tmp_path):
    policy = pronghorn.load(run_of(tmp_path, core="counting"))
    firsts = [[0, 0], [0, 1], [0, 0], [1, 0]]
    for first, count in zip(firsts, [[1, 1], [2, 1], [3, 2], [1, 3]], strict=True):
        policy.act(np.zeros((2, 3)), first=np.array(first, bool))
        assert policy._core_state.tolist() == count
    policy.act(np.zeros((2, 3)), first=True)
    assert policy._core_state.tolist() == [1, 1]
    policy.reset()
    policy.act(np.zeros((5, 3)))
    policy.act(np.zeros((5, 3)))
    assert policy._core_state.tolist() == [2] * 5


def test_samples_differ_between_rows(tmp_path):
    policy = pronghorn.load(run_of(tmp_path), sample=True)
    assert len(set(policy.act(np.zeros((50, 3))).tolist())) > 1


@pytest.mark.parametrize("env", ["rig:CameraBanditEnv", "rig:MixedEnv", "InstructionEnv", "gymnasium:Pendulum-v1"])
def test_spaces_of_every_kind_are_stacked(tmp_path, env):
    run = run_of(tmp_path, env, image_encoder="shallow")  # it takes small images
    views = [pronghorn.make_env(run) for _ in range(3)]
    observations = [view.reset(seed=seed)[0] for seed, view in enumerate(views)]
    expected = [pronghorn.load(run).act(observation) for observation in observations]
    actions = pronghorn.load(run).act(stack(observations))
    for row, (view, one) in enumerate(zip(views, expected, strict=True)):
        mine = {key: part[row] for key, part in actions.items()} if isinstance(actions, dict) else actions[row]
        assert view.action_space.contains(mine) and view.action_space.contains(one)
        for ours, theirs in zip(tree.leaves(mine), tree.leaves(one), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        view.step(mine)
        view.close()


def stack(parts):
    if isinstance(parts[0], dict):
        return {key: stack([part[key] for part in parts]) for key in parts[0]}
    return parts if isinstance(parts[0], str) else np.stack(parts)


@pytest.fixture(scope="module")
def told_its_last_step(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("policy"), last_action_and_reward=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(4),), r"observation has shape \(4,\); it must be \(3,\), or \(n, \.\.\.\)"),
        ((np.zeros((2, 2, 3)),), r"observation has shape \(2, 2, 3\)"),
        ((np.zeros((0, 3)),), r"observation has shape \(0, 3\)"),
        ((0.0,), r"observation has shape \(\)"),
        (("left",), "this is no observation of counting"),
        ((np.zeros((2, 3)), [1.0, 2.0, 3.0]), r"reward has shape \(3,\) for 2 observations"),
        ((np.zeros((2, 3)), 0.0, [True]), r"first has shape \(1,\) for 2 observations"),
    ],
)
def test_mistakes(told_its_last_step, arguments, message):
    with pytest.raises(UserError, match=message):
        pronghorn.load(told_its_last_step).act(*arguments)


def test_the_number_of_envs_stays(tmp_path):
    policy = pronghorn.load(run_of(tmp_path))
    policy.act(np.zeros(3))
    with pytest.raises(UserError, match=r"2 observations where there were 1 before; call reset\(\) in between"):
        policy.act(np.zeros((2, 3)))


def test_parts_that_are_stacked_differently(tmp_path):
    policy = pronghorn.load(run_of(tmp_path, "MaskedBanditEnv"))
    observation = pronghorn.make_env(tmp_path / "run").reset(seed=1)[0]
    with pytest.raises(UserError, match="observation/"):
        policy.act({key: part if key == "action_mask" else np.stack([part] * 2) for key, part in observation.items()})
    with pytest.raises(UserError, match=r"this is no observation of .*action_mask"):
        policy.act({key: part for key, part in observation.items() if key != "action_mask"})


def test_an_env_as_a_run_sees_it(tmp_path):
    run = run_of(tmp_path, env_args={"lengths": [3], "life": 2, "ending": "truncated"})
    env = pronghorn.make_env(run)
    assert isinstance(env, gymnasium.Env)
    observation, _ = env.reset(seed=7)
    assert observation.tolist() == [7, 0, 0] and env.observation_space.contains(observation)
    answers = [env.step(action) for action in (4, 3, 2)]
    assert [answer[0].tolist() for answer in answers] == [[7, 1, 4], [7, 2, 7], [7, 3, 9]]
    assert [answer[1:4] for answer in answers] == [(1.0, False, False), (2.0, False, False), (3.0, False, True)]
    assert [answer[4].get("life_lost", False) for answer in answers] == [False, True, False]
    with pytest.raises(UserError, match="counting has nothing to render"):
        env.render()
    other = pronghorn.make_env(run, env_args={"lengths": [1]})
    other.reset(seed=7)
    assert other.step(0)[3]


def test_an_env_by_name():
    env = pronghorn.make_env("CartPole-v1", env_args={"render_mode": "rgb_array"})
    env.reset(seed=3)
    plain = gymnasium.make("CartPole-v1")
    assert env.observation_space == plain.observation_space and env.action_space == plain.action_space
    assert env.render().shape == (400, 600, 3) and env.render_mode == "rgb_array"
    env.close()
    with pytest.raises(UserError, match="there is no environment 'CartPool-v1'; did you mean CartPole-v1"):
        pronghorn.make_env("CartPool-v1")
    with pytest.raises(UserError, match="envpool/Pong-v5 steps many environments at once"):
        pronghorn.make_env("envpool/Pong-v5")


def test_an_atari_game_as_its_preset_plays_it():
    pytest.importorskip("ale_py")
    env = pronghorn.make_env("ALE/Pong-v5", "impala", env_args={"stack": 2})
    observation, _ = env.reset(seed=1)
    assert observation.shape == (2, 84, 84) == env.observation_space.shape and env.action_space.n == 6
    env.close()


def test_everything_is_listed_and_documented():
    text = (Path(__file__).parents[1] / "docs" / "python.md").read_text() + (
        Path(__file__).parents[1] / "docs" / "own_parts.md"
    ).read_text()
    for name in pronghorn.__all__:
        assert callable(getattr(pronghorn, name)) and f"{name}(" in text, name
    public = {name for name, value in vars(pronghorn).items() if callable(value) and value.__module__ == "pronghorn"}
    assert {name for name in public if not name.startswith("_")} == set(pronghorn.__all__)
