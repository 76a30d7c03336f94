"""An env of any spaces, which refuses actions from outside its action space."""

from __future__ import annotations

import copy
from typing import Any


class SpaceEnv:
    """Shows samples of ``observation``, drawn from the seed, and never ends."""

    def __init__(self, observation: Any, action: Any) -> None:
        self.observation_space, self.action_space = copy.deepcopy(observation), action

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Draws anew."""
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        """Raises ValueError for an action that is not in the space."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        return self.observation_space.sample(), 1.0, False, False, {}
