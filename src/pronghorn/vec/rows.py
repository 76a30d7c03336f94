"""What the serial and the pool layout share: the envs of one process, and the arrays their answers go to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pronghorn import tree
from pronghorn.envs.base import unbatch
from pronghorn.envs.wrappers import EpisodeEnv, difference, leaf_names
from pronghorn.processes.shared import ArraySpec
from pronghorn.processes.supervise import Incident, Supervisor
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, BoolArray, EnvSpec, IntArray, Leaf, Step
from pronghorn.vec.base import FLAGS, EnvError

Converter = Callable[[Tree], Tree]
"""What ``action_converter`` makes."""

Begin = tuple[int, Tree | None]
"""An episode to begin, and the actions to replay (as sampled, [n, …]; None: none)."""

ORDINARY = np.array([[name == "valid"] for name in FLAGS])
"""Flags [5, 1] of a step at which nothing happens."""


def rows_layout(spec: EnvSpec, num_envs: int) -> dict[str, Tree]:
    """Arrays with one row per env: the last answer (as in ``Step``; ``flags`` is [flag, env]), ``action`` in the env's
    units, and ``episode``, the one that was begun last."""

    def rows(leaf: Leaf) -> ArraySpec:
        return ArraySpec((num_envs, *leaf.shape), leaf.dtype)

    return {
        "observation": tree.map(rows, spec.observation),
        "action": tree.map(rows, spec.action),
        "reward": ArraySpec((num_envs,), np.dtype(np.float64)),
        "flags": ArraySpec((len(FLAGS), num_envs), np.dtype(np.bool_)),
        "episode": ArraySpec((num_envs,), np.dtype(np.int64)),
    }


def own_rows(spec: EnvSpec, num_envs: int) -> dict[str, Tree]:
    """The same arrays in memory of this process, as zeros."""
    layout = rows_layout(spec, num_envs)
    return {name: tree.map(lambda array: np.zeros(array.shape, array.dtype), part) for name, part in layout.items()}


def permitted(supervisor: Supervisor, incident: Incident, cause: BaseException | None = None) -> float:
    """Seconds to wait before what failed is started again. Raises EnvError, from ``cause``, where it must not be."""
    pause = supervisor.permit(incident)
    if pause is None:
        trace = f"\n{incident.trace}" if incident.trace else ""
        raise EnvError(f"{incident.cause} {supervisor.verdict}{trace}", incident.env, incident.phase) from cause
    return pause


class Host:
    """Some of the envs: takes their actions from ``rows`` and lets them write their answers there.

    Args:
        envs: by row.
        rows: arrays of ``rows_layout``.
        convert: actions as sampled → in the env's units, for replays.
        spec: of all the envs.
        permit: is asked, with the error, whether an env that failed may be built anew; if not, it raises.
    """

    def __init__(
        self,
        envs: Mapping[int, EpisodeEnv],
        rows: dict[str, Tree],
        convert: Converter,
        spec: EnvSpec,
        permit: Callable[[EnvError], None],
    ) -> None:
        self._envs, self._convert, self._permit, self._spec = envs, convert, permit, spec
        self._actions, self._flags = rows["action"], rows["flags"]
        observations = zip(leaf_names(spec.observation), tree.leaves(rows["observation"]), strict=True)
        named = [("reward", rows["reward"]), *((f"observation{name}", array) for name, array in observations)]
        self._reals: list[tuple[str, NDArray[Any]]] = [item for item in named if item[1].dtype.kind == "f"]
        self._choices = list(_choices(spec.observation, rows["observation"]))
        self._begins: dict[int, Begin] = {}
        for row, env in envs.items():
            env.attach(rows, row)

    def expect(self, begins: Mapping[int, Begin]) -> None:
        """The next ``advance`` of these rows begins an episode instead of stepping."""
        self._begins.update(begins)

    def advance(self, envs: IntArray) -> None:
        """Steps (or begins) the envs in these rows."""
        index = as_index(envs)
        self._flags[:, index] = ORDINARY
        actions = unbatch(self._spec.action, tree.map(lambda array: array[index].copy(), self._actions))
        for row, action in zip(envs.tolist(), actions, strict=True):
            env = self._envs[row]
            try:
                if self._begins and row in self._begins:
                    episode, history = self._begins.pop(row)
                    env.begin(episode, self._replayed(history))
                else:
                    env.step(action)
            except EnvError as error:
                self._rebuild(env, error)
        for name, array in self._reals:
            finite = np.isfinite(array[index])
            if not finite.all():
                raise self._envs[_first_without(finite, envs)].refuse(f"{name} is not finite")
        for name, leaf, array, least, most in self._choices:
            inside = (array[index] >= least) & (array[index] <= most)
            if not inside.all():
                row = _first_without(inside, envs)
                raise self._envs[row].refuse(f"{name} is {array[row].tolist()}, outside its space, {leaf.describe()}")

    def _rebuild(self, env: EpisodeEnv, error: EnvError) -> None:
        while True:
            self._permit(error)
            try:
                return env.rebuild()
            except EnvError as again:
                error = again

    def _replayed(self, history: Tree | None) -> Iterable[Tree]:
        if history is None or not len(tree.leaves(history)[0]):
            return ()
        return unbatch(self._spec.action, self._convert(history))


def _choices(spec: Tree, arrays: Tree) -> Iterator[tuple[str, Leaf, NDArray[Any], Any, Any]]:
    """Name, leaf, array, least and largest value of each discrete observation but the mask, in which all is allowed."""
    for name, leaf, array in zip(leaf_names(spec), tree.leaves(spec), tree.leaves(arrays), strict=True):
        if leaf.kind not in ("box", "text") and name != f" {ACTION_MASK!r}":
            least = 0 if leaf.start is None else leaf.start
            yield f"observation{name}", leaf, array, least, least + np.reshape(leaf.categories, leaf.shape) - 1


def _first_without(kept: BoolArray, envs: IntArray) -> int:
    """The first of ``envs`` [n] for which not all of ``kept`` [n, …] holds."""
    return int(envs[~kept.reshape(len(envs), -1).all(axis=1)][0])


def construct(make: Callable[[], EpisodeEnv], permit: Callable[[EnvError], None]) -> EpisodeEnv:
    """Makes an env, and again where it fails, as often as ``permit`` allows."""
    while True:
        try:
            return make()
        except EnvError as error:
            permit(error)


def write_actions(rows: dict[str, Tree], convert: Converter, actions: Tree, index: slice | IntArray) -> None:
    """Converts actions [n, …] as sampled and puts them into their rows."""
    converted = convert(actions)
    if type(converted) is np.ndarray:
        rows["action"][index] = converted
    else:
        tree.map(lambda array, values: array.__setitem__(index, values), rows["action"], converted)


def read_step(rows: dict[str, Tree], envs: IntArray, index: slice | IntArray) -> Step:
    """A copy of the rows ``envs``; ``index`` selects them."""
    terminated, truncated, over, first, valid = rows["flags"][:, index].copy()
    observation = tree.map(lambda array: array[index].copy(), rows["observation"])
    reward, episode = rows["reward"][index].copy(), rows["episode"][index].copy()
    return Step(envs, observation, first, reward, terminated, truncated, valid, over, episode)


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


def check_landed(in_flight: BoolArray, index: slice | IntArray, envs: IntArray) -> None:
    """Raises ValueError if one of ``envs``, which ``index`` selects, has been sent to and not received from."""
    if in_flight[index].any():
        raise ValueError(f"envs {envs[in_flight[envs]].tolist()} are in flight: receive them first")


def check_equal(specs: Sequence[EnvSpec], first_index: int) -> None:
    """Raises EnvError unless all envs look the same from outside."""
    for index, spec in enumerate(specs, first_index):
        if found := difference(specs[0], spec):
            raise EnvError(f"env {index} differs from env {first_index} in {found}")
