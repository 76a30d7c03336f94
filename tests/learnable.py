"""Small problems with a known best return, each of which needs what it is named after. Episodes have four steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

LENGTH = 4


class ContextEnv:
    """Shows one of three contexts, the next at each step; ``_reward`` says what an action is worth in it, 1 at most."""

    observation_space: Any = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Draws a context."""
        self._random, self._time = np.random.default_rng(seed), 0
        return self._draw(), {}

    def step(self, action: Any) -> Any:
        """Rewards, and draws the next."""
        reward = self._reward(action)
        self._time += 1
        return self._draw(), reward, self._time == LENGTH, False, {}

    def _draw(self) -> int:
        self._context = int(self._random.integers(3))
        return self._context

    def _reward(self, action: Any) -> float:
        raise NotImplementedError


class MixedEnv(ContextEnv):
    """Two actions at once: the context's number, and a push of 0, 2 or 4 in [-2, 6]; each is worth a half."""

    action_space = spaces.Dict(number=spaces.Discrete(3), push=spaces.Tuple((spaces.Box(-2, 6, (1,), np.float32),)))

    def _reward(self, action: Any) -> float:
        off = abs(float(action["push"][0][0]) - 2 * self._context)
        return 0.5 * (action["number"] == self._context) + 0.5 - 0.25 * off


class FromMinusOneEnv(ContextEnv):
    """Contexts and actions count from -1; the action of the opposite sign is right."""

    observation_space = spaces.Discrete(3, start=-1)
    action_space = spaces.Discrete(3, start=-1)

    def _draw(self) -> int:
        return super()._draw() - 1

    def _reward(self, action: int) -> float:
        return float(action == 1 - self._context)
