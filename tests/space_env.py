"""An env of any spaces, which refuses actions from outside its action space or its mask."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from pronghorn.types import ACTION_MASK


def leaves(space: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """(path, space) of whatever is neither Dict nor Tuple."""
    if isinstance(space, spaces.Dict):
        for key, part in sorted(space.spaces.items()):
            yield from leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaves(part, (*path, str(index)))
    else:
        yield "/".join(path), space


def choices(space: Any) -> list[int]:
    """Of each entry of the discrete parts of a space, how many."""
    found: list[int] = []
    for _, leaf in leaves(space):
        if isinstance(leaf, spaces.Discrete):
            found += [int(leaf.n)]
        elif isinstance(leaf, spaces.MultiDiscrete):
            found += np.ravel(leaf.nvec).tolist()
        elif isinstance(leaf, spaces.MultiBinary):
            found += [2] * int(np.prod(leaf.shape))
    return found


def chosen(space: Any, action: Any) -> list[int]:
    """What of them an action is, counted from 0."""
    found: list[int] = []
    for path, leaf in leaves(space):
        if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            value = action
            for key in path.split("/") if path else []:
                value = value[int(key) if isinstance(value, tuple) else key]
            found += np.ravel(value - getattr(leaf, "start", 0)).tolist()
    return found


class SpaceEnv:
    """Shows samples of ``observation``, drawn from the seed, and never ends. Rewards are standard normal.

    With ``masked``, for a Dict, every entry of a discrete action has a random set of legal choices.
    """

    def __init__(self, observation: Any, action: Any, masked: bool = False) -> None:
        self._shown, self.action_space = copy.deepcopy(observation), action
        self.observation_space = self._shown
        self._choices = choices(action) if masked else []
        self._legal: list[Any] = []
        self._random = np.random.default_rng(0)
        if masked:
            mask = spaces.MultiBinary(sum(self._choices))
            self.observation_space = spaces.Dict({**observation.spaces, ACTION_MASK: mask})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Draws anew."""
        self._random = np.random.default_rng(seed)
        self._shown.seed(seed)
        return self._show(), {}

    def step(self, action: Any) -> Any:
        """Raises ValueError for an action that is not in the space or not legal."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        if self._choices and not all(map(np.ndarray.item, self._legal, chosen(self.action_space, action))):
            raise ValueError(f"{action!r} is illegal")
        return self._show(), self._random.normal(), False, False, {}

    def _show(self) -> Any:
        shown = self._shown.sample()
        if self._choices:
            self._legal = [self._random.random(count) < 0.6 for count in self._choices]
            for legal in self._legal:
                legal[self._random.integers(len(legal))] = True
            shown = {**shown, ACTION_MASK: np.concatenate(self._legal).astype(np.int8)}
        return shown
