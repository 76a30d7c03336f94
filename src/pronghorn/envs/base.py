"""The protocol of one env, and the way of an action from the agent's units to the simulator's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from pronghorn import tree
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, Leaf


class Env(Protocol):
    """One simulator that speaks Gymnasium 1.x, with its spec. Observations conform to ``spec.observation``."""

    spec: EnvSpec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Starts an episode: (observation, info)."""

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """One agent step: (observation, reward, terminated, truncated, info). ``action`` is in the env's own units."""

    def close(self) -> None:
        """Frees the simulator. May be called twice."""


EnvFactory: TypeAlias = Callable[[], Env]
"""Makes a new env; picklable by cloudpickle, called in the process where the env lives."""


def to_env_actions(spec: Tree, actions: Tree) -> Tree:
    """Batched actions [n, …] as sampled → in the env's units, dtype and bounds.

    Box leaves with two finite bounds: the agent's [-1, 1] is clipped, then mapped to [low, high]. Other box entries
    pass unscaled, clipped to whatever bound is finite. Discrete leaves: index + start.
    """

    def convert(leaf: Leaf, action: Any) -> Any:
        if leaf.kind != "box":
            return (action + leaf.start if leaf.start is not None else action).astype(leaf.dtype)
        assert leaf.low is not None and leaf.high is not None
        finite = np.isfinite(leaf.low) & np.isfinite(leaf.high)
        low, high = np.where(finite, leaf.low, 0.0), np.where(finite, leaf.high, 0.0)
        scaled = low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
        value = np.where(finite, scaled, np.clip(action, leaf.low, leaf.high))
        if np.issubdtype(leaf.dtype, np.integer):
            value = np.rint(value)
        return np.clip(value.astype(leaf.dtype), leaf.low, leaf.high).astype(leaf.dtype)

    return tree.map(convert, spec, actions)
