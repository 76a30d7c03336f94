import builtins
import pickle
import subprocess
import sys
import textwrap

import cloudpickle
import gymnasium
import numpy as np
import pytest
from envs.one_env import OneEnv
from gymnasium import spaces

from pronghorn import tree
from pronghorn.envs.base import to_env_actions, unbatch
from pronghorn.envs.gymnasium import GymnasiumEnv, env_factory, make
from pronghorn.envs.probes import BanditEnv
from pronghorn.envs.spaces import leaf_of_space
from pronghorn.seeding import Domain
from pronghorn.types import UserError


class Everything:
    """Duck-typed: all supported spaces, nested; step checks that the action belongs to its space."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "nested": spaces.Tuple((spaces.Discrete(3, start=5), spaces.Dict({"deep": spaces.Box(-1, 1, (2,))}))),
        }
    )
    action_space = spaces.Dict(
        {
            "a": spaces.Discrete(3, start=-1),
            "b": spaces.Tuple((spaces.Box(-2, 4, (2, 2), np.float64), spaces.MultiBinary(3))),
            "c": spaces.MultiDiscrete([2, 5], start=[1, 0]),
            "d": spaces.Box(-np.inf, np.inf, (1,), np.float32),
        }
    )

    def __init__(self, short=False):
        self.short = short

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        full = (self.observation_space.sample(), 1, False, False, {})
        return full[:2] + full[3:] if self.short else full


def needs_more(size):
    return Everything(size)


def test_every_space_both_ways():
    env = OneEnv(env_factory(f"{__name__}:Everything", {}), 0, Domain.TRAINING_ENV, 0)
    leaves = {path: leaf.describe() for path, leaf in tree.named(env.spec.action).items()}
    assert leaves == {
        "a": "discrete () int64 of [3] from -1",
        "b/0": "box (2, 2) float64 [-2, 4]",
        "b/1": "multi_binary (3,) int8 of [2, 2, 2]",
        "c": "multi_discrete (2,) int64 of [2, 5] from [1, 0]",
        "d": "box (1,) float32 [-inf, inf]",
    }
    row = env.begin(0)
    assert row.observation["image"].dtype == np.uint8
    assert Everything.observation_space.contains(
        {"image": row.observation["image"], "nested": tuple(tree.map(lambda x: x, row.observation["nested"]))}
    )
    sampled = {
        "a": np.array([0, 2]),
        "b": (np.full((2, 2, 2), 0.5, np.float32), np.array([[0, 1, 0], [1, 1, 1]])),
        "c": np.array([[0, 4], [1, 0]]),
        "d": np.full((2, 1), 9.0, np.float32),
    }
    actions = to_env_actions(env.spec.action, sampled)
    for t in range(2):
        assert env.step(unbatch(env.spec.action, actions)[t]).valid


@pytest.mark.parametrize(
    ("space", "where"),
    [
        (spaces.Graph(spaces.Discrete(2), None), "space of x is gymnasium.spaces.graph.Graph"),
        (
            spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))))}),
            "space of x/a/1 is",
        ),
        (object(), "space of x is builtins.object"),
    ],
)
def test_unsupported_spaces_name_the_leaf(space, where):
    with pytest.raises(UserError, match=where):
        leaf_of_space(space, "space of x")


def test_time_limit_is_truncation():
    env = OneEnv(env_factory("Pendulum-v1", {}), 0, Domain.TRAINING_ENV, 0)
    assert env.spec.max_episode_steps == 200
    env.begin(0)
    for _ in range(200):
        row = env.step(np.zeros(1, np.float32))
    assert (row.terminated, row.truncated) == (False, True)
    assert env.step(np.zeros(1, np.float32)).first


def test_seed_and_actions_restore_half_cheetah():
    factory = cloudpickle.loads(cloudpickle.dumps(env_factory("HalfCheetah-v5", {})))
    first, second = (OneEnv(factory, 3, Domain.TRAINING_ENV, 1) for _ in range(2))
    actions = list(np.random.default_rng(0).uniform(-1, 1, (20, 6)).astype(np.float32))
    first.begin(2)
    for action in actions:
        row = first.step(action)
    np.testing.assert_array_equal(second.begin(2, actions).observation, row.observation)
    first.env.close()
    second.env.close()


def test_factories_are_plain_data():
    factory = pickle.loads(pickle.dumps(env_factory("CartPole-v1", {"sutton_barto_reward": True})))
    env = factory()
    env.reset(seed=0)
    assert env.step(1)[1] == 0.0  # env_args arrived


def test_our_own_protocol_needs_no_adapter():
    assert isinstance(make("pronghorn.envs.probes:BanditEnv", {"arms": 3}), BanditEnv)


def test_files(tmp_path, monkeypatch):
    (tmp_path / "helper_of_mine.py").write_text("LENGTH = 3\n")
    source = """
        from dataclasses import dataclass
        import gymnasium
        from helper_of_mine import LENGTH
        class Mine(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(0, 1, (LENGTH,))
            action_space = gymnasium.spaces.Discrete(2)
            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return self.np_random.random(LENGTH).astype("float32"), {}
            def step(self, action):
                return self.reset()[0], 0.0, False, False, {}
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(source))
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "needy.py").write_text("import surely_not_there\n")
    monkeypatch.chdir(tmp_path)
    env = make("./mine.py:Mine", {})
    assert isinstance(env, GymnasiumEnv) and env.spec.name == "./mine.py:Mine"
    assert env.reset(seed=1)[0].shape == (3,)
    for name, message in [
        ("./mine.py:Mime", "has no 'Mime'; did you mean Mine"),
        ("./other.py:Mine", "there is no file other.py"),
        ("./broken.py:Mine", "line 1"),
        ("./needy.py:Mine", "No module named 'surely_not_there'"),
        ("./mine.py:LENGTH", "not a class or function but int"),
        ("./mine.py:dataclass", "is not an environment: it has no observation_space"),
    ]:
        with pytest.raises(UserError, match=message):
            make(name, {})


@pytest.mark.parametrize(
    ("env", "env_args", "message"),
    [
        ("HalfCheeta-v5", {}, "there is no environment 'HalfCheeta-v5'; did you mean HalfCheetah-v5?"),
        ("HalfCheetah-v9", {}, "did you mean HalfCheetah-v5?"),
        ("CartPole-v1", {"lenght": 3}, "unexpected keyword argument 'lenght'"),
        ("no_such_package.envs:Thing", {}, "No module named 'no_such_package'"),
        (":Thing", {}, "not a module's name"),
        (f"{__name__}:Everythin", {}, "did you mean Everything?"),
        (f"{__name__}:needs_more", {}, "missing 1 required positional argument: 'size'"),
        (f"{__name__}:Everything", {"long": 1}, "unexpected keyword argument 'long'"),
    ],
)
def test_mistakes_are_one_line(env, env_args, message):
    with pytest.raises(UserError) as caught:
        make(env, env_args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_atari_without_ale(monkeypatch):
    real = builtins.__import__
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert builtins.__import__ is real
    with pytest.raises(UserError, match=r"ALE/Pong-v5 needs ale_py: pip install 'pronghorn\[atari\]'"):
        make("ALE/Pong-v5", {})


@pytest.mark.parametrize(
    ("env", "remedy"),
    [
        ("Hopper-v5", "pip install 'pronghorn[mujoco]'"),
        ("LunarLander-v3", "pip install 'pronghorn[box2d]'"),
        ("CartPole-v1", "it is not there, run pip install it"),
    ],
)
def test_missing_simulator(env, remedy, monkeypatch):
    def needy(*_, **__):
        raise gymnasium.error.DependencyNotInstalled("it is\nnot there, run pip install it")

    monkeypatch.setattr(gymnasium, "make", needy)
    with pytest.raises(UserError) as caught:
        make(env, {})
    assert str(caught.value) == f"{env} needs packages that are not installed: {remedy}"


def test_gymnasiums_own_module_notation(tmp_path, monkeypatch):
    (tmp_path / "registers_one.py").write_text(
        "import gymnasium\ngymnasium.register('MineToo-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert make("registers_one:MineToo-v0", {}).spec.observation.shape == (4,)
    del gymnasium.registry["MineToo-v0"]


def test_old_answers_reach_the_check():
    env = OneEnv(env_factory(f"{__name__}:Everything", {"short": True}), 0, Domain.TRAINING_ENV, 0)
    env.begin(0)
    action = Everything.action_space.sample()
    with pytest.raises(UserError, match="as Gym did before"):
        env.step(action)


def test_nothing_heavy_is_imported_before_an_env_is_made():
    code = (
        "import sys, pronghorn.envs.gymnasium, pronghorn.vec.layout; "
        "assert not {'torch', 'gymnasium', 'mujoco'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
