"""Stacks of observations, held to a list of what was seen since the episode began."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import rig
from envs.one_env import OneEnv
from gymnasium import spaces

from pronghorn import tree
from pronghorn.envs.probes import CountingEnv, MaskedBanditEnv
from pronghorn.envs.spaces import leaf_of_space
from pronghorn.envs.stack import FrameStack, Stack
from pronghorn.envs.text import text_leaf
from pronghorn.seeding import Domain, episode_seed
from pronghorn.types import ACTION_MASK, UserError


def one_env(frames: int, make: Any = CountingEnv) -> OneEnv:
    return OneEnv(lambda: FrameStack(make(), frames), 5, Domain.TRAINING_ENV, 2)


def newest(seen: list[Any], frames: int) -> list[Any]:
    """The last of what was seen; where there are too few, the first stands for what is missing."""
    return [seen[max(0, len(seen) - back)] for back in range(frames, 0, -1)]


@pytest.mark.parametrize("frames", [2, 3, 8])
def test_an_episode_sees_nothing_of_the_one_before(frames):
    env = one_env(frames)
    row = env.begin(0)
    for episode in range(5):
        seed = episode_seed(5, Domain.TRAINING_ENV, 2, episode)
        seen = [[seed, 0, 0]]
        assert row.first and row.observation.tolist() == seen[0] * frames
        for step in range(1, rig.LENGTHS[seed % 5] + 1):
            row = env.step(1)
            seen.append([seed, step, step])
            assert row.observation.tolist() == np.ravel(newest(seen, frames)).tolist()
        assert row.over
        row = env.step(1)


def test_a_lost_life_does_not_begin_a_stack():
    env = one_env(2, functools.partial(CountingEnv, (4,), "terminated", life=2))
    env.begin(0)
    counted = [env.step(0).observation[[1, 4]].tolist() for _ in range(5)]
    assert counted == [[0, 1], [1, 2], [2, 3], [3, 4], [0, 0]]


def test_a_replayed_episode_has_the_stack_it_had():
    row = one_env(3, functools.partial(CountingEnv, (9,))).begin(6, [1, 2, 3])
    assert row.observation[1::3].tolist() == [1, 2, 3] and row.observation[2::3].tolist() == [1, 3, 6]


@pytest.mark.parametrize("layout", ["serial", "pool"])
def test_every_row_of_every_column(layout):
    frames = 3
    with rig.parts(rig.config(frame_stack=frames, layout=layout, workers=2)) as (actor, _):
        oracles = [rig.Oracle(3, env) for env in range(5)]
        seen: list[list[Any]] = [[] for _ in oracles]
        for _ in range(4):
            batch = actor.collect()
            assert batch.observation.shape == (8, 5, 3 * frames)
            for row in range(8):
                for env, oracle in enumerate(oracles):
                    if row or not seen[env]:  # row 0 was the last one of the batch before
                        seen[env] = [*([] if oracle.first else seen[env]), oracle.observation.tolist()]
                    assert batch.first[row, env] == oracle.first
                    assert batch.observation[row, env].tolist() == np.ravel(newest(seen[env], frames)).tolist()
                    if row < 7:
                        oracle.act(int(batch.action[row, env]))


KINDS = {
    "vector": spaces.Box(-1, 1, (2,), np.float32),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    "number": spaces.Box(0, 1, (), np.float32),
    "grey": spaces.Box(0, 255, (20, 21), np.uint8),
    "first": spaces.Box(0, 255, (3, 20, 21), np.uint8),
    "last": spaces.Box(0, 255, (20, 21, 3), np.uint8),
    "room": spaces.Discrete(3, start=-1),
    "rooms": spaces.MultiDiscrete([2, 3], start=[5, 0]),
    "bits": spaces.MultiBinary((2, 2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_leaf(kind):
    space = KINDS[kind]
    space.seed(3)
    single = leaf_of_space(space, "o")
    stack = Stack((single, {"deep": single}), 3)
    spec, *same = tree.leaves(stack.spec)
    assert [leaf.describe() for leaf in same] == [spec.describe()]
    axis = 2 if kind == "last" else 0
    seen = []
    for first in (True, False, False, False, True, False):
        value = space.sample()
        seen = [*([] if first else seen), np.array(value)]
        shown, other = tree.leaves(stack((value, {"deep": np.array(value).tolist()}), first))
        wide = [array[None] if kind in ("number", "room", "grey") else array for array in seen]
        expected = np.concatenate(newest(wide, 3), axis)
        assert np.array_equal(shown, expected) and np.array_equal(other, expected)
        assert (shown.shape, shown.dtype) == (spec.shape, spec.dtype)
        if spec.kind == "box":
            assert (shown >= spec.low).all() and (shown <= spec.high).all()
        else:
            index = shown - (0 if spec.start is None else spec.start)
            assert (index >= 0).all() and (index.ravel() < spec.categories).all()


def test_text_and_mask_are_only_the_newest():
    inner = MaskedBanditEnv(arms=4, legal=2).spec.observation
    stack = Stack({**inner, "say": text_leaf()}, 2)
    assert stack.spec[ACTION_MASK] is inner[ACTION_MASK] and stack.spec["context"].shape == (8,)
    shown: Any = None
    for number in range(3):
        observation = {ACTION_MASK: np.eye(4)[number], "context": np.full(4, number), "say": str(number)}
        shown = stack(observation, not number)
    assert (shown["say"], shown[ACTION_MASK].tolist()) == ("2", [0, 0, 1, 0])
    assert shown["context"].tolist() == [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("shape", "frames", "message"),
    [
        ((20, 21, 3), 7, "--frame-stack 7 makes 21 channels of observation/eye, which must be fewer than its rows"),
        ((3, 20, 21), 7, "--frame-stack 7 makes 21 channels of observation/eye"),
        ((8, 9), 8, "--frame-stack 8 makes 8 channels of observation/eye"),
        ((20, 20, 20), 2, "observation/eye .* no image whose channels can be told"),
    ],
)
def test_an_image_without_room_is_named(shape, frames, message):
    with pytest.raises(UserError, match=message):
        Stack({"eye": leaf_of_space(spaces.Box(0, 255, shape, np.uint8), "o")}, frames)


class Answers(CountingEnv):
    """Answers a step with whatever it is told to."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer

    def step(self, action: Any) -> Any:
        return self._answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((np.zeros(3), 1.0, False, {}), "as Gym did before 0.26"),
        (None, "step must return"),
        ((np.zeros(9), 1.0, False, False, {}), r"observation has shape \(9,\), its space says \(3,\)"),
        (({"x": 1}, 1.0, False, False, {}), "shape"),
    ],
)
def test_answers_that_break_the_contract_are_blamed_as_ever(answer, message):
    env = one_env(3, lambda: Answers(answer))
    env.begin(0)
    with pytest.raises(UserError, match=f"env 2 in step .*{message}"):
        env.step(0)
