"""Any spaces under any layout and algorithm: they are learnt in, or refused by the name of a leaf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rig
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from space_env import choices, leaves

from pronghorn.types import UserError

SHAPES = st.sampled_from([(), (2,), (2, 3)])
REALS = st.sampled_from([np.float16, np.float32, np.float64])
STARTS = st.integers(-2, 3)

finite_boxes = st.builds(
    lambda shape, dtype, low: spaces.Box(low, low + 2, shape, dtype), SHAPES, REALS, st.sampled_from([-1.0, 3.0])
)
open_boxes = st.builds(
    lambda shape, dtype, low, high: spaces.Box(low, high, shape, dtype),
    SHAPES,
    REALS,
    st.sampled_from([-np.inf, 0.0]),
    st.sampled_from([1.0, np.inf]),
)
integer_boxes = st.builds(
    lambda dtype: spaces.Box(0, 99, (3,), dtype),
    st.sampled_from([np.int8, np.int32, np.int64, np.uint8, np.uint16, np.uint32]),
)
discrete = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 4), STARTS),
    st.builds(lambda start: spaces.MultiDiscrete([2, 3, 3], start=[start, 0, 1]), STARTS),
    st.sampled_from([spaces.MultiDiscrete([[2, 3], [4, 2]]), spaces.MultiBinary(3), spaces.MultiBinary((2, 2))]),
)
images = st.sampled_from([spaces.Box(0, 255, shape, np.uint8) for shape in ((20, 22), (20, 21, 3), (1, 20, 20))])

NO_IMAGES = [spaces.Box(0, 255, shape, np.uint8) for shape in ((8, 8), (20, 20, 20), (2, 3, 20, 20))]
"""Too small, without a place for channels, with too many dimensions."""

SEQUENCE = spaces.Sequence(spaces.Discrete(2))
COUNTS = spaces.Box(0, 3, (2,), np.int64)


def nested(leaf: Any) -> Any:
    """The leaf alone, or in dicts and tuples."""

    def deeper(parts: Any) -> Any:
        dicts = st.dictionaries(st.sampled_from(["a", "b", "c"]), parts, min_size=1, max_size=2).map(spaces.Dict)
        return dicts | st.lists(parts, min_size=1, max_size=2).map(lambda found: spaces.Tuple(found))

    return st.recursive(leaf, deeper, max_leaves=4)


sound = finite_boxes | open_boxes | integer_boxes | discrete | images | st.just(spaces.Text(8))
observations = nested(sound | sound | sound | st.sampled_from([*NO_IMAGES, SEQUENCE]))
actions = nested(finite_boxes | open_boxes | discrete | discrete | st.sampled_from([spaces.Text(8), COUNTS]))
agents = st.fixed_dictionaries(
    {
        "core": st.sampled_from(["none", "none", "gru", "lstm"]),
        "last_action_and_reward": st.booleans(),
        "frame_stack": st.sampled_from([1, 1, 2]),
    }
)


def refusable(observation: Any, action: Any) -> list[str]:
    """Paths of the leaves that cannot be learnt in."""
    seen = [path for path, leaf in leaves(observation) if leaf in [*NO_IMAGES, SEQUENCE]]
    return seen + [path for path, leaf in leaves(action) if leaf == COUNTS or isinstance(leaf, spaces.Text)]


def learn(observation: Any, action: Any, layout: str = "serial", algorithm: str = "ppo", **options: Any) -> None:
    """One update, of every part of the agent, from rows all of which took effect."""
    masked = options.pop("masked", False)
    made = rig.config(
        "space_env:SpaceEnv",
        algorithm,
        env_args={"observation": observation, "action": action, "masked": masked},
        layout=layout,
        num_envs=2,
        unroll_length=4,
        layers=(4,),
        core_size=4,
        image_encoder="shallow",
        **({"epochs": 1, "minibatches": 1} if algorithm == "ppo" else {}),
        **options,
    )
    with rig.parts(made) as (actor, learner):
        learnt = [name for name, _ in learner.agent.named_parameters()]
        before = learner.weights()
        batch = actor.collect()
        assert batch.valid.all()  # every action was in its space
        metrics = learner.update(batch, 0.0)
        after = learner.weights()
    assert all(np.isfinite(value) for value in metrics.values()) and learner.version == 1
    assert all(torch.isfinite(after[name]).all() for name in learnt)
    changed = {part_of(name) for name in learnt if not torch.equal(before[name], after[name])}
    unchanged = {part_of(name) for name in learnt} - changed
    nothing_to_choose = masked or not any(isinstance(leaf, spaces.Box) for _, leaf in leaves(action))
    nothing_to_choose = nothing_to_choose and (masked or max(choices(action)) == 1)
    assert unchanged <= ({"policy"} if nothing_to_choose else set())


def part_of(name: str) -> str:
    """ "encoder.images.0", "core", "policy", …"""
    first, *rest = name.split(".")
    return ".".join([first, *rest[:2]]) if first == "encoder" else first


def learn_or_refuse(observation: Any, action: Any, *arguments: Any, **options: Any) -> None:
    expected = refusable(observation, action)
    if not expected:
        learn(observation, action, *arguments, **options)
        return
    with pytest.raises(UserError) as refused:
        learn(observation, action, *arguments, **options)
    message = str(refused.value)
    assert "\n" not in message and any(path in message for path in expected), (message, expected)


def examples(number: int, derandomize: bool) -> Any:
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=derandomize,
        database=None,
        phases=[Phase.generate],  # to shrink an example takes longer than to read it
        suppress_health_check=list(HealthCheck),
    )


def check_spaces(layout: str, algorithm: str, chosen: Any) -> None:
    @chosen
    @given(observation=observations, action=actions, agent=agents)
    def check(observation: Any, action: Any, agent: Any) -> None:
        learn_or_refuse(observation, action, layout, algorithm, **agent)

    check()


both_layouts = pytest.mark.parametrize("layout", ["serial", "pool"])
both_algorithms = pytest.mark.parametrize("algorithm", ["ppo", "impala"])


@pytest.mark.timeout(300)
@both_layouts
@both_algorithms
def test_one_update_or_the_name_of_a_leaf(layout, algorithm):
    check_spaces(layout, algorithm, examples(24 if layout == "serial" else 5, derandomize=True))


@pytest.mark.timeout(300)
@both_algorithms
def test_one_update_with_a_mask(algorithm):
    @examples(6, derandomize=True)
    @given(observation=st.dictionaries(st.just("seen"), sound, min_size=1), action=nested(discrete), agent=agents)
    def check(observation: Any, action: Any, agent: Any) -> None:
        learn(spaces.Dict(observation), action, "serial", algorithm, masked=True, **agent)

    check()


@pytest.mark.learning
@pytest.mark.timeout(3600)
@both_layouts
@both_algorithms
def test_one_update_or_the_name_of_a_leaf_again_and_again(layout, algorithm):
    check_spaces(layout, algorithm, examples(200 if layout == "serial" else 30, derandomize=False))


BIT = spaces.Discrete(2)
PAIR = spaces.Tuple((BIT, BIT))


@pytest.mark.parametrize(
    "action",
    [
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([3, 2, 2]),
        spaces.MultiDiscrete([3, 2], start=[-4, 7]),
        spaces.MultiDiscrete([[3, 2, 2], [2, 2, 4]]),
        spaces.MultiDiscrete([[3, 2]], start=[[1, -1]]),
        spaces.MultiBinary(5),
        spaces.MultiBinary((2, 3)),
        spaces.Box(-1, 1, (2,), np.float16),
        spaces.Box(-2, 5, (2, 3), np.float64),
        spaces.Box(0, 1, (), np.float32),
        spaces.Box(0, np.inf, (2,), np.float32),
        spaces.Box(np.array([-np.inf, 2], np.float32), np.array([1, 3], np.float32)),
        spaces.Dict(a=spaces.Tuple((BIT, spaces.Box(-1, 1, (2,)))), b=spaces.Dict(c=spaces.MultiBinary(2), d=PAIR)),
        spaces.Tuple(
            (spaces.Box(3, 5, ()), spaces.Dict(a=spaces.MultiDiscrete([[2, 3]]), b=spaces.Discrete(2, start=4)))
        ),
    ],
    ids=str,
)
@both_algorithms
def test_every_kind_of_action(action, algorithm):
    learn(spaces.Box(-1, 1, (3,)), action, algorithm=algorithm)


@pytest.mark.parametrize(
    "leaf",
    [
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (2,), np.float32),
        spaces.Box(-1, 1, (2, 3, 2), np.float16),
        spaces.Box(-5, 5, (2, 3), np.int64),
        spaces.Box(0, 60_000, (2, 3), np.uint16),
        spaces.Box(0, 1, (0,), np.float32),
        spaces.Box(0, 255, (20, 21), np.uint8),
        spaces.Box(0, 255, (3, 20, 21), np.uint8),
        spaces.Box(0, 255, (20, 21, 3), np.uint8),
        spaces.Box(0, 1, (20, 21, 3), np.float32),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([[3, 2]], start=[[1, -1]]),
        spaces.MultiBinary((2, 3)),
        spaces.Text(8),
    ],
    ids=str,
)
@both_algorithms
def test_every_kind_of_observation(leaf, algorithm):
    learn(spaces.Dict(leaf=leaf, other=spaces.Tuple((BIT,))), BIT, algorithm=algorithm)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        ({"a": SEQUENCE}, {}, "observation space of space_env:SpaceEnv/a is "),
        ({"a": PAIR, "b": spaces.Tuple((BIT, SEQUENCE))}, {}, "observation space of space_env:SpaceEnv/b/1 is "),
        ({"a": NO_IMAGES[0]}, {}, "observation/a is 8×8 pixels, too small"),
        ({"a": NO_IMAGES[1]}, {}, r"observation/a \(box \(20, 20, 20\) uint8 .*channels"),
        ({"a": NO_IMAGES[2]}, {}, r"observation/a \(box \(2, 3, 20, 20\) uint8 .*channels"),
        ({}, {"b": spaces.Text(8)}, "action space of space_env:SpaceEnv/b is text"),
        ({}, {"b": spaces.Box(0, 1, (0,))}, "action b has no entries"),
        ({}, {"b": COUNTS}, "action b: a box of int64 is not supported; use MultiDiscrete"),
        ({}, {"b": PAIR, "c": spaces.Tuple((BIT, COUNTS))}, "action c/1: a box of int64 is not supported"),
    ],
)
def test_refusals(observation, action, message):
    fine = {"z": spaces.Discrete(2)}
    with pytest.raises(UserError, match=message):
        learn(spaces.Dict(observation | fine), spaces.Dict(action | fine))


@both_algorithms
def test_everything_at_once(algorithm):
    observation = spaces.Dict(
        image=spaces.Box(0, 255, (20, 21, 3), np.uint8),
        order=spaces.Text(8),
        rest=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-np.inf, np.inf, (2, 3)), spaces.MultiBinary(2))),
    )
    action = spaces.Tuple(
        (spaces.Discrete(2, start=4), spaces.Dict(a=spaces.Box(3, 5, ()), b=spaces.MultiDiscrete([[2, 3]])))
    )
    learn(observation, action, algorithm=algorithm, core="lstm", last_action_and_reward=True, frame_stack=3)
