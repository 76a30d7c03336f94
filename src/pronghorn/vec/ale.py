"""Engine over ale-py's own vector env: frame skip, grey, stack and threads in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pronghorn.envs.ale import AtariOptions, require_game
from pronghorn.tree import Tree
from pronghorn.types import IntArray
from pronghorn.vec.native import ActionRows, Answer
from pronghorn.vec.rows import as_index


class AleEngine:
    """``Engine`` over ``ale_py.AtariVectorEnv``: every env of the last answer must be sent to before the next.

    What it answers equals ``AtariEnv``: raw rewards, lost lives as the options say, stacks that repeat a game's first
    frame (the library's begin with black ones).

    Raises:
        UserError: ale-py is missing, there is no such game, or ``env_args`` do not fit ``AtariOptions``.
    """

    def __init__(self, env: str, env_args: dict[str, Any], num_envs: int, batch: int, num_threads: int) -> None:
        import gymnasium

        self._options = options = AtariOptions.of(env_args)
        game = gymnasium.spec(require_game(env)).kwargs["game"]
        from ale_py.vector_env import AtariVectorEnv

        def make() -> Any:
            return AtariVectorEnv(
                game,
                num_envs,
                batch_size=batch,
                num_threads=min(num_threads, num_envs),
                max_num_frames_per_episode=options.max_steps * options.frame_skip,
                repeat_action_probability=options.sticky,
                full_action_space=options.full_action_set,
                img_height=options.screen,
                img_width=options.screen,
                stack_num=options.stack,
                frameskip=options.frame_skip,
                maxpool=options.frame_skip > 1,
                noop_max=options.noop_max,
                use_fire_reset=options.fire_reset,
                episodic_life=False,  # would begin a new game at each lost life
                life_loss_info=False,
                reward_clipping=False,
            )

        self._make: Callable[[], Any] = make
        self._games: Any = make()
        self.spec = options.spec(env, int(self._games.single_action_space.n), seedable=False)
        self.pausable = batch == num_envs  # in lock-step
        self._rows = ActionRows(self.spec.action, num_envs, batch)
        self._order: IntArray = np.arange(num_envs)  # of the envs answered last, which are sent to next
        self._began: tuple[Any, dict[str, Any]] | None = None
        self._used = self._flying = False
        self._over = np.ones(num_envs, np.bool_)
        self._lives = np.zeros(num_envs, np.int64)
        self._black = np.zeros(num_envs, np.int64)  # frames of each stack from before its game

    def reset(self, seeds: IntArray) -> None:
        """See ``Engine``. Loads every game anew (about 200 ms each, divided by the threads)."""
        if self._used and not self.pausable:
            self._games = self._make()  # what is in flight cannot be waited for without answering it
        elif self._flying:
            self._games.recv()
        self._rows.clear()
        self._began, self._flying, self._used = self._games.reset(seed=seeds), False, True
        self._over[:] = True

    def send(self, actions: Tree, envs: IntArray) -> None:
        """See ``Engine``."""
        self._rows.put(actions, envs)
        if self._rows.complete:
            self._games.send(self._rows.take(self._order))
            self._flying = True

    @property
    def able(self) -> bool:
        """See ``Engine``."""
        return self._flying or self._began is not None

    def recv(self) -> Answer:
        """See ``Engine``."""
        if self._began is not None:
            (observation, info), self._began = self._began, None
            reward = np.zeros(len(observation))
            terminated, truncated = np.zeros((2, len(observation)), np.bool_)
        else:
            observation, reward, terminated, truncated, info = self._games.recv()
            self._flying = False
        envs = self._order = info["env_id"].astype(np.int64)
        index = as_index(envs)
        first = self._over[index].copy()
        over = terminated | truncated
        if self._options.life_loss:
            terminated = terminated | ((info["lives"] < self._lives[index]) & ~first)
            self._lives[index] = info["lives"]
        self._over[index] = over
        self._repeat_first_frames(observation, envs, first)
        return Answer(envs, observation, reward, terminated, truncated, over, first)

    def close(self) -> None:
        """See ``Engine``. The threads end with the object."""
        self._games = None

    def _repeat_first_frames(self, observation: Any, envs: IntArray, first: Any) -> None:
        """Where a stack reaches back before the game's first frame, that frame stands instead of black ones."""
        self._black[envs[first]] = self._options.stack - 1
        for row in np.flatnonzero(self._black[envs]):
            black = self._black[envs[row]]
            observation[row, :black] = observation[row, black]
            self._black[envs[row]] -= 1
