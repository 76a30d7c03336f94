"""The newest observations of an env put together, for what a single one does not show: speeds, say."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pronghorn import tree
from pronghorn.envs.base import Env
from pronghorn.envs.images import channels_at, is_image
from pronghorn.envs.wrappers import conform_leaf, leaf_names, nested_like
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, Leaf, UserError


class Stack:
    """The newest ``frames`` observations as one, the oldest first; at the start of an episode its first one repeated.

    Images are put together along their channels, other leaves along their first dimension; without one, along a new
    one. Of texts and the action mask there is only the newest, as it came.

    Args:
        spec: tree of ``Leaf``, of one observation.

    Raises:
        UserError: an image's layout is unclear, or has no room for so many channels; names the leaf.
    """

    spec: Tree
    """Tree of ``Leaf``, of what it makes."""

    def __init__(self, spec: Tree, frames: int) -> None:
        self._single = spec
        self._names = tree.like(spec, leaf_names(spec))
        stacks = [_LeafStack(path, leaf, frames) for path, leaf in tree.named(spec).items()]
        self._stacks = tree.like(spec, stacks)
        self.spec = tree.like(spec, [stack.spec for stack in stacks])

    def __call__(self, observation: Tree, first: bool) -> Tree:
        """Adds an observation as the env gave it; ``first``: it starts an episode, what was before is forgotten.

        Raises:
            ContractError: it is not what ``spec`` says.
        """
        nested = nested_like(self._single, observation)
        return tree.map(lambda name, stack, value: stack(name, value, first), self._names, self._stacks, nested)


class FrameStack:
    """``env``, which shows its newest ``frames`` observations at once: see ``Stack``."""

    def __init__(self, env: Env, frames: int) -> None:
        self._env = env
        self._stack = Stack(env.spec.observation, frames)
        self.spec = dataclasses.replace(env.spec, observation=self._stack.spec)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Starts an episode, and the stack anew."""
        answer: tuple[Tree, dict[str, Any]] = self._stacked(self._env.reset(seed=seed, options=options), first=True)
        return answer

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """Steps the env. A lost life leaves the stack as it is."""
        answer: tuple[Tree, float, bool, bool, dict[str, Any]] = self._stacked(self._env.step(action), first=False)
        return answer

    def close(self) -> None:
        """Closes the env."""
        self._env.close()

    def _stacked(self, answer: Any, first: bool) -> Any:
        if not isinstance(answer, tuple) or not answer:
            return answer  # whoever checks answers will say what is wrong
        return self._stack(answer[0], first), *answer[1:]


class _LeafStack:
    """One leaf of a ``Stack``."""

    def __init__(self, path: str, leaf: Leaf, frames: int) -> None:
        self._leaf, self._frames = leaf, frames
        name = f"observation/{path}".rstrip("/")
        channels = channels_at(leaf, name) if is_image(leaf) else None
        self._axis = -1 if channels == "last" else 0
        self._widened = channels == "none" or not leaf.shape
        self._alone = leaf.kind == "text" or path == ACTION_MASK
        self.spec = leaf if self._alone else self._repeated(name)
        self._held: Any = None

    def __call__(self, name: str, value: Any, first: bool) -> Any:
        """The stack with ``value``; ``name`` as ``leaf_names`` has it."""
        if self._alone:
            return value
        frame = self._frame(conform_leaf(name, self._leaf, value))
        width = frame.shape[self._axis]
        if first:
            self._held = np.concatenate([frame] * self._frames, self._axis)
        else:
            newer = self._held[..., width:] if self._axis else self._held[width:]
            self._held = np.concatenate([newer, frame], self._axis)
        return self._held

    def _frame(self, value: Any) -> Any:
        """As it is put beside others along the axis."""
        return value[np.newaxis] if self._widened else value

    def _repeated(self, name: str) -> Leaf:
        leaf = self._leaf

        def repeat(array: Any) -> Any:
            frame = self._frame(np.broadcast_to(array, leaf.shape))
            return np.concatenate([frame] * self._frames, self._axis)

        shape = repeat(0).shape
        channels = shape[self._axis]
        if is_image(leaf) and channels >= min(shape[:-1] if self._axis else shape[1:]):
            raise UserError(
                f"--frame-stack {self._frames} makes {channels} channels of {name}, which must be fewer than its rows "
                "and columns; stack fewer"
            )
        return dataclasses.replace(
            leaf,
            kind="multi_discrete" if leaf.kind == "discrete" else leaf.kind,
            shape=shape,
            low=None if leaf.low is None else repeat(leaf.low),
            high=None if leaf.high is None else repeat(leaf.high),
            categories=leaf.categories * self._frames,
            start=None if leaf.start is None else repeat(leaf.start),
        )
