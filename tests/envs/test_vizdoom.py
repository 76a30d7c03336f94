"""The adapter of ViZDoom against ViZDoom's own env."""

import importlib.util
import sys

import numpy as np
import pytest
from envs.one_env import OneEnv

from pronghorn import tree
from pronghorn.envs.gymnasium import env_factory, make
from pronghorn.seeding import Domain
from pronghorn.types import UserError

pytestmark = pytest.mark.usefixtures("elsewhere")
needs_vizdoom = pytest.mark.skipif(importlib.util.find_spec("vizdoom") is None, reason="ViZDoom is not installed")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the game leaves an empty folder


def one(env, **env_args):
    return OneEnv(env_factory(env, env_args), 3, Domain.TRAINING_ENV, 1)


@pytest.mark.parametrize("module", ["vizdoom", "cv2"])
def test_missing_packages(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"{module}.gymnasium_wrapper", raising=False)
    with pytest.raises(UserError, match=rf"VizdoomBasic-v1 needs {module}: pip install 'pronghorn\[vizdoom\]'"):
        make("VizdoomBasic-v1", {})


@needs_vizdoom
@pytest.mark.parametrize(
    ("env", "env_args", "message"),
    [
        ("VizdoomBasicc-v1", {}, "there is no environment 'VizdoomBasicc-v1'; did you mean VizdoomBasic-v1?"),
        ("VizdoomBasic-v1", {"screen": 60}, r"--env-arg screen must be \[height, width\] or null, not 60"),
        ("VizdoomBasic-v1", {"screen": [60, 0]}, r"--env-arg screen must be \[height, width\] or null, not \[60, 0\]"),
        ("VizdoomBasic-v1", {"frame_skip": 0}, "--env-arg frame_skip must be a positive whole number, not 0"),
    ],
)
def test_mistakes_are_one_line(env, env_args, message):
    with pytest.raises(UserError, match=message):
        make(env, env_args)


@needs_vizdoom
def test_images_are_the_means_of_the_games_pixels():
    small, whole = (one("VizdoomBasic-v1", screen=screen) for screen in ([60, 80], None))
    assert {name: leaf.shape for name, leaf in small.spec.observation.items()} == {
        "gamevariables": (1,),
        "screen": (60, 80, 3),
    }
    assert small.spec.action_repeat == 4
    rows = [(small.begin(0), whole.begin(0))] + [(small.step(2), whole.step(2)) for _ in range(3)]
    for shrunk, drawn in rows:
        means = drawn.observation["screen"].reshape(60, 4, 80, 4, 3).mean((1, 3))
        np.testing.assert_allclose(shrunk.observation["screen"], means, atol=0.51)
    assert rows[0][0].observation["screen"].std() > 1
    small.env.close()
    whole.env.close()


@needs_vizdoom
def test_the_clock_truncates_and_death_terminates():
    env = one("VizdoomBasic-v1", episode_timeout=22, episode_start_time=14)
    env.begin(0)
    rows = [env.step(0)]
    while not rows[-1].over:
        rows.append(env.step(0))
    assert (rows[-1].terminated, rows[-1].truncated) == (False, True)
    np.testing.assert_array_equal(rows[-1].observation["screen"], rows[-2].observation["screen"])
    assert env.step(0).first
    env.env._env._game = Dead()
    row = env.step(0)
    while not row.over:
        row = env.step(0)
    assert (row.terminated, row.truncated) == (True, False)
    env.env.close()


class Dead:
    def is_episode_timeout_reached(self):
        return True

    def is_player_dead(self):
        return True


@needs_vizdoom
def test_a_hit_is_a_real_end_and_a_seed_restores_it():
    def play(env):
        env.begin(2)
        row, rewards = env.step(0), []
        for action in [1, 1, 1, 3, 3, 3, 2, 2, 2, 3, 3, 3] * 10:
            row = env.step(action)
            rewards.append(row.reward)
            if row.over:
                break
        return rewards, row

    first, second = one("VizdoomBasic-v1"), one("VizdoomBasic-v1")
    second.begin(0)
    (rewards, row), again = play(first), play(second)
    assert again[0] == rewards
    np.testing.assert_array_equal(again[1].observation["screen"], row.observation["screen"])
    first.env.close()
    second.env.close()


@needs_vizdoom
def test_the_mouse_has_no_bounds():
    spec = make("VizdoomDeathmatch-v1", {}).spec
    described = {name: leaf.describe() for name, leaf in tree.named(spec.action).items()}
    assert described == {"binary": "discrete () int64 of [18]", "continuous": "box (3,) float32 [-inf, inf]"}
