"""The work that all do, and the clock that all are timed by.

The scripts beside this module run in the interpreters of peers, which have no Pronghorn: standard library only, and
Gymnasium inside ``make_env``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

WARM_UP = 2
"""Updates that are not timed: imports, allocation, compilation and caches are over by then."""

FOREVER = 10**9
"""Steps to a peer that must be told how many; the clock ends it."""


@dataclass(frozen=True)
class Work:
    """PPO on one env, in the words of Pronghorn's options."""

    env: str
    env_args: dict[str, Any]
    seconds: float
    """timed, to the end of the update that is under way then"""
    seed: int
    num_envs: int
    unroll_length: int
    epochs: int
    minibatches: int
    layers: tuple[int, ...]
    activation: str
    initial_std: float
    discount: float
    gae_lambda: float
    clip_ratio: float
    value_cost: float
    entropy_cost: float
    learning_rate: float
    epsilon: float
    max_gradient_norm: float | None
    normalise_observations: bool
    normalise_rewards: bool
    config: dict[str, Any] = field(default_factory=dict)
    """of Pronghorn's own run"""

    @property
    def batch(self) -> int:
        """Rows of an update."""
        return self.num_envs * self.unroll_length

    @property
    def minibatch(self) -> int:
        """Rows of a gradient step."""
        return -(-self.batch // self.minibatches)

    @property
    def images(self) -> bool:
        """Whether the env is a game of Atari, seen as four grey frames of 84×84."""
        return self.env.startswith("ALE/")

    def make_env(self) -> Any:
        """One env, as the others see it."""
        import gymnasium

        if not self.images:
            return gymnasium.make(self.env, disable_env_checker=True, **self.env_args)
        import ale_py
        from ale_py.registration import register_v5_envs
        from gymnasium import wrappers

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        if self.env not in gymnasium.registry:
            register_v5_envs()
        game = gymnasium.make(self.env, frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
        seen = wrappers.AtariPreprocessing(game, noop_max=30, frame_skip=4)
        stack = getattr(wrappers, "FrameStackObservation", None) or wrappers.FrameStack  # the latter before 1.0
        return stack(seen, 4)


class Enough(Exception):
    """The time is over."""


class Clock:
    """From the end of the warm-up to the end of the last update."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._updates = 0
        self._start: tuple[int, float] | None = None
        self._end = (0, 0.0)

    def lap(self, updates: int, steps: int) -> bool:
        """The last of ``updates`` has just ended, after ``steps`` in all. Whether the time is over."""
        self._end = (steps, time.perf_counter())
        if self._start is None:
            if updates >= WARM_UP:
                self._start = self._end
            return False
        return self._end[1] - self._start[1] >= self._seconds

    def after(self, update: Callable[..., Any], batch: int) -> Callable[..., Any]:
        """``update`` with a lap at its end, of ``batch`` steps. It raises ``Enough`` when the time is over."""

        def timed(*arguments: Any, **options: Any) -> Any:
            answer = update(*arguments, **options)
            self._updates += 1
            if self.lap(self._updates, self._updates * batch):
                raise Enough
            return answer

        return timed

    def answer(self) -> None:
        """Prints what was timed. Exits where nothing was."""
        if self._start is None or self._start == self._end:
            sys.exit(f"it ended within the warm-up of {WARM_UP} updates")
        answer(self._end[0] - self._start[0], self._end[1] - self._start[1])


def read() -> Work:
    """The work, from the command line; from now on the process ends with whoever gave it."""
    end_with_parent()
    return Work(**json.loads(sys.argv[1]))


def answer(steps: int, seconds: float) -> None:
    """Prints what whoever started us reads."""
    print(json.dumps({"steps": steps, "seconds": seconds}), flush=True)


def end_with_parent() -> None:
    """Ends this session when standard input does, whose other end our parent holds."""
    if os.getsid(0) != os.getpid():
        return  # started by hand: the session is a user's

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
