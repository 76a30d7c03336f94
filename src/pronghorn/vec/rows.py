"""What the serial and the pool layout share: the envs of one process, and the arrays their answers go to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pronghorn import tree
from pronghorn.envs.wrappers import EpisodeEnv, Row
from pronghorn.processes.shared import ArraySpec
from pronghorn.tree import Tree
from pronghorn.types import BoolArray, EnvSpec, IntArray, Leaf, Step
from pronghorn.vec.base import EnvError

Converter = Callable[[Tree], Tree]
"""What ``action_converter`` makes."""

Begin = tuple[int, Tree | None]
"""An episode to begin, and the actions to replay (as sampled, [n, …]; None: none)."""


def rows_layout(spec: EnvSpec, num_envs: int) -> dict[str, Tree]:
    """Arrays with one row per env: the last answer (as in ``Step``), and ``action`` in the env's units."""

    def rows(leaf: Leaf) -> ArraySpec:
        return ArraySpec((num_envs, *leaf.shape), leaf.dtype)

    def scalars(dtype: Any) -> ArraySpec:
        return ArraySpec((num_envs,), np.dtype(dtype))

    return {
        "observation": tree.map(rows, spec.observation),
        "action": tree.map(rows, spec.action),
        "reward": scalars(np.float64),
        "terminated": scalars(np.bool_),
        "truncated": scalars(np.bool_),
        "valid": scalars(np.bool_),
        "over": scalars(np.bool_),
        "first": scalars(np.bool_),
        "episode": scalars(np.int64),
    }


class Host:
    """Some of the envs: takes their actions from ``rows`` and writes their answers there. ``envs`` by row."""

    def __init__(self, envs: Mapping[int, EpisodeEnv], rows: dict[str, Tree], convert: Converter) -> None:
        self._envs = envs
        self._rows = rows
        self._convert = convert
        self._single_action = isinstance(rows["action"], np.ndarray)
        self._observations: list[Any] = tree.leaves(rows["observation"])
        self._begins: dict[int, Begin] = {}

    def expect(self, begins: Mapping[int, Begin]) -> None:
        """The next ``advance`` of these rows begins an episode instead of stepping."""
        self._begins.update(begins)

    def advance(self, row: int) -> None:
        """Steps (or begins) one env."""
        env = self._envs[row]
        if row in self._begins:
            episode, history = self._begins.pop(row)
            answer = env.begin(episode, self._replayed(history))
        else:
            answer = env.step(self._action(row))
        self._write(row, answer)

    def _action(self, row: int) -> Tree:
        # Copies: an env may keep its action, and the row will be overwritten.
        if self._single_action:
            return self._rows["action"][row].copy()
        return tree.map(lambda array: array[row].copy(), self._rows["action"])

    def _replayed(self, history: Tree | None) -> Iterator[Tree]:
        if history is None or not len(tree.leaves(history)[0]):
            return
        actions = self._convert(history)
        for t in range(len(tree.leaves(actions)[0])):
            yield tree.map(lambda array, t=t: array[t].copy(), actions)

    def _write(self, row: int, answer: Row) -> None:
        if len(self._observations) == 1 and isinstance(answer.observation, np.ndarray):
            self._observations[0][row] = answer.observation
        else:
            for array, value in zip(self._observations, tree.leaves(answer.observation), strict=True):
                array[row] = value
        rows = self._rows
        rows["reward"][row] = answer.reward
        rows["terminated"][row] = answer.terminated
        rows["truncated"][row] = answer.truncated
        rows["valid"][row] = answer.valid
        rows["over"][row] = answer.terminated or answer.truncated
        rows["first"][row] = answer.first
        rows["episode"][row] = answer.episode


def write_actions(rows: dict[str, Tree], convert: Converter, actions: Tree, envs: IntArray) -> None:
    """Converts actions [n, …] as sampled and puts them into the rows ``envs``."""
    index = as_index(envs)
    tree.map(lambda array, values: array.__setitem__(index, values), rows["action"], convert(actions))


def read_step(rows: dict[str, Tree], envs: IntArray) -> Step:
    """A copy of the rows ``envs``."""
    index = as_index(envs)
    return Step(
        envs=envs,
        observation=tree.map(lambda array: array[index].copy(), rows["observation"]),
        first=rows["first"][index].copy(),
        reward=rows["reward"][index].copy(),
        terminated=rows["terminated"][index].copy(),
        truncated=rows["truncated"][index].copy(),
        valid=rows["valid"][index].copy(),
        over=rows["over"][index].copy(),
        episode=rows["episode"][index].copy(),
    )


def as_index(envs: IntArray) -> slice | IntArray:
    """``envs`` as an index; a slice, at a fifth of the cost, where they follow one upon the other."""
    found = _slice_of(envs.tobytes())
    return envs if found is None else found


@functools.lru_cache(1024)
def _slice_of(envs: bytes) -> slice | None:
    numbers = np.frombuffer(envs, np.int64)
    first, count = int(numbers[0]) if envs else 0, len(numbers)
    return slice(first, first + count) if np.array_equal(numbers, np.arange(first, first + count)) else None


def split_groups(num_envs: int, groups: int) -> list[IntArray]:
    """Contiguous parts of the env indices, their sizes differing by one at most."""
    return np.array_split(np.arange(num_envs), groups)


def begins(episodes: IntArray, histories: Sequence[Tree] | None) -> dict[int, Begin]:
    """The arguments of ``BatchedEnv.reset``, by env."""
    return {env: (int(episode), histories[env] if histories else None) for env, episode in enumerate(episodes)}


def check_landed(in_flight: BoolArray, envs: IntArray) -> None:
    """Raises ValueError if one of ``envs`` has been sent to and not received from."""
    if in_flight[envs].any():
        raise ValueError(f"envs {envs[in_flight[envs]].tolist()} are in flight: receive them first")


def check_equal(specs: Sequence[EnvSpec], first_index: int) -> None:
    """Raises EnvError unless all envs look the same from outside."""
    expected = specs[0].describe()
    for index, spec in enumerate(specs, first_index):
        found = spec.describe()
        if found != expected:
            key = next(k for k in expected | found if expected.get(k) != found.get(k))
            raise EnvError(
                f"env {index} differs from env {first_index} in {key}: "
                f"{found.get(key, 'absent')} against {expected.get(key, 'absent')}"
            )
