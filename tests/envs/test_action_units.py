import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronghorn.envs.base import action_converter, to_env_actions
from pronghorn.types import Leaf


def box(low, high, dtype=np.float32):
    low, high = np.broadcast_arrays(np.asarray(low, np.float64), np.asarray(high, np.float64))
    return Leaf("box", low.shape, np.dtype(dtype), low=low, high=high)


def test_box_by_hand():
    leaf = box([0, -10, -np.inf, -1], [4, 10, 2, np.inf])
    actions = np.array([[0, 0.5, 1.5, 7], [-1, 3, 9, -9], [np.float32(0.25), -1, -5, 0]], np.float32)
    expected = [[2, 5, 1.5, 7], [0, 10, 2, -1], [2.5, -10, -5, 0]]
    converted = to_env_actions(leaf, actions)
    assert converted.dtype == np.float32
    np.testing.assert_array_equal(converted, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_agents_own_range_is_only_clipped(dtype):
    actions = np.array([[1e-9, -0.3], [1.5, -np.inf]], np.float32)
    converted = to_env_actions(box([-1, -1], [1, 1], dtype), actions)
    assert converted.dtype == dtype
    np.testing.assert_array_equal(converted, np.array([[1e-9, -0.3], [1, -1]], np.float32))


@given(
    st.floats(-1e6, 1e6, width=32),
    st.floats(0, 1e6, width=32),
    st.floats(width=32, allow_nan=False),
    st.sampled_from([np.float32, np.float64, np.int32]),
)
def test_never_outside_the_bounds(low, span, action, dtype):
    high = np.float32(low + span)
    low, high = (np.rint(low), np.rint(high)) if dtype == np.int32 else (low, high)
    leaf = box([low], [high], dtype)
    value = to_env_actions(leaf, np.array([[action]], np.float32))[0, 0]
    assert low <= value <= high
    assert value.dtype == dtype


def test_discrete_leaves_and_nesting():
    spec = {
        "a": Leaf("discrete", (), np.dtype(np.int64), categories=(3,), start=np.array(-1)),
        "b": (Leaf("multi_binary", (2,), np.dtype(np.int8), categories=(2, 2)),),
    }
    actions = {"a": np.array([0, 2]), "b": (np.array([[0, 1], [1, 1]]),)}
    converted = action_converter(spec)(actions)
    assert converted["a"].tolist() == [-1, 1]
    assert converted["b"][0].dtype == np.int8 and converted["b"][0].tolist() == [[0, 1], [1, 1]]
