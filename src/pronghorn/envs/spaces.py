"""Gymnasium's spaces as trees of ``Leaf``. Gymnasium is imported when a space is looked at."""

from __future__ import annotations

from typing import Any

import numpy as np

from pronghorn.envs.text import text_leaf
from pronghorn.tree import Tree
from pronghorn.types import Leaf, UserError


def leaf_of_space(space: Any, path: str) -> Tree:
    """The tree of ``Leaf`` that describes a gymnasium space.

    Raises:
        UserError: a part of it is of an unsupported kind; ``path`` and the keys below it say which.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {key: leaf_of_space(part, f"{path}/{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(leaf_of_space(part, f"{path}/{index}") for index, part in enumerate(space.spaces))
    if isinstance(space, spaces.Box):
        low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
        return Leaf("box", tuple(space.shape), np.dtype(space.dtype), low=low, high=high)
    if isinstance(space, spaces.Discrete):
        return Leaf("discrete", (), np.dtype(space.dtype), categories=(int(space.n),), start=_start(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        categories = tuple(int(n) for n in np.ravel(space.nvec))
        start = _start(getattr(space, "start", 0))
        return Leaf(
            "multi_discrete", tuple(space.nvec.shape), np.dtype(space.dtype), categories=categories, start=start
        )
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(int(n) for n in space.shape)
        return Leaf("multi_binary", shape, np.dtype(space.dtype), categories=(2,) * int(np.prod(shape)))
    if isinstance(space, spaces.Text):
        return text_leaf()
    raise UserError(
        f"{path} is {type(space).__module__}.{type(space).__qualname__}, which is not supported; "
        "use gymnasium's Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict or Tuple"
    )


def _start(start: Any) -> Any:
    array = np.asarray(start, np.int64)
    return array if np.any(array) else None
