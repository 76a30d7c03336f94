"""Engine over EnvPool (``envpool/HalfCheetah-v4``): many simulators in C++ with one pool of threads."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import warnings
from collections import deque
from importlib import metadata
from typing import Any

import numpy as np

from pronghorn import tree
from pronghorn.config import nearest
from pronghorn.envs.ale import AtariOptions
from pronghorn.envs.spaces import leaf_of_space
from pronghorn.tree import Tree
from pronghorn.types import BoolArray, EnvSpec, IntArray, Leaf, UserError
from pronghorn.vec.native import Answer

PREFIX = "envpool/"

NO_LIMIT = 2**31 - 1
"""What EnvPool takes for a limit that is never reached."""

KEEP_THEIR_LIMIT = {"envpool.minigrid", "envpool.procgen"}
"""Families whose limit is left as it is: MiniGrid's rewards depend on it, and Procgen's games end at it by themselves,
which would look like a real end."""

QT_WHEEL = "PyQt5-Qt5"
"""Has the libraries that Procgen's games are drawn with, in a folder where nobody else looks for them."""


class EnvPoolEngine:
    """``Engine`` over ``envpool.make``. The pool is made in ``reset``, since its seeds are given then, once.

    EnvPool calls a real end on the very step of its time limit a cut. Atari says elsewhere which it was; everything
    else gets a limit one step longer and is cut here, and the step beyond is swallowed.

    Raises:
        UserError: EnvPool is missing, has no such task, or does not take ``env_args``.
    """

    def __init__(self, env: str, env_args: dict[str, Any], num_envs: int, batch: int, num_threads: int) -> None:
        task = env.removeprefix(PREFIX)
        self._library = _library(env, task)
        self._task, self._env, self._env_args, self._num_envs, self._batch = task, env, env_args, num_envs, batch
        self._threads = min(num_threads, num_envs)
        family = self._library.registration.registry.specs[task][0]
        self._atari = AtariOptions.of(env_args) if family == "envpool.atari" else None
        self._arguments = dict(env_args) if self._atari is None else _atari_arguments(env, self._atari)
        if family == "envpool.procgen":
            _prepare_procgen(env, env_args)
        made: Any = self._call(self._library.make_spec)
        if made.config.max_num_players != 1:
            raise UserError(f"{env} has several players, which is not supported")
        limit = int(made.config.max_episode_steps)
        self._cuts_here = self._atari is None and 0 < limit < NO_LIMIT and family not in KEEP_THEIR_LIMIT
        self._limit = limit if self._cuts_here else NO_LIMIT
        if self._cuts_here:
            self._arguments["max_episode_steps"] = limit + 1
        self.spec = _spec(env, made, limit if 0 < limit < NO_LIMIT else None, self._atari)
        self._idle = tree.map(lambda leaf: np.repeat(_some_action(leaf), num_envs, axis=0), self.spec.action)
        self.pausable = batch == num_envs  # in lock-step
        self._pool: Any = None
        self._queue: deque[tuple[Tree, IntArray]] = deque()
        self._flying = 0
        self._lives = np.zeros(num_envs, np.int64)

    def reset(self, seeds: IntArray) -> None:
        """See ``Engine``."""
        self._pool = self._call(
            self._library.make,
            env_type="gymnasium",
            num_envs=self._num_envs,
            batch_size=self._batch,
            num_threads=self._threads,
            seed=seeds.tolist(),
        )
        self._queue.clear()
        self._pool.async_reset()
        self._flying = self._num_envs

    def send(self, actions: Tree, envs: IntArray) -> None:
        """See ``Engine``."""
        if self.pausable and self._flying:
            # Rows of two requests would be written over each other.
            self._queue.append((actions, envs.copy()))
        else:
            self._pool.send(actions, envs)
            self._flying += len(envs)

    @property
    def able(self) -> bool:
        """See ``Engine``."""
        return self._flying > 0 if self.pausable else self._flying >= self._batch

    def recv(self) -> Answer:
        """See ``Engine``."""
        answer, late = self._receive()
        if late.any():
            beyond = answer.envs[late]
            self.send(tree.map(lambda array: array[beyond], self._idle), beyond)
            if self.pausable:
                _replace(answer, late, self._receive()[0])
            elif late.all():
                return self.recv()
            else:
                answer = _rows(answer, ~late)
        if self.pausable and self._queue:
            self.send(*self._queue.popleft())
        return answer

    def close(self) -> None:
        """See ``Engine``."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _receive(self) -> tuple[Answer, BoolArray]:
        """The next rows of the pool, and which of them are of the step beyond the limit."""
        observation, reward, terminated, truncated, info = self._pool.recv()
        envs, elapsed = info["env_id"].astype(np.int64), info["elapsed_step"]
        self._flying -= len(envs)
        first = elapsed == 0
        if self._cuts_here:
            truncated = (elapsed == self._limit) & ~terminated
        over = terminated | truncated
        if self._atari is not None:
            terminated = info["terminated"].astype(bool) & over
            truncated = over & ~terminated
            if self._atari.life_loss:
                terminated |= (info["lives"] < self._lives[envs]) & ~first
            self._lives[envs] = info["lives"]
        nested = tree.conform(self.spec.observation, observation)
        return Answer(envs, nested, reward, terminated, truncated, over, first), elapsed > self._limit

    def _call(self, function: Any, **arguments: Any) -> Any:
        try:
            return function(self._task, **self._arguments, **arguments)
        except (TypeError, ValueError, ImportError) as error:
            reason = str(error).partition(" The following argument types")[0].removeprefix("Config.__new__() ")
            given = f" with --env-arg {self._env_args}" if self._env_args else ""
            raise UserError(f"{self._env} cannot be made{given}: {' '.join(reason.split())}") from error


def _library(env: str, task: str) -> Any:
    try:
        library = importlib.import_module("envpool")
    except ImportError as error:
        raise UserError(f"{env} needs {error.name or 'envpool'}: pip install 'pronghorn[envpool]'") from error
    # About the bounds of spaces that EnvPool makes, which a user cannot change.
    warnings.filterwarnings("ignore", message=".*precision lowered by casting")
    if task not in library.list_all_envs():
        raise UserError(
            f"EnvPool has no task {task!r}; {nearest(task, library.list_all_envs(), 'HalfCheetah-v4 is one')}"
        )
    return library


def _prepare_procgen(env: str, env_args: dict[str, Any]) -> None:
    """Where the system has no Qt 5, loads that of the wheel, which then is found in this process by its name."""
    if "max_episode_steps" in env_args:
        raise UserError(
            f"{env} takes no --env-arg max_episode_steps: EnvPool would cut nothing, the game has its clock"
        )
    procgen = importlib.import_module("envpool.procgen")
    if "ProcgenEnvSpec" in vars(procgen):
        return
    try:
        folder = metadata.distribution(QT_WHEEL).locate_file("PyQt5/Qt5/lib")
    except metadata.PackageNotFoundError as error:
        raise UserError(f"{env} needs Qt 5: pip install 'pronghorn[procgen]', which brings {QT_WHEEL}") from error
    try:
        for library in ("libQt5Core.so.5", "libQt5Gui.so.5"):
            ctypes.CDLL(f"{folder}/{library}")
    except OSError as error:
        raise UserError(f"{env} needs Qt 5, and {QT_WHEEL} needs a library of the system: {error}") from error
    importlib.reload(procgen)  # it looked for Qt when EnvPool was imported


def _atari_arguments(env: str, options: AtariOptions) -> dict[str, Any]:
    if options.noop_max == 0:
        raise UserError(f"{env} needs at least one no-op; use --env-arg noop_max=1 or more")
    return {
        "max_episode_steps": options.max_steps,
        "stack_num": options.stack,
        "frame_skip": options.frame_skip,
        "noop_max": options.noop_max,
        "episodic_life": False,
        "reward_clip": False,
        "use_fire_reset": options.fire_reset,
        "img_height": options.screen,
        "img_width": options.screen,
        "full_action_space": options.full_action_set,
        "repeat_action_probability": float(options.sticky),
    }


def _spec(env: str, made: Any, limit: int | None, atari: AtariOptions | None) -> EnvSpec:
    observation = leaf_of_space(made.gymnasium_observation_space, f"observation space of {env}")
    action = leaf_of_space(made.gymnasium_action_space, f"action space of {env}")
    if atari is not None:
        return atari.spec(env, action.categories[0], seedable=False)
    observation = tree.map(_with_real_bounds, observation)
    return EnvSpec(env, observation, action, max_episode_steps=limit, seedable=False)


def _with_real_bounds(leaf: Leaf) -> Leaf:
    """Some tasks mean "no lower bound" and say the least positive number, which is what C++ calls a float's minimum."""
    if leaf.low is None:
        return leaf
    return dataclasses.replace(leaf, low=np.where(leaf.low == np.finfo(np.float32).tiny, -np.inf, leaf.low))


def _some_action(leaf: Leaf) -> Any:
    """[1, …]: legal; what it does is never seen."""
    if leaf.kind == "box":
        return np.clip(np.zeros((1, *leaf.shape)), leaf.low, leaf.high).astype(leaf.dtype)
    start = np.zeros(leaf.shape, np.int64) if leaf.start is None else leaf.start
    return np.reshape(start, (1, *leaf.shape)).astype(leaf.dtype)


def _fields(answer: Answer) -> list[str]:
    return [item.name for item in dataclasses.fields(answer)]


def _rows(answer: Answer, index: Any) -> Answer:
    return Answer(**{name: tree.map(lambda array: array[index], getattr(answer, name)) for name in _fields(answer)})


def _replace(answer: Answer, index: Any, rows: Answer) -> None:
    for name in _fields(answer):
        for array, values in zip(tree.leaves(getattr(answer, name)), tree.leaves(getattr(rows, name)), strict=True):
            array[index] = values
