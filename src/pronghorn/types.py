"""The shapes everything else agrees on: specs of spaces, ``Step``, and the row of a ``Trajectory``.

NumPy only: env workers import this module.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pronghorn import tree
from pronghorn.tree import Tree

BoolArray: TypeAlias = NDArray[np.bool_]
IntArray: TypeAlias = NDArray[np.int64]
Metrics: TypeAlias = dict[str, float]

ACTION_MASK = "action_mask"
"""A top-level key of a Dict observation with this name holds the mask of legal actions (1 legal, 0 not)."""


class UserError(Exception):
    """A mistake of the user's: one line that says what is wrong, where, and what to do. The process exits with 2."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """One leaf of an observation or action space.

    ``kind`` "box": reals or integers of ``shape`` within ``low``, ``high`` (arrays of ``shape``, float64, may be
    infinite). "discrete": ``categories`` is ``(n,)``, shape ``()``. "multi_discrete": ``categories`` holds n per
    entry of the flattened shape. "multi_binary": as multi_discrete with two categories everywhere.
    "text", only observed: numbers of words, below ``categories`` ``(n,)``, 0 where there is none; see ``envs.text``.
    ``start`` is the first value of a discrete kind (an array of ``shape``): the env's value is index + start.
    """

    kind: Literal["box", "discrete", "multi_discrete", "multi_binary", "text"]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
    categories: tuple[int, ...] = ()
    start: NDArray[np.int64] | None = None

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))

    def describe(self) -> str:
        """A line that identifies the leaf; equal leaves have equal descriptions."""
        if self.kind == "box":
            assert self.low is not None and self.high is not None
            bounds = f"[{self.low.min():g}, {self.high.max():g}]" if self.size else "[]"
            return f"box {self.shape} {self.dtype} {bounds}"
        origin = "" if self.start is None or not np.any(self.start) else f" from {self.start.tolist()}"
        return f"{self.kind} {self.shape} {self.dtype} of {list(self.categories)}{origin}"


@dataclass(frozen=True, eq=False)
class EnvSpec:
    """What an env looks like from outside. ``observation`` and ``action`` are trees of ``Leaf``.

    Raises:
        UserError: an action is text, naming it.
    """

    name: str
    observation: Tree
    action: Tree
    action_repeat: int = 1
    max_episode_steps: int | None = None
    seedable: bool = True
    """Whether ``reset(seed)`` and the same actions restore an episode."""

    def __post_init__(self) -> None:
        for path, leaf in tree.named(self.action).items():
            if leaf.kind == "text":
                where = f"action space of {self.name}/{path}".rstrip("/")
                raise UserError(f"{where} is text, which can only be observed; number the texts in a Discrete")

    def describe(self) -> dict[str, str]:
        """Description per leaf, for checkpoints: ``{"observation/…": …, "action/…": …}``."""
        described = {}
        for part, leaf_tree in (("observation", self.observation), ("action", self.action)):
            for path, leaf in tree.named(leaf_tree).items():
                described[f"{part}/{path}".rstrip("/")] = leaf.describe()
        return described


@dataclass
class Step:
    """What some envs answer: one entry per env in ``envs`` (leading dimension n). The receiver owns the arrays.

    ``observation`` is the newest; ``first`` marks one that starts an episode, ``episode`` is the number of its
    episode (0, 1, … per env). ``reward`` (raw, float64), ``terminated`` and ``truncated`` are what the action sent
    last has caused; ``valid`` says that it took effect and its successor is known. ``over`` says that the whole episode
    has ended, so that the next action will be ignored; a lost life is ``terminated`` without ``over``. An entry with
    ``first`` is never valid: it answers a reset, the ignored action after ``over``, or follows a crash.
    """

    envs: IntArray
    observation: Tree
    first: BoolArray
    reward: NDArray[np.float64]
    terminated: BoolArray
    truncated: BoolArray
    valid: BoolArray
    over: BoolArray
    episode: IntArray

    @property
    def ended(self) -> BoolArray:
        """Terminated, truncated, or both: the recursion of returns is cut here."""
        return self.terminated | self.truncated


@dataclass
class Trajectory:
    """A batch of B columns of T rows, time-major. Arrays or tensors. docs/row.md says how episodes end in it.

    Row t is what the agent saw, what it did, and what that caused. ``observation`` and ``first`` have T+1 rows.
    """

    observation: Tree  # [T+1, B, …], native dtype, not normalised
    first: Any  # [T+1, B] bool: the observation starts an episode
    action: Tree  # [T, B, …] as sampled, never clipped
    behaviour: Any  # [T, B, P] float32: parameters of the distribution the action came from
    behaviour_log_prob: Any  # [T, B] float32
    reward: Any  # [T, B] float32, raw
    terminated: Any  # [T, B] bool
    truncated: Any  # [T, B] bool
    valid: Any  # [T, B] bool: the action took effect and its successor is known
    policy_version: Any  # [T, B] int64
    episode_return: Any  # [T, B] float32: raw total on the row that ends an episode, else 0
    episode_length: Any  # [T, B] int64: likewise
    core_state: Tree  # [B, …] carried into row 0
    last_action: Tree  # [B, …] carried into row 0, zero where first
    last_reward: Any  # [B] float32, likewise
    env: Any  # [B] int64: index over the whole run
    task: Any  # [B] int64: index into the list of tasks
    replayed: Any  # [B] bool: learnt from before; actors write False

    @property
    def ended(self) -> Any:
        """[T, B] bool: terminated, truncated, or both."""
        return self.terminated | self.truncated

    @property
    def fresh(self) -> Any:
        """[T, B] bool: valid and not replayed. These alone count as steps and enter statistics."""
        return self.valid & ~self.replayed

    def map(self, function: Callable[[Any], Any]) -> Trajectory:
        """Applies ``function`` to every array."""
        values = {field.name: tree.map(function, getattr(self, field.name)) for field in dataclasses.fields(self)}
        return Trajectory(**values)


@dataclass(frozen=True)
class Slot:
    """Shape and dtype of one array of a column; ``rows`` is T, T+1, or 0 for what is kept once per column."""

    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes in one column."""
        return max(self.rows, 1) * math.prod(self.shape) * self.dtype.itemsize


def action_dtype(leaf: Leaf) -> np.dtype[Any]:
    """Of an action as the agent samples it: float32 for box leaves, int64 indices for discrete ones."""
    return np.dtype(np.float32 if leaf.kind == "box" else np.int64)


def column_slots(spec: EnvSpec, unroll_length: int, behaviour_size: int, core_state: Tree) -> dict[str, Tree]:
    """The row, written once: a ``Slot`` for each array of a column, keyed as the fields of ``Trajectory``.

    ``core_state`` is a tree of arrays for one env (no batch dimension).
    """
    steps = unroll_length

    def slot(rows: int, shape: tuple[int, ...], dtype: Any) -> Slot:
        return Slot(rows, shape, np.dtype(dtype))

    def actions(rows: int) -> Tree:
        return tree.map(lambda leaf: slot(rows, leaf.shape, action_dtype(leaf)), spec.action)

    return {
        "observation": tree.map(lambda leaf: slot(steps + 1, leaf.shape, leaf.dtype), spec.observation),
        "first": slot(steps + 1, (), np.bool_),
        "action": actions(steps),
        "behaviour": slot(steps, (behaviour_size,), np.float32),
        "behaviour_log_prob": slot(steps, (), np.float32),
        "reward": slot(steps, (), np.float32),
        "terminated": slot(steps, (), np.bool_),
        "truncated": slot(steps, (), np.bool_),
        "valid": slot(steps, (), np.bool_),
        "policy_version": slot(steps, (), np.int64),
        "episode_return": slot(steps, (), np.float32),
        "episode_length": slot(steps, (), np.int64),
        "core_state": tree.map(lambda array: slot(0, array.shape, array.dtype), core_state),
        "last_action": actions(0),
        "last_reward": slot(0, (), np.float32),
        "env": slot(0, (), np.int64),
        "task": slot(0, (), np.int64),
        "replayed": slot(0, (), np.bool_),
    }
