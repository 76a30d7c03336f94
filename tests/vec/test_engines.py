import importlib
import importlib.util
import sys

import numpy as np
import pytest
from vec.engine_stand_ins import CountingVector

from pronghorn.envs.gymnasium import make
from pronghorn.seeding import Domain
from pronghorn.types import UserError
from pronghorn.vec.engines import has_native, make_native, native_rule, native_spec

needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")
ATARI_ENGINES = ["ALE", pytest.param("envpool", marks=needs_envpool)]


def counting_envs(num_envs, mode="NextStep"):
    return CountingVector(num_envs, mode)


def one_env(size=3):
    return size


def vec(env, num_envs=1, ready=None, groups=1, **env_args):
    return make_native(env, env_args, num_envs, 0, Domain.TRAINING_ENV, ready=ready, groups=groups, threads=1)


def play(engine, steps):
    """Rows (reward, terminated, truncated, over, first, episode) and observations of the first env."""
    random = np.random.default_rng(3)
    rows, observations = [], []
    engine.reset(np.zeros(engine.num_envs, np.int64))
    for _ in range(steps):
        step = engine.recv()
        values = (step.reward, step.terminated, step.truncated, step.over, step.first, step.episode)
        rows.append(tuple(array[0].item() for array in values))
        observations.append(step.observation[0].tobytes())
        engine.send(np.full(len(step.envs), random.integers(4)), step.envs)
    engine.close()
    return rows, observations


def play_alone(env, env_args, steps):
    """The same of the adapter of one game, with next-step autoreset written out."""
    game, random = make(env, env_args), np.random.default_rng(3)
    rows, observations, episode, over, action = [], [], -1, True, None
    for _ in range(steps):
        if over:
            episode, over = episode + 1, False
            observation, _ = game.reset(seed=episode)
            rows.append((0.0, False, False, False, True, episode))
        else:
            observation, reward, terminated, truncated, info = game.step(action)
            over = info.get("episode_over", terminated or truncated)
            rows.append((reward, terminated, truncated, over, False, episode))
        observations.append(observation.tobytes())
        action = random.integers(4)
    return rows, observations


def stack(frames):
    return np.frombuffer(frames, np.uint8).reshape(4, 84, 84)


def test_which_envs_have_an_engine():
    here = __name__
    rules = {
        "ALE/Pong-v5": "ale-py",
        "envpool/Hopper-v4": "EnvPool",
        f"{here}:counting_envs": "gymnasium vector",
        f"{here}:CountingVector": "gymnasium vector",
        f"{here}:one_env": None,
        "pronghorn.envs.probes:CountingEnv": None,
        "CartPole-v1": None,
        "Pendulum-v1": None,
    }
    assert {env: native_rule(env) for env in rules} == rules
    assert has_native("CartPole-v1") and has_native("ALE/Pong-v5") and has_native(f"{here}:counting_envs")
    assert not has_native("Pendulum-v1") and not has_native("NoSuchEnv-v0")
    with pytest.raises(UserError, match="Pendulum-v1 has no native engine; use --layout serial or pool"):
        vec("Pendulum-v1")
    for env in (f"{here}:counting_envs", "envpool/Pendulum-v1"):
        with pytest.raises(UserError, match="steps many environments at once; use --layout native"):
            make(env, {})


def test_a_users_vector_env_gets_its_arguments():
    for mode in ("NextStep", "SameStep"):
        made = vec(f"{__name__}:counting_envs", 3, mode=mode)
        made.reset(np.zeros(3, np.int64))
        assert made.recv().observation.shape == (3, 3) and not made.spec.seedable
        made.close()
    with pytest.raises(UserError, match="unexpected keyword argument 'colour'"):
        vec(f"{__name__}:counting_envs", 3, colour=1)
    with pytest.raises(UserError, match="all its envs at once"):
        vec(f"{__name__}:counting_envs", 3, ready=2)
    with pytest.raises(UserError, match="all its envs at once"):
        vec("CartPole-v1", 3, ready=2)


@pytest.mark.parametrize("engine", ATARI_ENGINES)
def test_spec_equals_that_of_the_single_game(engine):
    env_args = {"max_frames": 400, "stack": 3, "frame_skip": 2, "screen": 42, "full_action_set": True}
    single, native = make("ALE/Breakout-v5", env_args).spec, native_spec(f"{engine}/Breakout-v5", env_args)
    assert native.describe() == single.describe()
    assert (native.action_repeat, native.max_episode_steps) == (single.action_repeat, single.max_episode_steps)
    assert native.seedable is False and native.name == f"{engine}/Breakout-v5"


@pytest.mark.parametrize("engine", ATARI_ENGINES)
def test_games_equal_those_of_the_single_adapter(engine):
    """Lives, cuts, ends and returns of thousands of random actions; one FIRE and nothing else starts each game."""
    options = {"life_loss": True, "fire_reset": True, "max_frames": 1000}
    noops = {"ALE": 0, "envpool": 1}[engine]  # FIRE takes the place of EnvPool's one
    rows, observations = play(vec(f"{engine}/Breakout-v5", **options, noop_max=noops), 2000)
    alone, seen = play_alone("ALE/Breakout-v5", {**options, "noop_max": 0}, 2000)
    assert rows == alone
    assert sum(row[0] for row in rows) > 10
    overs, cuts = (sum(row[column] for row in rows) for column in (3, 2))
    assert overs > 6 and 0 < cuts < overs and sum(row[1] for row in rows) > 2 * overs
    if engine == "ALE":
        for row, ours, theirs in zip(rows, map(stack, observations), map(stack, seen), strict=True):
            kept = 3 if row[2] else 4  # at a cut the library merges its newest frame from what was seen before
            assert (ours[:kept] == theirs[:kept]).all()


@pytest.mark.parametrize("engine", ATARI_ENGINES)
def test_every_life_is_played_in_one_episode(engine):
    rows, _ = play(vec(f"{engine}/Breakout-v5", life_loss=True, noop_max=1, fire_reset=True), 900)
    last = max(row[5] for row in rows)
    games = [[row for row in rows if row[5] == episode] for episode in range(last)]
    assert len(games) >= 2
    for game in games:
        assert sum(row[1] for row in game) == 5 and sum(row[3] for row in game) == 1 and game[-1][3]
    whole, _ = play(vec(f"{engine}/Breakout-v5", noop_max=1, fire_reset=True), 900)
    assert [row[0] for row in whole] == [row[0] for row in rows]
    assert all(row[1] == row[3] for row in whole)


@pytest.mark.parametrize("engine", ATARI_ENGINES)
def test_first_stacks_repeat_the_first_frame(engine):
    made = vec(f"{engine}/Pong-v5", 3, max_frames=40, stack=4, noop_max=9)
    made.reset(np.zeros(3, np.int64))
    previous, age, seen = None, np.zeros(3, np.int64), 0
    for _ in range(40):
        step = made.recv()
        age = np.where(step.first, 0, age + 1)
        for env in range(3):
            frames = step.observation[env]
            assert frames.reshape(4, -1).any(axis=1).all()
            if step.first[env]:
                seen += 1
                assert (frames == frames[3]).all()
            else:
                assert (frames[:3] == previous[env][1:]).all()
        previous = step.observation.copy()
        made.send(np.zeros(3, np.int64), step.envs)
    made.close()
    assert seen >= 9


@needs_envpool
@pytest.mark.parametrize("ready", [None, 3])
def test_a_real_end_on_the_limits_step_is_no_cut(ready):
    """Under every limit that cuts into them, the same first episodes: ends on the limit's step stay real ends."""

    def lengths(limit):
        made = vec("envpool/Hopper-v4", 6, ready=ready, max_episode_steps=limit)
        made.reset(np.zeros(6, np.int64))
        counts, found = np.zeros(6, np.int64), {}
        generators = [np.random.default_rng(env) for env in range(6)]
        while len(found) < 6:
            step = made.recv()
            counts[step.envs] += step.valid & (step.episode == 0)
            for row in np.flatnonzero(step.over & (step.episode == 0)):
                found[int(step.envs[row])] = (int(counts[step.envs[row]]), bool(step.terminated[row]))
                assert step.terminated[row] != step.truncated[row]
            actions = [generators[env].uniform(-1, 1, 3) for env in step.envs]
            made.send(np.array(actions, np.float32), step.envs)
        made.close()
        return [found[env] for env in range(6)]

    free = lengths(500)
    assert all(terminated for _, terminated in free)
    limit = sorted(length for length, _ in free)[2]
    expected = [(min(length, limit), length <= limit) for length, _ in free]
    assert lengths(limit) == expected and len({terminated for _, terminated in expected}) == 2


@needs_envpool
def test_pieces_and_groups_lose_nothing_in_envpool():
    """Several requests before an answer: rows must not be written over each other."""

    def rows(pieces, groups=1):
        made = vec("envpool/Hopper-v4", 6, groups=groups, max_episode_steps=9)
        made.reset(np.zeros(6, np.int64))
        played = [[] for _ in range(6)]
        while min(map(len, played)) < 60:
            step = made.recv()
            for row, env in enumerate(step.envs.tolist()):
                played[env].append((step.observation[row].tobytes(), bool(step.over[row]), bool(step.first[row])))
            for part in np.array_split(step.envs, min(pieces, len(step.envs))):
                made.send(np.full((len(part), 3), 0.3, np.float32), part)
        made.close()
        return [env[:60] for env in played]

    whole = rows(1)
    assert rows(3) == whole and rows(1, groups=2) == whole


@needs_envpool
def test_what_envpool_refuses():
    for env, env_args, message in (
        ("envpool/HalfCheeta-v4", {}, "EnvPool has no task 'HalfCheeta-v4'; did you mean HalfCheetah-v"),
        ("envpool/Hopper-v4", {"colour": 3}, "envpool/Hopper-v4 cannot be made with --env-arg .*colour"),
        ("envpool/Hopper-v4", {"max_episode_steps": "x"}, "envpool/Hopper-v4 cannot be made"),
        ("envpool/Breakout-v5", {"frameskip": 3}, "no --env-arg 'frameskip'; did you mean frame_skip"),
        ("envpool/Breakout-v5", {"noop_max": 0}, "noop_max=1 or more"),
    ):
        with pytest.raises(UserError, match=message) as error:
            vec(env, **env_args)
        assert "\n" not in str(error.value)


def test_missing_engines_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UserError, match=r"envpool/Hopper-v4 needs envpool: pip install 'pronghorn\[envpool\]'"):
        vec("envpool/Hopper-v4")
    with pytest.raises(UserError, match=r"ALE/Pong-v5 needs ale_py: pip install 'pronghorn\[atari\]'"):
        vec("ALE/Pong-v5")
    assert native_rule("ALE/Pong-v5") == "ale-py"


@pytest.mark.parametrize("ready", [None, 2])
@pytest.mark.parametrize("engine", ATARI_ENGINES)
def test_everything_begins_anew_with_actions_in_flight(engine, ready):
    made = vec(f"{engine}/Pong-v5", 4, ready=ready, max_frames=40)
    starts = []
    for episode in (0, 70, 0):
        made.reset(np.full(4, episode))
        begun = {}
        for _ in range(30):
            step = made.recv()
            for row, env in enumerate(step.envs.tolist()):
                if env not in begun:
                    assert step.first[row] and step.episode[row] == episode
                    begun[env] = step.observation[row].tobytes()
            made.send(np.zeros(len(step.envs), np.int64), step.envs)
        starts.append(begun)
    made.close()
    shared = starts[0].keys() & starts[2].keys()
    assert len(shared) >= 3 and all(starts[0][env] == starts[2][env] for env in shared)
