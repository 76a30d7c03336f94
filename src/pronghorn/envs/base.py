"""The protocol of one env, and the way of an action from the agent's units to the simulator's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from pronghorn import tree
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, Leaf


class ContractError(ValueError):
    """What an env answered is not what an env may answer: a mistake of whoever wrote it."""


class Env(Protocol):
    """One simulator that speaks Gymnasium 1.x, with its spec. ``EpisodeEnv`` holds its answers to the spec.

    One that can be drawn also has ``render()``, a picture [height, width, 3] uint8 of where it stands, and
    ``render_fps``, pictures a second at its natural speed, if one is taken after every step.
    """

    spec: EnvSpec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Starts an episode: (observation, info)."""

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """One agent step: (observation, reward, terminated, truncated, info). ``action`` is in the env's own units.

        ``info["episode_over"] = False`` beside ``terminated`` says that the episode goes on: a life was lost.
        """

    def close(self) -> None:
        """Frees the simulator. May be called twice."""


EnvFactory: TypeAlias = Callable[[], Env]
"""Makes a new env; picklable by cloudpickle, called in the process where the env lives."""


def to_env_actions(spec: Tree, actions: Tree) -> Tree:
    """Batched actions [n, …] as sampled → in the env's units, dtype and bounds.

    Box leaves with two finite bounds: the agent's [-1, 1] is clipped, then mapped to [low, high]. Other box entries
    pass unscaled, clipped to whatever bound is finite. Discrete leaves: index + start.
    """
    return action_converter(spec)(actions)


def action_converter(spec: Tree) -> Callable[[Tree], Tree]:
    """``to_env_actions`` for one ``spec``, with all that depends on it worked out beforehand."""
    if isinstance(spec, Leaf):
        return _leaf_converter(spec)
    converters = tree.map(_leaf_converter, spec)
    return lambda actions: tree.map(lambda convert, action: convert(action), converters, actions)


def unbatch(spec: Tree, actions: Tree) -> list[Tree]:
    """Actions [n, …] in the env's units as n actions, each as its env likes it: a discrete one is a Python int.

    The arrays are views: an env may keep its action if nobody writes into ``actions`` any more.
    """
    if isinstance(spec, Leaf):
        if spec.kind == "discrete":
            return list(actions.tolist())
        return list(actions) if spec.shape else [actions[number, ...] for number in range(len(actions))]
    parts = [unbatch(leaf, array) for leaf, array in zip(tree.leaves(spec), tree.leaves(actions), strict=True)]
    return [tree.like(spec, list(values)) for values in zip(*parts, strict=True)]


def _leaf_converter(leaf: Leaf) -> Callable[[Any], Any]:
    if leaf.kind != "box":
        return lambda action: (action if leaf.start is None else action + leaf.start).astype(leaf.dtype)
    assert leaf.low is not None and leaf.high is not None
    low, high, dtype = leaf.low, leaf.high, leaf.dtype
    if (low == -1).all() and (high == 1).all() and dtype.kind == "f":
        return lambda action: np.minimum(np.maximum(action, -1.0), 1.0).astype(dtype, copy=False)
    finite = np.isfinite(low) & np.isfinite(high)
    least, most = np.where(finite, -1.0, low), np.where(finite, 1.0, high)
    origin, scale = np.where(finite, low, 0.0), np.where(finite, high, 0.0) - np.where(finite, low, 0.0)

    def convert(action: Any) -> Any:
        clipped = np.minimum(np.maximum(action, least), most)
        value = np.where(finite, origin + (clipped + 1.0) * 0.5 * scale, clipped)
        if dtype.kind in "iu":
            value = np.rint(value)
        return np.clip(value.astype(dtype), low, high).astype(dtype)

    return convert
