"""The one loop that acts: training, evaluation, benchmarks and recording all run it."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pronghorn import tree
from pronghorn.acting.inference import Chooser, Inference, Place
from pronghorn.memory.rollout import RolloutMemory
from pronghorn.networks.encoders import Inputs, without_mask
from pronghorn.seeding import Domain, generator
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, BoolArray, EnvSpec, IntArray, Metrics, Step, Trajectory, action_dtype
from pronghorn.vec.base import BatchedEnv, EnvError
from pronghorn.vec.rows import as_index

HISTORY_BYTES = 256 * 2**20
"""Actions since the reset that are kept for ``resume``; an episode that outgrows its share starts anew there."""

LIFE = 2**24
"""More episodes, or columns, than an env begins between two starts of its process."""


class Actor:
    """Steps envs with an agent and writes what happens into columns.

    An env acts while it has a column; without a free one it waits, so the learner sets the pace. All state of an env
    is kept here in arrays with one entry per env, and survives in ``state``.

    Args:
        vec: the envs.
        memory: where columns come from and go to. Envs that cannot pause must never wait for one: that takes one for
            each, a batch, and one for each again.
        inference: the agent that acts.
        choose: who chooses its actions, if not ``inference`` itself.
        run_seed, noise_domain: name the noise of the samples: one draw of [T, noise] per column, from the env's index
            and the number of its column, so no order of arrival changes it.
        first_index: env 0 here is this env of the run.
        whole_episodes: a column holds one episode (closed as truncated where it is full) instead of T rows.
    """

    def __init__(
        self,
        vec: BatchedEnv,
        memory: RolloutMemory,
        inference: Inference,
        run_seed: int,
        noise_domain: Domain = Domain.ACTION_NOISE,
        whole_episodes: bool = False,
        timers: PhaseTimers | None = None,
        first_index: int = 0,
        choose: Chooser | None = None,
    ) -> None:
        self.vec, self.memory, self.inference = vec, memory, inference
        self.choose: Chooser = choose or inference
        self._first_index = first_index
        self._timers = timers or PhaseTimers()
        self.whole_episodes = whole_episodes
        self.dropped = 0
        self._run_seed, self._noise_domain = run_seed, noise_domain
        self._distribution = inference.agent.distribution
        self._choices = np.cumsum((0, *self._distribution.choices))[:-1]
        count, spec = vec.num_envs, vec.spec
        self._observation = tree.map(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype), spec.observation)
        self._first = np.zeros(count, bool)
        self._core_state = tree.map(lambda tensor: tensor.numpy().copy(), inference.agent.initial_state(count))
        self._last_action = tree.map(lambda leaf: np.zeros((count, *leaf.shape), action_dtype(leaf)), spec.action)
        self._last_reward = np.zeros(count, np.float32)
        self._episode = np.zeros(count, np.int64)
        self._return = np.zeros(count, np.float64)
        self._length = np.zeros(count, np.int64)
        self._column = np.full(count, -1, np.int64)
        self._row = np.zeros(count, np.int64)
        self._columns_begun = np.zeros(count, np.int64)
        self._awaits_reset = np.zeros(count, bool)
        self._noise = np.zeros((count, memory.rows, self._distribution.noise_size), np.float32)
        self._history = ActionLog(self._last_action, HISTORY_BYTES)
        self._idle: deque[IntArray] = deque()
        self._in_flight = 0
        self._abandoned = False

    @property
    def spec(self) -> EnvSpec:
        """Of the envs."""
        return self.vec.spec

    def metrics(self) -> Metrics:
        """What a report says of acting."""
        return {"steps/dropped": self.dropped}

    @property
    def longest_running(self) -> int:
        """Steps of the longest episode that has not ended."""
        return int(self._length.max())

    def start(self, life: int = 0) -> None:
        """Begins the first episode of a ``life`` in every env; columns in use are dropped, statistics of running
        episodes too. No two lives share an episode or noise."""
        self.vec.reset(np.full(self.vec.num_envs, life * LIFE))
        self._release_columns()
        self._columns_begun[:] = life * LIFE
        self._await_firsts()

    def collect(self, stop: Callable[[], bool] = lambda: False) -> Trajectory | None:
        """Acts until a batch is finished, then takes it; None if ``stop`` came true first. See ``fill``."""
        return self.memory.take() if self.fill(stop) else None

    def ahead(self) -> Trajectory | None:
        """None: it acts only when it is asked for a batch."""
        return None

    def fill(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Acts until a batch is finished. Nothing is in flight afterwards, if the envs can pause.

        Returns False if ``stop`` came true first; a later call goes on from there, with the data of a run that was not
        stopped.
        """
        stopped = False
        while not self.memory.ready():
            stopped = stopped or stop()
            if stopped and not self.vec.pausable:
                return False
            if not stopped:
                self._act_where_possible()
            if not self._in_flight:
                if stopped:
                    return False
                raise RuntimeError("every env waits for a free column: the memory is too small for its batches")
            self._receive()
        if stopped:
            # Landing has filled the batch. Without the stop, all but the last to land would have acted meanwhile.
            newest = self._idle.pop()
            self._act_where_possible()
            self._idle.append(newest)
        while self._in_flight and self.vec.pausable:
            self._receive()
        return True

    def _act_where_possible(self) -> None:
        for _ in range(len(self._idle)):
            envs = self._idle.popleft()
            index = as_index(envs)
            able = (self._column[index] >= 0) | self._awaits_reset[index]
            if not able.all():
                able[~able] = [self._open(int(env)) for env in envs[~able]]
            if able.all():
                self._act(envs)
            else:
                self._idle.append(envs[~able])
                if able.any():
                    self._act(envs[able])

    def _open(self, env: int) -> bool:
        """Gives the env a column; False if none is free."""
        column = self.memory.begin(self._first_index + env)
        if column < 0:
            return False
        index, row, envs = np.array([column]), np.array([0]), np.array([env])
        if self._first[env]:
            for array in (*tree.leaves(self._core_state), *tree.leaves(self._last_action), self._last_reward):
                array[env] = 0
        self.memory.write("observation", index, row, _rows(self._observation, envs))
        self.memory.write("first", index, row, self._first[envs])
        self.memory.write_once("core_state", index, _rows(self._core_state, envs))
        self.memory.write_once("last_action", index, _rows(self._last_action, envs))
        self.memory.write_once("last_reward", index, self._last_reward[envs])
        self.memory.write_once("task", index, np.zeros(1, np.int64))
        self._draw_noise(env, int(self._columns_begun[env]))
        self._columns_begun[env] += 1
        self._column[env], self._row[env] = column, 0
        return True

    def _draw_noise(self, env: int, number: int) -> None:
        rng = generator(self._run_seed, self._noise_domain, self._first_index + env, number)
        self._noise[env] = self._distribution.draw_noise(rng, (self.memory.rows,))

    def _act(self, envs: IntArray) -> None:
        index = as_index(envs)
        columns, rows = self._column[index], self._row[index]
        observation = _rows(self._observation, index)
        if self.inference.agent.masked:
            _check_masks(observation[ACTION_MASK], envs, self._choices)
        if self.inference.agent.last_step is not None:
            observation = Inputs(observation, _rows(self._last_action, index), self._last_reward[index])
        with self._timers("inference"):
            choice = self.choose(
                observation,
                self._first[index],
                _rows(self._core_state, index),
                self._noise[envs, rows],
                Place(envs, columns, rows),
            )
        self._in_flight += len(envs)
        with self._timers("env"):
            self.vec.send(choice.action, envs)
        # The rest while the envs step.
        _assign(self._core_state, index, choice.core_state)
        _assign(self._last_action, index, choice.action)
        self._history.append(envs, choice.action)
        action, behaviour = choice.action, choice.behaviour
        if self._awaits_reset.any():
            live = columns >= 0
            columns, rows, action, behaviour = columns[live], rows[live], _rows(action, live), behaviour[live]
        self.memory.write("action", columns, rows, action)
        self.memory.write("behaviour", columns, rows, behaviour)
        self.memory.arrays["policy_version"][columns, rows] = choice.version

    def _receive(self) -> None:
        with self._timers("env"):
            step = self.vec.recv()
        if self.inference.agent.masked and step.over.any():
            step = _with_open_masks(step)
        self._record(step)

    def _record(self, step: Step) -> None:
        envs = step.envs
        index = as_index(envs)
        self._in_flight -= len(envs)
        self._return[index] += np.where(step.valid, step.reward, 0.0)
        self._length[index] += step.valid
        live = step
        if self._awaits_reset.any():
            live = _select(step, ~self._awaits_reset[index])
            index = as_index(live.envs)
        self._write(live, self._column[index], self._row[index])
        self._row[index] += 1
        self._carry(step)
        self._close_columns(live)
        self._idle.append(envs)

    def _write(self, step: Step, columns: IntArray, rows: IntArray) -> None:
        """What the actions in ``rows`` caused; a column begins without ends and firsts."""
        memory = self.memory
        memory.write("reward", columns, rows, step.reward)
        memory.write("valid", columns, rows, step.valid)
        memory.write("observation", columns, rows + 1, step.observation)
        if step.first.any():
            memory.write("first", columns, rows + 1, step.first)
        ended = step.ended
        if ended.any():
            memory.write("terminated", columns[ended], rows[ended], step.terminated[ended])
            memory.write("truncated", columns[ended], rows[ended], step.truncated[ended])
        if step.over.any():
            envs, columns, rows = step.envs[step.over], columns[step.over], rows[step.over]
            memory.write("episode_return", columns, rows, self._return[envs])
            memory.write("episode_length", columns, rows, self._length[envs])

    def _carry(self, step: Step) -> None:
        envs = step.envs
        index = as_index(envs)
        _assign(self._observation, index, step.observation)
        self._first[index] = step.first
        self._last_reward[index] = step.reward
        self._episode[index] = step.episode
        anew = step.over | step.first
        if anew.any():
            self._return[envs[anew]] = 0.0
            self._length[envs[anew]] = 0
            self._history.clear(envs[step.first])
        self._awaits_reset[envs] = step.over & self.whole_episodes

    def _close_columns(self, step: Step) -> None:
        closing = self._row[as_index(step.envs)] == self.memory.rows
        if self.whole_episodes:
            closing |= step.ended | step.first
        if not closing.any():
            return
        closed = _select(step, closing)
        for env, end, crashed in zip(closed.envs, closed.ended, closed.first, strict=True):
            if self.whole_episodes and crashed:
                self._drop_column(int(env))
                continue
            column, length = int(self._column[env]), int(self._row[env])
            self._column[env], self._row[env] = -1, 0
            if self.whole_episodes and not end:
                self.memory.arrays["truncated"][column, length - 1] = True
            self._fill_log_probs(column, length)
            self.memory.finish(column, length)

    def _fill_log_probs(self, column: int, length: int) -> None:
        """In one go for a whole column: a tenth of the cost of doing it while acting."""
        arrays = self.memory.arrays
        action = tree.map(lambda array: array[column, :length], arrays["action"])
        log_prob = self.inference.log_prob(arrays["behaviour"][column, :length], action)
        arrays["behaviour_log_prob"][column, :length] = log_prob

    def _await_firsts(self) -> None:
        """After a reset of every env. Envs that cannot pause answer when others have been sent to."""
        self._idle.clear()
        self._in_flight = self.vec.num_envs
        self._awaits_reset[:] = True
        while self._in_flight and self.vec.pausable:
            self._receive()

    def abandon(self) -> None:
        """Lets go of the envs, whatever is in flight: columns in use are dropped, and a restored actor begins anew."""
        self._release_columns()
        self._idle.clear()
        self._in_flight = 0
        self._abandoned = True

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """(arrays, numbers): the carry, columns in use, and each env's actions since its reset.

        Nothing may be in flight, unless the envs cannot pause, and so cannot be restored to where they are either.
        """
        memory_arrays, memory_numbers = self.memory.state()
        arrays = {f"memory/{name}": array for name, array in memory_arrays.items()}
        arrays |= {f"carry/{name}": array for name, array in self._carried().items()}
        arrays |= {f"history/{name}": array for name, array in self._history.state().items()}
        idle = [envs.tolist() for envs in self._idle]
        numbers = {"memory": memory_numbers, "dropped": self.dropped, "idle": idle, "abandoned": self._abandoned}
        return arrays, numbers

    def restore(self, arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, Any]) -> bool:
        """Brings every env and column back to where ``state`` was taken, by replaying the actions since the resets.

        Returns False if an env could not be brought back (it takes no seed, or its replay leads elsewhere): then all
        begin new episodes, and running ones are lost.
        """
        carry = tree.below(arrays, "carry")
        self._load_carry(carry)
        self.memory.restore(tree.below(arrays, "memory"), numbers["memory"])
        self.dropped = int(numbers["dropped"])
        self._history.restore(tree.below(arrays, "history"))
        histories = self._history.actions()
        reached = not numbers["abandoned"] and self._replay(histories)
        self._load_carry(carry)
        if reached:
            self._history.fill(histories)
            self._idle = deque(np.array(envs) for envs in numbers["idle"])
            for env in np.flatnonzero(self._column >= 0):
                self._draw_noise(int(env), int(self._columns_begun[env]) - 1)
            return True
        self._release_columns()
        self.vec.reset(self._episode + 1)
        self._await_firsts()
        return False

    def _replay(self, histories: list[Tree]) -> bool:
        """Whether every env stands again where its saved observation was seen."""
        if not self.vec.spec.seedable or not self._history.complete:
            return False
        # Without the mask: at an end we have opened it. What was carried is loaded once more afterwards.
        expected = tree.map(np.copy, without_mask(self._observation))
        try:
            self.vec.reset(self._episode.copy(), histories)
            self._await_firsts()
        except EnvError:
            return False
        pairs = zip(tree.leaves(expected), tree.leaves(without_mask(self._observation)), strict=True)
        return all(np.array_equal(wanted, found) for wanted, found in pairs)

    def _load_carry(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, array in self._carried().items():
            array[...] = arrays[name]

    def _drop_column(self, env: int) -> None:
        column, length = int(self._column[env]), int(self._row[env])
        self._column[env], self._row[env] = -1, 0
        self.dropped += int(self.memory.arrays["valid"][column, :length].sum())
        self.memory.drop(column)

    def _release_columns(self) -> None:
        for env in np.flatnonzero(self._column >= 0):
            self._drop_column(int(env))
        self._awaits_reset[:] = False

    def _carried(self) -> dict[str, NDArray[Any]]:
        """The arrays of the carry by name (not copies)."""
        carried: dict[str, NDArray[Any]] = {}
        for name in ("observation", "core_state", "last_action"):
            for path, array in tree.named(getattr(self, f"_{name}")).items():
                carried[f"{name}/{path}".rstrip("/")] = array
        for name in (
            "first",
            "last_reward",
            "episode",
            "return",
            "length",
            "column",
            "row",
            "columns_begun",
            "awaits_reset",
        ):
            carried[name] = getattr(self, f"_{name}")
        return carried


class ActionLog:
    """Every env's actions since its reset, in arrays that grow; what grows beyond ``limit`` bytes is not kept.

    Args:
        like: a tree of arrays [N, …]: one action per env.
    """

    def __init__(self, like: Tree, limit: int) -> None:
        self._count = len(tree.leaves(like)[0])
        self._lengths: IntArray = np.zeros(self._count, np.int64)
        self._arrays = tree.map(lambda array: np.zeros((self._count, 64, *array.shape[1:]), array.dtype), like)
        per_row = sum(array.nbytes for array in tree.leaves(like))
        self._most = max(64, limit // max(1, per_row))

    @property
    def complete(self) -> bool:
        """Whether no env has outgrown the log."""
        return bool((self._lengths <= self._most).all())

    def append(self, envs: IntArray, actions: Tree) -> None:
        """One action for each of ``envs``."""
        index = as_index(envs)
        rows = self._lengths[index].copy()
        self._lengths[index] += 1
        longest = int(rows.max())
        if longest >= self._most:
            kept = rows < self._most
            envs, rows, actions = envs[kept], rows[kept], _rows(actions, kept)
        elif longest >= self._capacity:
            self._grow(2 * self._capacity)
        for array, values in zip(tree.leaves(self._arrays), tree.leaves(actions), strict=True):
            array[envs, rows] = values

    def clear(self, envs: IntArray) -> None:
        """Forgets the actions of ``envs``."""
        self._lengths[envs] = 0

    def actions(self) -> list[Tree]:
        """One tree of arrays [n_i, …] per env."""
        return [
            tree.map(lambda array, env=env: array[env, : self._lengths[env]].copy(), self._arrays)
            for env in range(self._count)
        ]

    def fill(self, histories: list[Tree]) -> None:
        """The inverse of ``actions``."""
        self._lengths[:] = [len(tree.leaves(history)[0]) for history in histories]
        self._grow(int(self._lengths.max()))
        for env, history in enumerate(histories):
            for array, values in zip(tree.leaves(self._arrays), tree.leaves(history), strict=True):
                array[env, : len(values)] = values

    def state(self) -> dict[str, NDArray[Any]]:
        """Arrays for a checkpoint."""
        longest = int(min(self._lengths.max(), self._capacity))
        arrays = {f"actions/{name}": array[:, :longest] for name, array in tree.named(self._arrays).items()}
        return {"lengths": self._lengths, **arrays}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of ``state``."""
        self._lengths[:] = arrays["lengths"]
        saved = [arrays[f"actions/{name}"] for name in tree.named(self._arrays)]
        self._grow(saved[0].shape[1])
        for array, values in zip(tree.leaves(self._arrays), saved, strict=True):
            array[:, : values.shape[1]] = values

    @property
    def _capacity(self) -> int:
        return int(tree.leaves(self._arrays)[0].shape[1])

    def _grow(self, capacity: int) -> None:
        missing = min(capacity, self._most) - self._capacity
        if missing > 0:
            self._arrays = tree.map(
                lambda array: np.concatenate(
                    [array, np.zeros((self._count, missing, *array.shape[2:]), array.dtype)], axis=1
                ),
                self._arrays,
            )


def _rows(values: Tree, index: slice | NDArray[Any]) -> Tree:
    return tree.map(lambda array: array[index], values)


def _select(step: Step, index: BoolArray) -> Step:
    return Step(**{item.name: _rows(getattr(step, item.name), index) for item in dataclasses.fields(step)})


def _assign(target: Tree, index: slice | IntArray, values: Tree) -> None:
    for array, value in zip(tree.leaves(target), tree.leaves(values), strict=True):
        array[index] = value


def _with_open_masks(step: Step) -> Step:
    """The final observation of an episode may allow nothing. The action it is answered by is ignored: so all do."""
    mask = np.array(step.observation[ACTION_MASK])
    mask[step.over] = 1
    return dataclasses.replace(step, observation={**step.observation, ACTION_MASK: mask})


def _check_masks(mask: NDArray[Any], envs: IntArray, starts: IntArray) -> None:
    """Whether every choice has something legal; that of ``starts[i]`` has its entries of the mask from there on."""
    possible = np.logical_or.reduceat(mask.reshape(len(envs), -1) != 0, starts, axis=1)
    if not possible.all():
        env, choice = np.argwhere(~possible)[0]
        where = f" for choice {choice} (from 0)" if len(starts) > 1 else ""
        raise EnvError(f"env {int(envs[env])} allows no action: its {ACTION_MASK!r} is all false{where}")
