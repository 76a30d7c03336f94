"""One of our envs as a ``gymnasium.Env``, for whoever wants to look at it. Gymnasium is imported when that is asked."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import numpy as np

from pronghorn import tree
from pronghorn.envs.base import Env
from pronghorn.tree import Tree
from pronghorn.types import Leaf, UserError

if TYPE_CHECKING:
    import gymnasium

LONGEST_TEXT = 10_000
"""Characters of a text in its space; our spec does not say how many an env may use."""


def as_gymnasium(env: Env) -> gymnasium.Env[Any, Any]:
    """``env`` as a ``gymnasium.Env``: observations have the structure and dtypes that training sees, texts stay texts,
    actions are in the env's own units. A lost life is no end, but ``info["life_lost"]``.

    ``render`` is that of the simulator, where it has one.
    """
    import gymnasium

    spec, simulator = env.spec, getattr(env, "simulator", None)

    class View(gymnasium.Env[Any, Any]):
        metadata = getattr(simulator, "metadata", {})
        render_mode = getattr(simulator, "render_mode", None)
        observation_space = space_of(spec.observation)
        action_space = space_of(spec.action)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            observation, info = env.reset(seed=seed, options=options)
            return _seen(spec.observation, observation), info

        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = env.step(action)
            lost = bool(terminated) and not info.get("episode_over", True)
            shown = {**info, "life_lost": True} if lost else info
            seen = _seen(spec.observation, observation)
            return seen, float(reward), bool(terminated) and not lost, bool(truncated), shown

        def render(self) -> Any:
            if simulator is None or not hasattr(simulator, "render"):
                raise UserError(f"{spec.name} has nothing to render")
            return simulator.render()

        def close(self) -> None:
            env.close()

    return View()


def space_of(spec: Tree) -> Any:
    """The gymnasium space that a tree of ``Leaf`` describes: the inverse of ``spaces.leaf_of_space``."""
    from gymnasium import spaces

    if isinstance(spec, dict):
        return spaces.Dict({key: space_of(part) for key, part in spec.items()})
    if isinstance(spec, tuple):
        return spaces.Tuple([space_of(part) for part in spec])
    leaf: Leaf = spec
    if leaf.kind == "box":
        assert leaf.low is not None and leaf.high is not None
        dtype: Any = leaf.dtype.type
        return spaces.Box(_within(leaf.low, leaf.dtype), _within(leaf.high, leaf.dtype), leaf.shape, dtype)
    if leaf.kind == "discrete":
        return spaces.Discrete(leaf.categories[0], start=0 if leaf.start is None else int(leaf.start))
    if leaf.kind == "multi_discrete":
        counts = np.reshape(leaf.categories, leaf.shape)
        return spaces.MultiDiscrete(counts, start=np.zeros_like(counts) if leaf.start is None else leaf.start)
    if leaf.kind == "multi_binary":
        return spaces.MultiBinary(leaf.shape[0] if len(leaf.shape) == 1 else leaf.shape)
    return spaces.Text(LONGEST_TEXT, min_length=0, charset=string.printable)


def _within(bound: Any, dtype: np.dtype[Any]) -> Any:
    """Bounds in the dtype of the space, where float64 can say what it cannot hold."""
    if dtype.kind == "f":
        return bound.astype(dtype)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    return bound.astype(dtype) if limits is None else np.clip(bound, limits.min, limits.max).astype(dtype)


def _seen(spec: Tree, observation: Tree) -> Tree:
    def cast(leaf: Leaf, value: Any) -> Any:
        return value if leaf.kind == "text" else np.asarray(value, leaf.dtype)

    return tree.map(cast, spec, tree.conform(spec, observation))
