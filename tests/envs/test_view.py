"""Spaces there and back, and what a view shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from pronghorn.envs.spaces import leaf_of_space
from pronghorn.envs.view import space_of

INFINITE = spaces.Box(np.array([-np.inf, 0, -1], np.float32), np.array([np.inf, np.inf, 2], np.float32))
SPACES = [
    spaces.Box(-1, 1, (2, 3), np.float32),
    INFINITE,
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(-5, 5, (), np.float64),
    spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3, 4]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 1], [0, -2]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple((INFINITE, spaces.Dict(c=spaces.MultiBinary(2))))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_there_and_back(space: Any) -> None:
    found = space_of(leaf_of_space(space, "space"))
    assert found.contains(space.sample()) and space.contains(found.sample())
    assert found == space


def test_texts_may_be_any() -> None:
    found = space_of(leaf_of_space(spaces.Text(5), "space"))
    assert all(found.contains(text) for text in ("", "Go left, then right!", "x" * 500))
