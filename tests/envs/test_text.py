"""Text from the env to the row: what is stored, in every layout, and what is refused."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zlib

import gymnasium
import numpy as np
import pytest
from envs.one_env import OneEnv
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pronghorn import tree
from pronghorn.envs.gymnasium import GymnasiumEnv, env_factory
from pronghorn.envs.spaces import leaf_of_space
from pronghorn.envs.text import BUCKETS, WORDS, text_leaf, word_numbers
from pronghorn.seeding import Domain
from pronghorn.types import EnvSpec, UserError
from pronghorn.vec.engines import make_native
from pronghorn.vec.gymnasium_vector import VectorEngine
from pronghorn.vec.layout import make_vec

LENGTH = 3
HERE = __name__


class Reader(gymnasium.Env):
    """Tells its steps in words; ``wrong`` answers something else than text once a step was taken."""

    observation_space = spaces.Dict(
        {"page": spaces.Text(500), "more": spaces.Tuple((spaces.Text(50), spaces.Box(0, 9)))}
    )
    action_space = spaces.Discrete(2)

    def __init__(self, wrong=None):
        self._wrong, self._step = wrong, 0

    def reset(self, *, seed=None, options=None):
        self._step = 0
        return told(0), {}

    def step(self, action):
        self._step += 1
        answer = told(self._step)
        if self._wrong is not None:
            answer["page"] = self._wrong
        return answer, 1.0, self._step == LENGTH, False, {}


class Whole(Reader):
    """The observation itself is a text."""

    observation_space = spaces.Text(500)

    def reset(self, **options):
        return super().reset(**options)[0]["page"], {}

    def step(self, action):
        answer, *rest = super().step(action)
        return (answer["page"], *rest)


def told(step):
    return {"page": f"this is page {step}", "more": ("" if step == 2 else "on " * step, np.array([step], np.float32))}


def many_readers(num_envs, mode):
    return SyncVectorEnv([Reader] * num_envs, autoreset_mode=AutoresetMode(mode))


def test_words_become_numbers():
    found = word_numbers("  Go to\tthe  red door ")
    expected = [1 + zlib.crc32(word) % 1000 for word in (b"Go", b"to", b"the", b"red", b"door")]
    assert found.tolist() == expected + [0] * (WORDS - 5) and found.dtype == np.int16
    assert not word_numbers("").any() and not word_numbers(" \n").any()
    assert word_numbers("Tür \ud800")[1]  # whatever a string may hold
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
    many = [f"word{number}" for number in range(3 * BUCKETS)]
    buckets = [int(word_numbers(word)[0]) for word in many]
    assert min(buckets) == 1 and max(buckets) == BUCKETS and len(set(buckets)) > 0.9 * BUCKETS
    long = word_numbers(" ".join(many))
    assert long.tolist() == buckets[:WORDS]


def test_words_have_the_same_numbers_in_every_process():
    code = "from pronghorn.envs.text import word_numbers; print(word_numbers('north or south').tolist())"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert told.stdout.strip() == str(word_numbers("north or south").tolist())


def layouts():
    here = {"reader": f"{HERE}:Reader", "vector": f"{HERE}:many_readers"}
    for layout in ("serial", "pool"):
        yield (
            layout,
            lambda layout=layout: make_vec([env_factory(here["reader"], {})] * 3, layout, 2, 5, Domain.PROBE_ENV),
        )
    for mode in ("NextStep", "SameStep", "Disabled"):
        yield mode, lambda mode=mode: make_native(here["vector"], {"mode": mode}, 3, 5, Domain.PROBE_ENV)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in layouts()])
def test_rows_hold_the_words_in_every_layout(make):
    with contextlib.closing(make()) as vec:
        assert vec.spec.describe()["observation/page"] == f"text ({WORDS},) int16 of [{BUCKETS + 1}]"
        vec.reset(np.zeros(3, np.int64))
        rows = np.zeros(3, np.int64)
        while rows.min() < 3 * (LENGTH + 1):
            step = vec.recv()
            page, (more, number) = step.observation["page"], step.observation["more"]
            assert page.dtype == more.dtype == np.int16
            for row, env in enumerate(step.envs.tolist()):
                expected = told(int(rows[env]) % (LENGTH + 1))  # the last one of an episode, too
                assert page[row].tolist() == word_numbers(expected["page"]).tolist()
                assert more[row].tolist() == word_numbers(expected["more"][0]).tolist()
                assert number[row] == expected["more"][1]
            rows[step.envs] += 1
            vec.send(np.zeros(len(step.envs), np.int64), step.envs)


def test_an_observation_that_is_text_and_nothing_else():
    env = OneEnv(env_factory(f"{HERE}:Whole", {}), 0, Domain.PROBE_ENV, 0)
    assert env.begin(0).observation.tolist() == word_numbers("this is page 0").tolist()
    assert env.step(0).observation.tolist() == word_numbers("this is page 1").tolist()


@pytest.mark.parametrize("wrong", [7, b"this is page 1", ["this", "is"], np.zeros(WORDS, np.int16)])
def test_what_is_no_text_is_named(wrong):
    env = OneEnv(env_factory(f"{HERE}:Reader", {"wrong": wrong}), 0, Domain.PROBE_ENV, 4)
    env.begin(0)
    kind = type(wrong).__name__
    with pytest.raises(UserError, match=rf"^env 4 in step .*: observation 'page' is {kind}, its space says text$"):
        env.step(0)


def test_a_vector_env_that_gives_no_text_is_named():
    class Numbers(SyncVectorEnv):
        def reset(self, **options):
            observation, infos = super().reset(**options)
            return {**observation, "page": np.zeros((self.num_envs, 3))}, infos

    def many(num_envs):
        return Numbers([Reader] * num_envs)

    with pytest.raises(UserError, match=r"^many: observation 'page' is ndarray, its space says text$"):
        VectorEngine("many", many, 2).reset(np.arange(2))


@pytest.mark.parametrize(
    ("space", "where"), [(spaces.Text(3), "x"), (spaces.Dict({"say": spaces.Tuple((spaces.Text(3),))}), "x/say/0")]
)
def test_text_is_no_action(space, where):
    class Speaker(Reader):
        action_space = space

    with pytest.raises(UserError, match=f"^action space of {where} is text, which can only be observed"):
        GymnasiumEnv("x", Speaker())
    with pytest.raises(UserError, match=f"^action space of {where} is text"):
        EnvSpec("x", text_leaf(), tree.map(lambda leaf: leaf, leaf_of_space(space, "x")))
