"""Small problems with a known best return, each of which needs what it is named after. Episodes have four steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from pronghorn.envs.probes import ImageBanditEnv

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


class ImageAndVectorEnv:
    """Reward 1 for the action that names the bright quadrant and, with 4 added, the bit, a number beside the image.

    The best return is 4, with the image alone 2, with the bit alone 1.
    """

    action_space = spaces.Discrete(8)

    def __init__(self) -> None:
        self._images = ImageBanditEnv(side=20, length=LENGTH)
        self._random, self._bit = np.random.default_rng(0), 0
        self.observation_space = spaces.Dict(
            bit=spaces.Box(0, 1, (1,), np.float32), image=spaces.Box(0, 255, (1, 20, 20), np.uint8)
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Draws image and bit."""
        self._random = np.random.default_rng([seed or 0, 1])  # not the image's numbers: they would tell the bit
        image, info = self._images.reset(seed=seed)
        return self._seen(image), info

    def step(self, action: int) -> Any:
        """Rewards, and draws the next."""
        bit, quadrant = divmod(action, 4)
        right = bit == self._bit
        image, reward, *rest = self._images.step(quadrant)
        return self._seen(image), reward * right, *rest

    def _seen(self, image: Any) -> Any:
        self._bit = int(self._random.integers(2))
        return {"bit": np.full(1, self._bit, np.float32), "image": image}
