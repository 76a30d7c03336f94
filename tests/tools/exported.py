"""Envs of many spaces, to export policies for: what they show is drawn from the space, and they insist on theirs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

IMAGE = Box(0, 255, (36, 40, 3), np.uint8)
VECTOR = Box(-np.inf, np.inf, (3,), np.float64)
SPACES = {
    "vector": (VECTOR, Box(np.float32([-2, 0]), np.float32([2, 1000]), dtype=np.float32)),
    "unbounded": (VECTOR, Box(np.float32([-np.inf, -1]), np.float32([np.inf, np.inf]), dtype=np.float32)),
    "choice": (Dict({"number": Discrete(4, start=2), "vector": VECTOR}), Discrete(5, start=-3)),
    "image": (IMAGE, Discrete(4)),
    "grey": (Box(0, 255, (2, 36, 40), np.uint8), Discrete(4)),
    "told": (Dict({"order": Text(40, charset="ab "), "number": Discrete(3)}), Discrete(5)),
    "masked": (Dict({"action_mask": MultiBinary(7), "seen": VECTOR}), MultiDiscrete([3, 4])),
    "nested": (
        Dict(
            {
                "camera": Dict({"left/wide": IMAGE, "right": IMAGE}),
                "joints": Tuple((VECTOR, Box(-1, 1, (2, 2), np.float32), Box(0, 9, (2,), np.int16))),
                "touch": MultiBinary((2, 3)),
            }
        ),
        Dict({"arm": Tuple((Box(-1, 1, (2, 2), np.float32), MultiDiscrete([2, 3, 3]))), "grip": Discrete(2, start=1)}),
    ),
}


class Shown(gymnasium.Env):
    """``spaces`` is a key of ``SPACES``. Rewards are drawn too; episodes last four steps."""

    def __init__(self, spaces: str) -> None:
        self.observation_space, self.action_space = SPACES[spaces]
        self._random = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        self._random = np.random.default_rng(seed)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._step += 1
        return self._draw(), float(self._random.normal(0, 2)), self._step == 4, False, {}

    def _draw(self) -> Any:
        observation = self.observation_space.sample()
        if isinstance(observation, dict) and "action_mask" in observation:
            observation["action_mask"][[0, 3]] = 1
        if (
            self.observation_space.dtype == np.uint8
        ):  # light begins and ends somewhere, so that images can be told apart
            start, end = np.sort(self._random.integers(0, 36, 2))
            observation[:, :start], observation[:, end:] = 0, 0
        return observation
