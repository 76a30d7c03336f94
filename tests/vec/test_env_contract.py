"""Real simulators, each in every layout that has it."""

import contextlib
import functools
import importlib.util
from importlib import metadata

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from vec.env_contract import check_env_contract, play

from pronghorn.envs.gymnasium import env_factory
from pronghorn.seeding import Domain
from pronghorn.types import UserError
from pronghorn.vec.engines import make_native
from pronghorn.vec.layout import make_vec

ATARI = {"max_frames": 120}


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


needs_envpool = needs("envpool")


def serial(env, **env_args):
    return lambda num_envs, seed: make_vec(
        [env_factory(env, env_args)] * num_envs, "serial", 1, seed, Domain.TRAINING_ENV
    )


def native(env, ready=None, groups=1, **env_args):
    return lambda num_envs, seed: make_native(
        env, env_args, num_envs, seed, Domain.TRAINING_ENV, ready=ready, groups=groups, threads=2
    )


@pytest.mark.parametrize(
    ("env", "rounds"), [("CartPole-v1", 120), ("Pendulum-v1", 450), ("MountainCar-v0", 420), ("Acrobot-v1", 1050)]
)
def test_classic_control(env, rounds):
    check_env_contract(serial(env), rounds)


@pytest.mark.parametrize(("env", "rounds"), [("HalfCheetah-v5", 1010), ("Hopper-v5", 200), ("Walker2d-v5", 200)])
def test_mujoco(env, rounds):
    check_env_contract(serial(env), rounds, num_envs=2)


@needs("Box2D")
@pytest.mark.parametrize(("env", "rounds"), [("LunarLander-v3", 260), ("BipedalWalker-v3", 260)])
def test_box2d(env, rounds):
    check_env_contract(serial(env), rounds, num_envs=2)


@needs("dm_control")
@pytest.mark.parametrize(
    ("task", "seconds", "rounds"),
    [
        ("cartpole-balance", 0.5, 60),
        ("cheetah-run", 0.2, 30),
        ("humanoid-walk", 0.5, 30),
        ("lqr-lqr_2_1", 0.3, 25),
        ("manipulator-bring_ball", 0.2, 25),
        ("walker-walk", 0.5, 30),
    ],
)
def test_dm_control(task, seconds, rounds):
    check_env_contract(serial(f"dm_control/{task}", time_limit=seconds), rounds, num_envs=2)


@needs("vizdoom")
@pytest.mark.parametrize("env", ["VizdoomBasic-v1", "VizdoomDeathmatch-MultiBinary-v1"])
def test_vizdoom(env, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the game leaves an empty folder
    check_env_contract(serial(env, episode_timeout=100), 40, num_envs=2)


def test_cart_poles_own_vector_env():
    check_env_contract(native("CartPole-v1"))
    check_env_contract(native("CartPole-v1", groups=2), 240)


def gymnasium_vector(num_envs, kind, mode):
    vectors = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}
    makers = [functools.partial(gymnasium.make, "CartPole-v1")] * num_envs
    return vectors[kind](makers, autoreset_mode=AutoresetMode(mode))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_gymnasiums_vectors_answer_alike_in_every_mode(kind):
    def rows(mode):
        return play(native(f"{__name__}:gymnasium_vector", kind=kind, mode=mode), 3, 7, 150, fair=True)

    expected = rows("NextStep")
    for mode in ("SameStep", "Disabled"):
        found = rows(mode)
        for env in range(3):
            length = min(len(expected[env]), len(found[env]))
            assert length > 80 and found[env][:length] == expected[env][:length]


def test_atari_one_by_one():
    check_env_contract(serial("ALE/Breakout-v5", **ATARI), 40, num_envs=2)


@pytest.mark.parametrize(
    ("options", "num_envs"),
    [({}, 3), ({"groups": 2}, 3), ({"ready": 3}, 6)],
    ids=["lock-step", "groups", "first ready"],
)
def test_atari_by_its_own_vector_env(options, num_envs):
    check_env_contract(native("ALE/Pong-v5", **options, **ATARI, sticky=0.25), 100, num_envs, "ready" not in options)


@needs_envpool
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"ready": 2}], ids=["lock-step", "groups", "first ready"])
@pytest.mark.parametrize(
    ("task", "rounds", "env_args"),
    [
        ("Breakout-v5", 100, {**ATARI, "life_loss": False}),
        ("HalfCheetah-v4", 100, {"max_episode_steps": 25}),
        ("Hopper-v4", 150, {"max_episode_steps": 12}),
        ("Pendulum-v1", 700, {}),
    ],
)
def test_envpool(task, rounds, env_args, options):
    check_env_contract(native(f"envpool/{task}", **options, **env_args), rounds, fair="ready" not in options)


@needs_envpool
@pytest.mark.parametrize(
    ("task", "rounds", "env_args"),
    [
        ("CartPole-v1", 120, {}),
        ("LunarLander-v3", 250, {}),
        pytest.param("BigfishEasy-v0", 400, {}, marks=needs("PyQt5")),
    ],
    ids=["classic control", "Box2D", "Procgen"],
)
def test_envpools_other_families(task, rounds, env_args):
    check_env_contract(native(f"envpool/{task}", **env_args), rounds)


@needs_envpool
@needs("PyQt5")
def test_the_clock_of_a_procgen_game_is_a_time_limit():
    with contextlib.closing(native("envpool/MazeEasy-v0")(2, 0)) as vec:
        vec.reset(np.zeros(2, np.int64))
        ends = []
        for row in range(502):
            step = vec.recv()
            ends += [(row, bool(step.terminated[at]), bool(step.truncated[at])) for at in np.flatnonzero(step.over)]
            vec.send(np.full(2, 4), step.envs)  # stands still
    assert vec.spec.max_episode_steps == 500 and ends == [(500, False, True)] * 2


@needs_envpool
def test_procgen_refuses_a_limit_that_envpool_would_not_keep():
    with pytest.raises(UserError, match="MazeEasy-v0 takes no --env-arg max_episode_steps: EnvPool would cut nothing"):
        native("envpool/MazeEasy-v0", max_episode_steps=25)(1, 0)


@needs_envpool
@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (False, r"needs Qt 5: pip install 'pronghorn\[procgen\]', which brings PyQt5-Qt5"),
        (True, "needs Qt 5, and PyQt5-Qt5 needs a library of the system: /wheel/PyQt5/Qt5/lib/libQt5Core.so.5: .*"),
    ],
)
def test_a_missing_qt_is_told_in_one_line(installed, message, monkeypatch):
    class Wheel:
        def locate_file(self, path):
            return f"/wheel/{path}"

    def distribution(name):
        if not installed:
            raise metadata.PackageNotFoundError(name)
        return Wheel()

    monkeypatch.delitem(vars(importlib.import_module("envpool.procgen")), "ProcgenEnvSpec", raising=False)
    monkeypatch.setattr("pronghorn.vec.envpool.metadata.distribution", distribution)
    with pytest.raises(UserError, match=f"^envpool/CoinrunEasy-v0 {message}$"):
        native("envpool/CoinrunEasy-v0")(1, 0)


@needs_envpool
def test_what_envpool_lacks_is_told_in_one_line(monkeypatch):
    def needy(*_, **__):
        raise ImportError("Pong requires\nmore, install it")

    monkeypatch.setattr("envpool.make_spec", needy)
    with pytest.raises(UserError, match="Pong-v5 cannot be made: Pong requires more, install it"):
        native("envpool/Pong-v5")(1, 0)
