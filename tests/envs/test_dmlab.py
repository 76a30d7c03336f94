"""The adapter of DeepMind Lab against a stand-in with the engine's calls, dtypes and errors."""

import sys
import types

import numpy as np
import pytest
from envs.one_env import OneEnv
from vec.env_contract import check_env_contract

from pronghorn.envs.dmlab import ACTIONS, LabEnv, LevelCache
from pronghorn.envs.gymnasium import env_factory, make
from pronghorn.envs.text import word_numbers
from pronghorn.seeding import Domain
from pronghorn.types import UserError
from pronghorn.vec.layout import make_vec

FRAMES = 18  # of an episode: the fifth action is held for two frames only


class Lab:
    """Pixels are the seed, the frames played, and the engine's number of the action; a frame is rewarded with 1."""

    def __init__(self, level, observations, config=None, renderer="software", level_cache=None):
        assert all(type(text) is str for pair in config.items() for text in pair)
        assert observations == ["RGB_INTERLEAVED", "INSTR"] and renderer in ("software", "hardware")
        self.level, self.config, self.level_cache = level, config, level_cache
        self.actions = []
        self._running = False

    def reset(self, episode=-1, seed=None):
        self._seed, self._frames, self._running = seed, 0, True
        self._action = np.zeros(7, np.intc)

    def step(self, action, num_steps=1):
        if not self._running:
            raise RuntimeError("Environment in wrong status for call to step()")
        if action.dtype != np.intc or action.shape != (7,):
            raise ValueError("action must be of type np.intc, shape (7)")
        self.actions.append(action.tolist())
        played = min(num_steps, FRAMES - self._frames)
        self._frames, self._action = self._frames + played, action
        self._running = self._frames < FRAMES
        return float(played)

    def is_running(self):
        return self._running

    def num_steps(self):
        return self._frames

    def observations(self):
        if not self._running:
            raise RuntimeError("Environment in wrong status for call to observations()")
        height, width = int(self.config["height"]), int(self.config["width"])
        values = [self._seed % 251, self._frames, self._action[0] + 100]
        image = np.broadcast_to(np.array(values, np.uint8), (height, width, 3)).copy()
        return {"RGB_INTERLEAVED": image, "INSTR": f"Collect the frame {self._frames}"}

    def close(self):
        self._running = False


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", types.SimpleNamespace(Lab=Lab))


def one(level, **env_args):
    return OneEnv(env_factory(f"dmlab/{level}", env_args), 3, Domain.TRAINING_ENV, 1)


def test_without_the_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(
        UserError, match=r"dmlab/rooms_watermaze needs deepmind_lab: build .*google-deepmind/lab"
    ) as caught:
        make("dmlab/rooms_watermaze", {})
    assert "\n" not in str(caught.value)


def test_contract(engine):
    factory = env_factory("dmlab/rooms_watermaze", {"height": 8, "width": 10})
    check_env_contract(
        lambda num_envs, seed: make_vec([factory] * num_envs, "serial", 1, seed, Domain.TRAINING_ENV), rounds=13
    )


def test_an_episode(engine):
    env = one("rooms_watermaze")
    assert env.spec.action_repeat == 4
    row = env.begin(0)
    assert row.observation["image"].shape == (72, 96, 3) and row.observation["image"].dtype == np.uint8
    np.testing.assert_array_equal(row.observation["instruction"], word_numbers("Collect the frame 0"))
    rows = [env.step(action) for action in (4, 7, 0, 8, 5)]
    assert [row.reward for row in rows] == [4, 4, 4, 4, 2]
    assert [row.observation["image"][0, 0, 1:].tolist() for row in rows] == [[4, 80], [8, 120], [12, 100]] + [
        [16, 100]
    ] * 2
    np.testing.assert_array_equal(rows[-1].observation["instruction"], word_numbers("Collect the frame 16"))
    assert [(row.terminated, row.truncated) for row in rows] == [(False, False)] * 4 + [(True, False)]
    assert env.step(0).first
    env.env.close()
    env.env.close()


def test_frames_are_the_engines(engine):
    env = make("dmlab/rooms_watermaze", {})
    assert env.reset(seed=1)[1] == {"frames": 0}
    assert [env.step(0)[4]["frames"] for _ in range(5)] == [4, 8, 12, 16, 18]


def test_the_nine_actions(engine):
    names = ["forward", "backward", "strafe left", "strafe right", "left", "right", "left on", "right on", "fire"]
    expected = {
        "forward": {3: 1},
        "backward": {3: -1},
        "strafe left": {2: -1},
        "strafe right": {2: 1},
        "left": {0: -20},
        "right": {0: 20},
        "left on": {0: -20, 3: 1},
        "right on": {0: 20, 3: 1},
        "fire": {4: 1},
    }
    found = {
        name: {index: value for index, value in enumerate(row) if value}
        for name, row in zip(names, ACTIONS.tolist(), strict=True)
    }
    assert found == expected
    assert LabEnv("dmlab/x").spec.action.categories == (9,)


@pytest.mark.parametrize(
    ("level", "env_args", "path", "config"),
    [
        ("rooms_watermaze", {}, "contributed/dmlab30/rooms_watermaze", {"width": "96", "height": "72"}),
        (
            "rooms_collect_good_objects_test",
            {"settings": {"mixerSeed": 3}},
            "contributed/dmlab30/rooms_collect_good_objects_test",
            {"width": "96", "height": "72", "allowHoldOutLevels": "true", "mixerSeed": "3"},
        ),
        (
            "rooms_exploit_deferred_effects_test",
            {},
            "contributed/dmlab30/rooms_exploit_deferred_effects_test",
            {"width": "96", "height": "72", "allowHoldOutLevels": "true", "mixerSeed": "1611489005"},
        ),
        ("tests/empty_room_test", {"width": 12}, "tests/empty_room_test", {"width": "12", "height": "72"}),
    ],
)
def test_levels_and_settings(level, env_args, path, config, engine):
    lab = make(f"dmlab/{level}", env_args)._lab
    assert (lab.level, lab.config) == (path, config)


def test_unknown_arguments(engine):
    with pytest.raises(UserError, match="with these --env-arg: unexpected keyword argument 'widht'"):
        make("dmlab/rooms_watermaze", {"widht": 3})


def test_level_caches(engine, tmp_path):
    own = object()
    assert LabEnv("dmlab/x", level_cache=own)._lab.level_cache is own
    cache = make("dmlab/x", {"level_cache": str(tmp_path / "maps")})._lab.level_cache
    wanted, compiled = tmp_path / "wanted.pk3", tmp_path / "compiled.pk3"
    assert not cache.fetch("key", str(wanted)) and not wanted.exists()
    compiled.write_bytes(b"a map")
    cache.write("key", str(compiled))
    assert LevelCache(tmp_path / "maps").fetch("key", str(wanted)) and wanted.read_bytes() == b"a map"
    compiled.write_bytes(b"another")
    cache.write("key", str(compiled))
    assert cache.fetch("key", str(wanted)) and wanted.read_bytes() == b"a map"
    assert [path.name for path in (tmp_path / "maps").iterdir()] == ["key"]
