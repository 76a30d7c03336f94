"""ViZDoom's scenarios by Gymnasium id (``VizdoomBasic-v1``), with small images and ends that mean something."""

from __future__ import annotations

import dataclasses
import importlib
import os
from typing import Any

import numpy as np

from pronghorn import tree
from pronghorn.config import nearest
from pronghorn.envs.spaces import leaf_of_space
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, Leaf, UserError

PREFIX = "Vizdoom"


class VizdoomEnv:
    """A scenario: a dict of images [height, width, channels] uint8 and game variables, as its configuration has them.

    The game shows nothing once an episode has ended, so the final observation is the last one seen. It calls every end
    an end: where its clock ran out and the player lives, it is ``truncated`` here, else ``terminated``.

    Args:
        env: the id.
        screen: (height, width) images are shrunk to; None: as the game draws them.
        frame_skip: tics an action is held for, 35 to a second.
        game_args: further arguments of ViZDoom's own env, which reads what it does not know as settings of the game.

    Raises:
        UserError: a package is missing, there is no such scenario, or ``screen`` or ``frame_skip`` cannot be used.
    """

    def __init__(self, env: str, *, screen: Any = (60, 80), frame_skip: int = 4, **game_args: Any) -> None:
        _import("vizdoom", env)
        gymnasium, self._cv2 = _import("gymnasium", env), _import("cv2", env)
        _import("vizdoom.gymnasium_wrapper", env)
        if env not in gymnasium.registry:
            known = [name for name in gymnasium.registry if name.startswith(PREFIX)]
            raise UserError(f"there is no environment {env!r}; {nearest(env, known, 'VizdoomBasic-v1 is one')}")
        if screen is not None and not (_are_sizes(screen) and len(screen) == 2):
            raise UserError(f"--env-arg screen must be [height, width] or null, not {screen!r}")
        if not _are_sizes([frame_skip]):
            raise UserError(f"--env-arg frame_skip must be a positive whole number, not {frame_skip!r}")
        self._env = gymnasium.make(env, disable_env_checker=True, frame_skip=frame_skip, **game_args)
        self._game = self._env.unwrapped.game
        self._game.set_doom_config_path(os.devnull)  # else all games would write to one file where the run was started
        observation = leaf_of_space(self._env.observation_space, f"observation space of {env}")
        self._size = None if screen is None else tuple(screen)
        self.render_fps = 35 / frame_skip
        self.spec = EnvSpec(
            env,
            {name: self._shrunk_leaf(leaf) for name, leaf in observation.items()},
            tree.map(_without_absurd_bounds, leaf_of_space(self._env.action_space, f"action space of {env}")),
            action_repeat=frame_skip,
            max_episode_steps=None,
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Starts an episode. The first one starts the game, too, which takes a second."""
        observation, info = self._env.reset(seed=seed)
        self._seen = self._shrunk(observation)
        return self._seen, info

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """Holds the action."""
        observation, reward, over, truncated, info = self._env.step(action)
        if not over:
            self._seen = self._shrunk(observation)
            return self._seen, reward, False, truncated, info
        truncated = self._game.is_episode_timeout_reached() and not self._game.is_player_dead()
        return self._seen, reward, not truncated, truncated, info

    def render(self) -> Any:
        """What the game draws, its buffers side by side, if it was made with ``render_mode="rgb_array"``; once an
        episode has ended, what it drew last."""
        if self._game.get_state() is not None:
            self._drawn = self._env.render()
        return self._drawn

    def close(self) -> None:
        """Ends the game."""
        self._env.close()

    def _shrunk(self, observation: dict[str, Any]) -> dict[str, Any]:
        if self._size is None:
            return observation
        return {name: self._resized(name, array) for name, array in observation.items()}

    def _resized(self, name: str, array: Any) -> Any:
        if not _is_image(array):
            return array
        height, width = self._size or array.shape[:2]
        way = self._cv2.INTER_NEAREST if name == "labels" else self._cv2.INTER_AREA  # labels are no amounts
        return self._cv2.resize(array, (width, height), interpolation=way).reshape(height, width, -1)

    def _shrunk_leaf(self, leaf: Leaf) -> Leaf:
        if self._size is None or not _is_image(leaf):
            return leaf
        shape = (*self._size, leaf.shape[-1])
        return dataclasses.replace(leaf, shape=shape, low=np.zeros(shape), high=np.full(shape, 255.0))


def _is_image(array: Any) -> bool:
    """Of an array or a leaf."""
    return getattr(array, "dtype", None) == np.uint8 and len(array.shape) == 3


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(type(value) is int and value > 0 for value in values)


def _without_absurd_bounds(leaf: Leaf) -> Leaf:
    """Mouse movements are bounded by what float32 can hold: that is no range to map actions to."""
    if leaf.kind != "box" or leaf.high is None or leaf.high.max() < np.finfo(np.float32).max:
        return leaf
    return dataclasses.replace(leaf, low=np.full(leaf.shape, -np.inf), high=np.full(leaf.shape, np.inf))


def _import(module: str, env: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (error.name or module).partition(".")[0]
        raise UserError(f"{env} needs {missing}: pip install 'pronghorn[vizdoom]'") from error
