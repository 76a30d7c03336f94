"""What ``import pronghorn`` offers beside what the modules' own tests cover."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import rig

import pronghorn
from pronghorn import api
from pronghorn.types import UserError


def test_training_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = pronghorn.train("CartPole-v1", steps=400, quiet=True, layout="serial", evaluation_episodes=1)
    assert result.exit_code == 0 and result.run.as_posix() == "runs/CartPole-v1-ppo-seed0"
    action = pronghorn.load(result.run).act(np.zeros(4))
    assert action in (0, 1)
    with pytest.raises(UserError, match="did you mean num_envs"):
        pronghorn.train("CartPole-v1", num_env=4)


def test_an_env_as_a_run_sees_it(tmp_path):
    run = tmp_path / "run"
    counting = {"lengths": [3], "life": 2, "ending": "truncated"}
    api.train(rig.config(run=str(run), steps=60, evaluation_episodes=1, env_args=counting), quiet=True)
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
