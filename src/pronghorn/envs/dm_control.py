"""The DeepMind Control Suite by domain and task (``dm_control/cheetah-run``)."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from pronghorn.config import nearest
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, Leaf, UserError

PREFIX = "dm_control/"

PICTURE = (360, 480)
"""Height and width of what ``render`` draws."""


class DmControlEnv:
    """A task of the suite: a dict of float64 observations, one box of actions, rewards in [0, 1].

    Real ends (the task's termination with discount 0) are ``terminated``, the time limit is ``truncated``.

    Args:
        env: dm_control/DOMAIN-TASK.
        task_args: keyword arguments of the task, ``time_limit`` in seconds for one.

    Raises:
        UserError: dm_control is missing or has no such task.
    """

    def __init__(self, env: str, **task_args: Any) -> None:
        suite = _suite(env)
        domain, _, task = env.removeprefix(PREFIX).partition("-")
        if (domain, task) not in suite.ALL_TASKS:
            known = [f"{PREFIX}{domain}-{task}" for domain, task in suite.ALL_TASKS]
            raise UserError(f"there is no environment {env!r}; {nearest(env, known, f'{PREFIX}cheetah-run is one')}")
        # A fixed seed here, one per episode in ``reset``: some bodies are drawn at random, and all envs need the same.
        self._env = suite.load(domain, task, task_kwargs={**task_args, "random": 0})
        self.render_fps = 1 / self._env.control_timestep()
        limit = self._env._step_limit
        self.spec = EnvSpec(
            env,
            {name: _leaf(array) for name, array in self._env.observation_spec().items()},
            _leaf(self._env.action_spec()),
            max_episode_steps=math.ceil(limit) if math.isfinite(limit) else None,
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Starts an episode."""
        if seed is not None:
            self._env.task.random.seed(seed)
        with _without_drawing(self._env.physics):
            return self._env.reset().observation, {}

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """One control step."""
        answer = self._env.step(action)
        terminated = answer.last() and answer.discount == 0
        return answer.observation, answer.reward, bool(terminated), answer.last() and not terminated, {}

    def render(self) -> Any:
        """Seen by the task's first camera."""
        return self._env.physics.render(*PICTURE, camera_id=0)

    def close(self) -> None:
        """Frees the simulator."""
        self._env.close()


@contextlib.contextmanager
def _without_drawing(physics: Any) -> Iterator[None]:
    """Opens no window meanwhile, which a task asks for (quadruped-escape), though only to show its terrain in it."""
    physics._make_rendering_contexts = lambda: None
    try:
        yield
    finally:
        del physics._make_rendering_contexts


def _leaf(array: Any) -> Leaf:
    """Of a ``dm_env.specs.Array``; without bounds where it has none."""
    low, high = (
        np.broadcast_to(np.asarray(getattr(array, bound, unbounded), np.float64), array.shape)
        for bound, unbounded in (("minimum", -np.inf), ("maximum", np.inf))
    )
    return Leaf("box", tuple(array.shape), np.dtype(array.dtype), low=low, high=high)


def _suite(env: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no display: nothing is drawn
            suite = importlib.import_module("dm_control.suite")
    except ImportError as error:
        raise UserError(f"{env} needs {error.name or 'dm_control'}: pip install 'pronghorn[dm-control]'") from error
    logging.getLogger("absl").addFilter(_telling)
    _forget_removed_fields()
    return suite


def _telling(record: logging.LogRecord) -> bool:
    """Whether a user can do anything about it: not about model files that come with the suite."""
    return "is deprecated" not in record.getMessage()


def _forget_removed_fields() -> None:
    """dm_control has a list of MuJoCo's fields and stumbles over those that a newer MuJoCo no longer has, though no
    task of the suite reads them."""
    mujoco = importlib.import_module("mujoco")
    sizes = importlib.import_module("dm_control.mujoco.wrapper.mjbindings.sizes").array_sizes
    for name, structure in (("mjmodel", mujoco.MjModel), ("mjdata", mujoco.MjData)):
        for field in [field for field in sizes[name] if not hasattr(structure, field)]:
            del sizes[name][field]
