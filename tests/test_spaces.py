"""Any spaces under any layout and algorithm: they are learnt in, or refused by the name of a leaf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import rig
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pronghorn.types import UserError

SHAPES = st.sampled_from([(), (2,), (2, 3)])
STARTS = st.integers(-2, 3)

finite_boxes = st.builds(
    lambda shape, dtype, low: spaces.Box(low, low + 2, shape, dtype),
    SHAPES,
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([-1.0, 3.0]),
)
open_boxes = st.builds(
    lambda shape, low, high: spaces.Box(low, high, shape, np.float32),
    SHAPES,
    st.sampled_from([-np.inf, 0.0]),
    st.sampled_from([1.0, np.inf]),
)
integer_boxes = st.sampled_from([spaces.Box(0, 9, (3,), np.int32), spaces.Box(0, 255, (2,), np.uint8)])
choices = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 4), STARTS),
    st.builds(lambda start: spaces.MultiDiscrete([2, 3, 3], start=[start, 0, 1]), STARTS),
    st.sampled_from([spaces.MultiDiscrete([[2, 3], [4, 2]]), spaces.MultiBinary(3), spaces.MultiBinary((2, 2))]),
)
images = st.sampled_from([spaces.Box(0, 255, shape, np.uint8) for shape in ((20, 22), (20, 21, 3), (1, 20, 20))])

NO_IMAGES = [spaces.Box(0, 255, shape, np.uint8) for shape in ((8, 8), (20, 20, 20), (2, 3, 20, 20))]
"""Too small, without a place for channels, with too many dimensions."""

SEQUENCE = spaces.Sequence(spaces.Discrete(2))


def nested(leaves: Any) -> Any:
    """The leaf alone, or in dicts and tuples."""

    def deeper(parts: Any) -> Any:
        dicts = st.dictionaries(st.sampled_from(["a", "b", "c"]), parts, min_size=1, max_size=2).map(spaces.Dict)
        return dicts | st.lists(parts, min_size=1, max_size=2).map(lambda found: spaces.Tuple(found))

    return st.recursive(leaves, deeper, max_leaves=4)


sound = finite_boxes | open_boxes | integer_boxes | choices | images | st.just(spaces.Text(8))
observations = nested(sound | sound | st.sampled_from([*NO_IMAGES, SEQUENCE]))
actions = nested(finite_boxes | choices | choices | st.sampled_from([spaces.Text(8), spaces.Box(0, 3, (2,), np.int64)]))


def leaves(space: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    parts = (
        space.spaces.items()
        if isinstance(space, spaces.Dict)
        else enumerate(space.spaces)
        if isinstance(space, spaces.Tuple)
        else ()
    )
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield "/".join(path), space
    for key, part in parts:
        yield from leaves(part, (*path, str(key)))


def refusable(observation: Any, action: Any) -> list[str]:
    """Paths of the leaves that cannot be learnt in."""
    seen = [path for path, leaf in leaves(observation) if leaf in [*NO_IMAGES, SEQUENCE]]
    done = [
        path
        for path, leaf in leaves(action)
        if isinstance(leaf, spaces.Text) or (isinstance(leaf, spaces.Box) and leaf.dtype.kind != "f")
    ]
    return seen + done


def learn(observation: Any, action: Any, layout: str, algorithm: str) -> None:
    """One update, from rows all of which took effect."""
    options = {"epochs": 1, "minibatches": 1} if algorithm == "ppo" else {}
    made = rig.config(
        "space_env:SpaceEnv",
        algorithm,
        env_args={"observation": observation, "action": action},
        layout=layout,
        num_envs=2,
        unroll_length=3,
        layers=(4,),
        image_encoder="shallow",
        **options,
    )
    with rig.parts(made) as (actor, learner):
        names = [name for name, _ in learner.agent.named_parameters()]
        before = learner.weights()
        batch = actor.collect()
        assert batch.valid.all()  # every action was in its space
        metrics = learner.update(batch, 0.0)
        after = learner.weights()
    assert all(np.isfinite(value) for value in metrics.values()) and learner.version == 1
    assert all(torch.isfinite(after[name]).all() for name in names)
    assert any(not torch.equal(before[name], after[name]) for name in names)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["serial", "pool"])
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # to shrink an example takes longer than to read it
    suppress_health_check=[HealthCheck.too_slow],
)
@given(observation=observations, action=actions)
def test_one_update_or_the_name_of_a_leaf(layout: str, algorithm: str, observation: Any, action: Any) -> None:
    expected = refusable(observation, action)
    if not expected:
        learn(observation, action, layout, algorithm)
        return
    with pytest.raises(UserError) as refused:
        learn(observation, action, layout, algorithm)
    message = str(refused.value)
    assert "\n" not in message and any(path in message for path in expected), (message, expected)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        ({"a": SEQUENCE}, {}, "observation space of space_env:SpaceEnv/a is "),
        ({"a": NO_IMAGES[0]}, {}, "observation/a is 8×8 pixels, too small"),
        ({"a": NO_IMAGES[1]}, {}, r"observation/a \(box \(20, 20, 20\) uint8 .*channels"),
        ({"a": NO_IMAGES[2]}, {}, r"observation/a \(box \(2, 3, 20, 20\) uint8 .*channels"),
        ({}, {"b": spaces.Text(8)}, "action space of space_env:SpaceEnv/b is text"),
        ({}, {"b": spaces.Box(0, 3, (2,), np.int64)}, "action b: a box of int64 is not supported; use MultiDiscrete"),
    ],
)
def test_refusals(observation: Any, action: Any, message: str) -> None:
    fine = {"z": spaces.Discrete(2)}
    with pytest.raises(UserError, match=message):
        learn(spaces.Dict(observation | fine), spaces.Dict(action | fine), "serial", "ppo")


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_everything_at_once(algorithm: str) -> None:
    observation = spaces.Dict(
        image=spaces.Box(0, 255, (20, 21, 3), np.uint8),
        order=spaces.Text(8),
        rest=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-np.inf, np.inf, (2, 3)), spaces.MultiBinary(2))),
    )
    action = spaces.Tuple(
        (spaces.Discrete(2, start=4), spaces.Dict(a=spaces.Box(3, 5, ()), b=spaces.MultiDiscrete([[2, 3]])))
    )
    learn(observation, action, "serial", algorithm)
