"""Envs that step as a batch outside Python: one engine per group behind ``BatchedEnv``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pronghorn import seeding, tree
from pronghorn.envs.base import action_converter
from pronghorn.envs.wrappers import converted_to
from pronghorn.tree import Tree
from pronghorn.types import BoolArray, EnvSpec, IntArray, Leaf, Step, UserError
from pronghorn.vec.base import EnvError
from pronghorn.vec.rows import as_index, check_landed, split_groups


@dataclass
class Answer:
    """What some envs of an engine answer, in arrays that the receiver owns (leading dimension n). Meanings as in
    ``Step``; ``envs`` counts within the engine. A row is valid unless it is ``first``; its reward is then ignored."""

    envs: IntArray
    observation: Tree
    reward: NDArray[Any]
    terminated: BoolArray
    truncated: BoolArray
    over: BoolArray
    first: BoolArray


class Engine(Protocol):
    """Some envs stepped by a library. Between ``reset`` and ``recv``, and between ``send`` and ``recv``, an env is in
    flight; the action after ``over`` is ignored and answered by a ``first`` observation."""

    spec: EnvSpec
    pausable: bool
    """As of ``BatchedEnv``."""

    def reset(self, seeds: IntArray) -> None:
        """Begins new games in all envs, seeded as far as the library can; what is in flight is dropped."""

    def send(self, actions: Tree, envs: IntArray) -> None:
        """Takes legal actions [n, …] in the env's units. The engine may keep them until it has more."""

    @property
    def able(self) -> bool:
        """Whether ``recv`` would answer without another ``send``."""

    def recv(self) -> Answer:
        """Waits for envs in flight. Called only if ``able``."""

    def close(self) -> None:
        """Frees the library's threads and memory. May be called twice."""


EngineFactory: TypeAlias = Callable[[int, int], Engine]
"""(number of envs, envs to answer at a time) → engine."""

Watch: TypeAlias = Callable[[str], contextlib.AbstractContextManager[Any]]
"""Entered, with the phase, around every call of an engine that may not return."""


def unwatched(phase: str) -> contextlib.AbstractContextManager[Any]:
    """Watches nothing."""
    return contextlib.nullcontext()


class NativeVec:
    """``BatchedEnv`` over engines. Env i is env ``first_index + i`` of the run.

    Args:
        make_engine: makes the engine of one group (contiguous envs, sizes differing by one at most).
        ready: ``recv`` answers as soon as this many envs are ready, whichever they are; None: a whole group.
        watch: called with "construct", "reset" or "step".

    Raises:
        EnvError, UserError: the engine could not be made; ``recv`` and ``reset`` raise EnvError where it fails, and
            UserError where an observation is not as its space says, or a reward is not finite.
    """

    def __init__(
        self,
        make_engine: EngineFactory,
        num_envs: int,
        run_seed: int,
        domain: seeding.Domain,
        groups: int = 1,
        ready: int | None = None,
        first_index: int = 0,
        watch: Watch = unwatched,
    ) -> None:
        if ready is not None and groups > 1:
            raise UserError("envs in groups answer a group at a time; use --groups 1 to take the first ready ones")
        if ready is not None and not 0 < ready <= num_envs:
            raise UserError(f"the first {ready} ready of {num_envs} envs cannot be had; use 1 to {num_envs}")
        self.num_envs = num_envs
        self._stream = run_seed, domain
        self._first_index = first_index
        self._watch = watch
        self._groups = split_groups(num_envs, groups)
        self._engines: list[Engine] = []
        try:
            for group in self._groups:
                batch = len(group) if ready is None else ready
                self._engines.append(self._call("construct", group, make_engine, len(group), batch))
        except BaseException:
            self.close()
            raise
        self.spec = self._engines[0].spec
        self.pausable = self._engines[0].pausable
        self._convert = action_converter(self.spec.action)
        self._action_leaves = list(tree.named(self.spec.action).items())
        self._choices = [
            None if leaf.kind == "box" else np.reshape(leaf.categories, leaf.shape) for _, leaf in self._action_leaves
        ]
        self._observation_leaves = list(tree.named(self.spec.observation).items())
        self._group_of = np.repeat(np.arange(groups), [len(group) for group in self._groups])
        self._turn = 0
        self._in_flight = np.zeros(num_envs, np.bool_)
        self._over = np.zeros(num_envs, np.bool_)
        self._episode = np.zeros(num_envs, np.int64)

    def reset(self, episodes: IntArray, histories: Sequence[Tree] | None = None) -> None:
        """See ``BatchedEnv``: new games, whose numbers count from ``episodes``.

        Raises ValueError if there is anything to replay: engines cannot.
        """
        if histories and any(len(tree.leaves(history)[0]) for history in histories):
            raise ValueError("a native engine cannot replay actions: begin new episodes")
        seeds = np.array(
            [
                seeding.episode_seed(*self._stream, self._first_index + env, int(episode))
                for env, episode in enumerate(episodes)
            ]
        )
        for group, engine in zip(self._groups, self._engines, strict=True):
            self._call("reset", group, engine.reset, seeds[group])
        self._episode[:] = episodes
        self._over[:] = False
        self._in_flight[:] = True
        self._turn = 0

    def send(self, actions: Tree, envs: IntArray) -> None:
        """See ``BatchedEnv``.

        Raises:
            ValueError: one of ``envs`` is in flight.
            EnvError: an action is outside its space: no engine may see it.
        """
        check_landed(self._in_flight, as_index(envs), envs)
        self._check_actions(tree.leaves(actions), envs)
        converted = self._convert(actions)
        if len(self._engines) == 1:
            self._call("step", envs, self._engines[0].send, converted, envs)
        else:
            group_of = self._group_of[envs]
            for number in np.unique(group_of):
                among = group_of == number
                part, inside = tree.map(lambda array, among=among: array[among], converted), envs[among]
                engine, origin = self._engines[number], self._groups[number][0]
                self._call("step", inside, engine.send, part, inside - origin)
        self._in_flight[envs] = True

    def recv(self) -> Step:
        """See ``BatchedEnv``: of the groups that can answer, the one whose turn it is.

        Raises ValueError if no engine can answer what it was sent so far.
        """
        number = self._next_able()
        group = self._groups[number]
        answer = self._call("step", group, self._engines[number].recv)
        envs = answer.envs + group[0]
        index = as_index(envs)
        self._in_flight[index] = False
        self._episode[index] += answer.first & self._over[index]
        self._over[index] = answer.over
        reward = answer.reward.astype(np.float64)
        reward[answer.first] = 0.0
        if answer.reward.dtype.kind == "f" and not np.isfinite(reward).all():
            row = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise UserError(f"env {self._first_index + int(envs[row])} in step: reward is not finite")
        return Step(
            envs=envs,
            observation=self._checked(answer.observation, envs),
            first=answer.first,
            reward=reward,
            terminated=answer.terminated,
            truncated=answer.truncated,
            valid=~answer.first,
            over=answer.over,
            episode=self._episode[index].copy(),
        )

    def close(self) -> None:
        """See ``BatchedEnv``."""
        while self._engines:
            self._engines.pop().close()

    def _next_able(self) -> int:
        for offset in range(len(self._engines)):
            number = (self._turn + offset) % len(self._engines)
            if self._engines[number].able:
                self._turn = (number + 1) % len(self._engines)
                return number
        waiting = np.flatnonzero(~self._in_flight)
        raise ValueError(f"nothing to receive before more envs are sent to; envs {waiting.tolist()} have no action")

    def _call(self, phase: str, envs: IntArray, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with self._watch(phase):
                return function(*arguments)
        except (UserError, EnvError):
            raise
        except Exception as error:
            first, last = self._first_index + int(envs.min()), self._first_index + int(envs.max())
            whose = f"env {first}" if first == last else f"envs {first} to {last}"
            raise EnvError(f"{whose}: {type(error).__name__} in {phase}: {error}") from error

    def _check_actions(self, actions: list[Any], envs: IntArray) -> None:
        for (name, leaf), choices, values in zip(self._action_leaves, self._choices, actions, strict=True):
            legal = np.isfinite(values) if choices is None else (values >= 0) & (values < choices)
            if not legal.all():
                row = int(np.argwhere(~legal)[0][0])
                wanted = "finite" if choices is None else f"below {list(leaf.categories)} and not negative"
                raise EnvError(
                    f"env {self._first_index + int(envs[row])}: action{_quoted(name)} is {values[row].tolist()}, "
                    f"which is not {wanted}"
                )

    def _checked(self, observation: Tree, envs: IntArray) -> Tree:
        """In the dtypes of the spec; raises UserError for a wrong shape or dtype, or a value that is not finite."""
        arrays = []
        for (name, leaf), array in zip(self._observation_leaves, tree.leaves(observation), strict=True):
            if array.shape != (len(envs), *leaf.shape):
                where = f"env {self._first_index + int(envs[0])}: observation{_quoted(name)}"
                raise UserError(f"{where} has shape {array.shape[1:]}, its space says {leaf.shape}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                where = f"env {self._first_index + int(envs[row])}: observation{_quoted(name)}"
                raise UserError(f"{where} is not finite")
            converted = array if array.dtype == leaf.dtype else converted_to(array, leaf.dtype)
            if converted is None:
                where = f"envs {self._first_index + int(envs.min())} to {self._first_index + int(envs.max())}"
                raise UserError(f"{where}: observation{_quoted(name)} is {array.dtype}, its space says {leaf.dtype}")
            arrays.append(converted)
        return arrays[0] if isinstance(self.spec.observation, Leaf) else tree.like(self.spec.observation, arrays)


class ActionRows:
    """Actions for an engine that takes those of ``wanted`` of its envs at once, kept until it has them.

    ``spec`` is a tree of ``Leaf``; arrays are in the env's units.
    """

    def __init__(self, spec: Tree, num_envs: int, wanted: int) -> None:
        self._arrays = tree.map(lambda leaf: np.zeros((num_envs, *leaf.shape), leaf.dtype), spec)
        self._leaves: list[Any] = tree.leaves(self._arrays)
        self._wanted = self._missing = wanted

    @property
    def complete(self) -> bool:
        """Whether none is missing."""
        return self._missing == 0

    def put(self, actions: Tree, envs: IntArray) -> None:
        """One for each of ``envs``, none of which has one yet."""
        index = as_index(envs)
        for array, values in zip(self._leaves, tree.leaves(actions), strict=True):
            array[index] = values
        self._missing -= len(envs)

    def take(self, envs: IntArray) -> Tree:
        """Those of ``envs`` in this order (a copy); afterwards all are missing."""
        self.clear()
        return tree.map(lambda array: array[envs], self._arrays)

    def clear(self) -> None:
        """Forgets them."""
        self._missing = self._wanted


def _quoted(name: str) -> str:
    return f" {name!r}" if name else ""
