import dataclasses
import importlib

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from pronghorn.envs.ale import AtariEnv, AtariOptions
from pronghorn.envs.gymnasium import make
from pronghorn.types import UserError


def play(env, seed, steps, choices=4):
    """Everything a game shows, until its end or for some steps."""
    random = np.random.default_rng(seed)
    rows = [(env.reset(seed=seed)[0].tobytes(),)]
    for _ in range(steps):
        observation, *outcome, info = env.step(int(random.integers(choices)))
        rows.append((observation.tobytes(), *outcome, info["lives"], info.get("episode_over", True)))
        if info.get("episode_over", True) and (outcome[1] or outcome[2]):
            break
    return rows


@pytest.mark.parametrize(
    ("env", "skip", "sticky"), [("ALE/Breakout-v5", 4, 0.25), ("ALE/Pong-v5", 3, 0.0), ("ALE/Breakout-v5", 1, 0.0)]
)
def test_games_equal_those_of_gymnasium(env, skip, sticky):
    ours = make(env, {"frame_skip": skip, "sticky": sticky})
    raw = gymnasium.make(env, frameskip=1, repeat_action_probability=sticky)
    theirs = FrameStackObservation(AtariPreprocessing(raw, frame_skip=skip), 4)
    games = [play(one, seed=5, steps=300) for one in (ours, theirs)]
    assert games[0] == games[1] and len(games[0]) > 100
    ours.close()
    theirs.close()


def test_what_a_game_looks_like():
    env = make("ALE/Pong-v5", {"max_frames": 403, "stack": 2, "screen": 42, "frame_skip": 2, "full_action_set": True})
    spec = env.spec
    assert spec.observation.describe() == "box (2, 42, 42) uint8 [0, 255]"
    assert spec.action.describe() == "discrete () int64 of [18]"
    assert (spec.action_repeat, spec.max_episode_steps, spec.seedable) == (2, 201, True)
    observation, info = env.reset(seed=1)
    assert observation.shape == (2, 42, 42) and observation.dtype == np.uint8 and info["lives"] == 0
    env.close()
    env.close()


def test_a_seed_and_the_actions_restore_a_game():
    env = make("ALE/Breakout-v5", {"sticky": 0.25, "fire_reset": True})
    first = play(env, 1, 60)
    assert play(env, 2, 60) != first
    assert play(env, 1, 60) == first
    env.close()


def test_a_stack_starts_with_its_first_frame_repeated():
    env = make("ALE/Breakout-v5", {"fire_reset": True, "noop_max": 0})
    start = env.reset(seed=0)[0]
    assert start.any() and (start == start[3]).all()
    one = env.step(2)[0]
    assert (one[:3] == start[:3]).all() and (one[3] != start[3]).any()
    assert (start == start[3]).all()  # not the env's own buffer
    env.close()


def test_a_game_is_cut_after_its_frames_without_no_ops():
    env = make("ALE/Pong-v5", {"max_frames": 402, "noop_max": 30})
    for seed in range(2):
        rows = play(env, seed, 200)
        assert len(rows) == 101 and rows[-1][2:4] == (False, True)
    env.close()


def test_game_over_on_the_last_step_is_no_cut():
    game = play(make("ALE/Breakout-v5", {}), 5, 2000)
    steps = len(game) - 1
    assert game[-1][2:4] == (True, False)
    for frames, end in ((4 * steps, (True, False)), (4 * steps - 4, (False, True))):
        assert play(make("ALE/Breakout-v5", {"max_frames": frames}), 5, 2000)[-1][2:4] == end


def test_every_life_is_played():
    """Five ends per game of five lives, the last of which is the game's."""
    env = make("ALE/Breakout-v5", {"life_loss": True})
    rows = play(env, 5, 2000)
    ends = [(lives, over) for _, _, terminated, _, lives, over in rows[1:] if terminated]
    assert ends == [(4, False), (3, False), (2, False), (1, False), (0, True)]
    assert sum(row[1] for row in rows[1:]) == sum(row[1] for row in play(make("ALE/Breakout-v5", {}), 5, 2000)[1:]) > 0


def test_fire_is_pressed_where_the_game_has_it():
    plain, fired = (make("ALE/Breakout-v5", {"noop_max": 0, "fire_reset": fire}) for fire in (False, True))
    plain.reset(seed=0)
    fired.reset(seed=0)
    noop = 0
    moving = [len({env.step(noop)[0][3].tobytes() for _ in range(12)}) > 2 for env in (plain, fired)]
    assert moving == [False, True]
    without = make("ALE/Freeway-v5", {"fire_reset": True})
    without.reset(seed=0)


@pytest.mark.parametrize(
    ("env_args", "message"),
    [
        ({"frameskip": 4}, "Atari games have no --env-arg 'frameskip'; did you mean frame_skip?"),
        ({"noop_max": -1}, "noop_max must be at least 0, not -1"),
        ({"stack": "4"}, "stack must be int, not '4'"),
        ({"life_loss": 1}, "life_loss must be bool, not 1"),
        ({"sticky": 1.5}, "sticky must be a probability below 1, not 1.5"),
        ({"max_frames": 3}, r"max_frames must be at least frame_skip \(4\)"),
    ],
)
def test_options_that_cannot_work(env_args, message):
    with pytest.raises(UserError, match=message):
        AtariOptions.of(env_args)


def test_options_are_said_in_one_line():
    text = AtariOptions.of({"sticky": 0.25, "max_frames": 4003}).describe()
    assert "\n" not in text
    for part in ("84×84", "sticky actions 0.25", "fire at reset off", "4000 frames", "frame skip 4"):
        assert part in text
    changed = {item.name: item.default for item in dataclasses.fields(AtariOptions)}
    assert AtariOptions.of(changed) == AtariOptions()


def test_no_such_game():
    with pytest.raises(UserError, match=r"there is no environment 'ALE/Pongg-v5'; did you mean ALE/Pong-v5\?"):
        AtariEnv("ALE/Pongg-v5", {})


@pytest.mark.parametrize("missing", ["ale_py", "cv2"])
def test_missing_packages_are_named(monkeypatch, missing):
    real = importlib.import_module

    def without(name, *rest):
        if name == missing:
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(UserError, match=rf"ALE/Pong-v5 needs {missing}: pip install 'pronghorn\[atari\]'"):
        AtariEnv("ALE/Pong-v5", {})
