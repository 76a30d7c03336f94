"""Small envs whose every answer is known beforehand: they prove that nothing is lost, doubled, or learnt wrongly."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pronghorn.envs.text import text_leaf
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, EnvSpec, Leaf

Answer = tuple[Tree, float, bool, bool, dict[str, Any]]
Ending = Literal["terminated", "truncated", "both", "alternate"]


def _box(shape: tuple[int, ...], dtype: Any, low: float = -np.inf, high: float = np.inf) -> Leaf:
    return Leaf("box", shape, np.dtype(dtype), low=np.full(shape, low), high=np.full(shape, high))


def _discrete(n: int) -> Leaf:
    return Leaf("discrete", (), np.dtype(np.int64), categories=(n,))


class CountingEnv:
    """Observation [3] float64, whole numbers: seed of the episode, steps taken in it, sum of the actions taken.

    An episode lasts ``lengths[seed % len(lengths)]`` steps and ends as ``ending`` says; "alternate": terminated for
    even seeds, truncated for odd ones. Step t = 1, 2, … is rewarded with t. Actions 0 … 4; with ``expect_actions``
    any other than (t - 1) % 5 raises ValueError. Every ``life`` steps within an episode a life is lost (0: never).
    """

    def __init__(
        self,
        lengths: Sequence[int] = (3, 5, 1, 7, 4),
        ending: Ending = "alternate",
        expect_actions: bool = False,
        life: int = 0,
    ) -> None:
        self.spec = EnvSpec("counting", _box((3,), np.float64), _discrete(5))
        self._lengths = tuple(lengths)
        self._ending = ending
        self._expect_actions = expect_actions
        self._life = life
        self._seed = self._step = self._total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Starts the episode of ``seed``; without one, that of the last seed plus one."""
        self._seed = self._seed + 1 if seed is None else seed
        self._step = self._total = 0
        return self._observation(), {}

    def step(self, action: Tree) -> Answer:
        """Counts."""
        if self._expect_actions and action != self._step % 5:
            raise ValueError(f"action {action} where {self._step % 5} was due")
        self._step += 1
        self._total += int(action)
        over = self._step >= self._lengths[self._seed % len(self._lengths)]
        kind = ("terminated", "truncated")[self._seed % 2] if self._ending == "alternate" else self._ending
        terminated, truncated = over and kind in ("terminated", "both"), over and kind in ("truncated", "both")
        if not over and self._life and self._step % self._life == 0:
            return self._observation(), float(self._step), True, False, {"episode_over": False}
        return self._observation(), float(self._step), terminated, truncated, {}

    def close(self) -> None:
        """Nothing to do."""

    def _observation(self) -> Any:
        return np.array([self._seed, self._step, self._total], np.float64)


class TwoLengthEnv:
    """Episodes of 20 or 1000 steps at even odds (by the seed), reward 1 per step, terminated.

    Observation [2] float32: fraction of 1000 steps taken; 1 if the episode is long. Both actions do nothing.
    """

    def __init__(self) -> None:
        self.spec = EnvSpec("two-length", _box((2,), np.float32, 0, 1), _discrete(2))
        self._length = 20
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Draws the length."""
        self._length = int(np.random.default_rng(seed).choice((20, 1000)))
        self._step = 0
        return self._observation(), {}

    def step(self, action: Tree) -> Answer:
        """Counts."""
        self._step += 1
        return self._observation(), 1.0, self._step >= self._length, False, {}

    def close(self) -> None:
        """Nothing to do."""

    def _observation(self) -> Any:
        return np.array([self._step / 1000, self._length == 1000], np.float32)


class ConstantRewardEnv:
    """Reward 1 for ever, seen through a constant observation [1] float32, cut after ``limit`` steps.

    With discount γ its value is 1 / (1 - γ) if the cut is reported as truncation.
    """

    def __init__(self, limit: int = 10, terminates: bool = False) -> None:
        self.spec = EnvSpec("constant-reward", _box((1,), np.float32, 0, 1), _discrete(2), max_episode_steps=limit)
        self._limit = limit
        self._terminates = terminates
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Starts again."""
        self._step = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Tree) -> Answer:
        """Rewards."""
        self._step += 1
        over = self._step >= self._limit
        return np.ones(1, np.float32), 1.0, over and self._terminates, over and not self._terminates, {}

    def close(self) -> None:
        """Nothing to do."""


class BanditEnv:
    """A contextual bandit: observation [arms] float32, one-hot; reward 1 for the next arm (cyclically), else 0.

    Episodes of ``length`` steps with a new context each, terminated. The best return is ``length``, that of a
    uniform policy ``length / arms``.
    """

    def __init__(self, arms: int = 4, length: int = 1) -> None:
        self.spec = EnvSpec("bandit", _box((arms,), np.float32, 0, 1), _discrete(arms))
        self._arms = arms
        self._length = length
        self._random = np.random.default_rng(0)
        self._context = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Draws a context."""
        self._random = np.random.default_rng(seed)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Tree) -> Answer:
        """Rewards, and draws the next context."""
        reward = float(action == (self._context + 1) % self._arms)
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def close(self) -> None:
        """Nothing to do."""

    def _draw(self) -> Any:
        self._context = int(self._random.integers(self._arms))
        return np.eye(self._arms, dtype=np.float32)[self._context]


class MaskedBanditEnv:
    """``legal`` of ``arms`` actions are legal, anew at each step; another one raises ValueError.

    Observation: ``action_mask`` [arms] int8, and ``context`` [arms] float32, one-hot at the legal action that is
    rewarded with 1 (the others with 0). Episodes of ``length`` steps, terminated.
    """

    def __init__(self, arms: int = 50, legal: int = 3, length: int = 4) -> None:
        mask = Leaf("multi_binary", (arms,), np.dtype(np.int8), categories=(2,) * arms)
        observation = {ACTION_MASK: mask, "context": _box((arms,), np.float32, 0, 1)}
        self.spec = EnvSpec("masked-bandit", observation, _discrete(arms))
        self._arms = arms
        self._legal = legal
        self._length = length
        self._random = np.random.default_rng(0)
        self._allowed: list[int] = []
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Draws the legal actions."""
        self._random = np.random.default_rng(seed)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Tree) -> Answer:
        """Rewards, and draws anew."""
        if int(action) not in self._allowed:
            raise ValueError(f"action {action} is illegal; legal are {sorted(self._allowed)}")
        reward = float(action == self._allowed[0])
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def close(self) -> None:
        """Nothing to do."""

    def _draw(self) -> Any:
        self._allowed = self._random.choice(self._arms, self._legal, replace=False).tolist()
        mask, context = np.zeros(self._arms, np.int8), np.zeros(self._arms, np.float32)
        mask[self._allowed] = 1
        context[self._allowed[0]] = 1
        return {ACTION_MASK: mask, "context": context}


class ImageBanditEnv:
    """A contextual bandit that must be looked at: reward 1 for the action that names the bright quadrant, else 0.

    Observation uint8 [channels, side, side]: noise below 100, above 155 in the quadrant (numbered as one reads).
    Episodes of ``length`` steps with a new quadrant each, terminated. The best return is ``length``, that of a
    uniform policy ``length / 4``.
    """

    def __init__(self, channels: int = 1, side: int = 36, length: int = 4) -> None:
        self.spec = EnvSpec("image-bandit", _box((channels, side, side), np.uint8, 0, 255), _discrete(4))
        self._length = length
        self._random = np.random.default_rng(0)
        self._bright = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Draws a quadrant."""
        self._random = np.random.default_rng(seed)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Tree) -> Answer:
        """Rewards, and draws the next quadrant."""
        reward = float(action == self._bright)
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def close(self) -> None:
        """Nothing to do."""

    def _draw(self) -> Any:
        self._bright = int(self._random.integers(4))
        image = self._random.integers(0, 100, self.spec.observation.shape, np.uint8)
        half = image.shape[-1] // 2
        row, column = (half * part for part in divmod(self._bright, 2))
        image[:, row : row + half, column : column + half] += 156
        return image


class InstructionEnv:
    """A contextual bandit that must be read: reward 1 for the action (0 left, 1 right) that an instruction asks for.

    Observation: ``instruction``, a text, one of ``ORDERS``; without ``told`` always an empty one. The longest two have
    the same words. Episodes of ``length`` steps with a new instruction each, terminated. The best return is ``length``,
    without reading ``length / 2``.
    """

    ORDERS = (
        ("left", 0),
        ("right", 1),
        ("not left", 1),
        ("not right", 0),
        ("please go to the left and not to the right", 0),
        ("please go to the right and not to the left", 1),
    )

    def __init__(self, told: bool = True, length: int = 4) -> None:
        self.spec = EnvSpec("instruction", {"instruction": text_leaf()}, _discrete(2))
        self._told = told
        self._length = length
        self._random = np.random.default_rng(0)
        self._wanted = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Draws an instruction."""
        self._random = np.random.default_rng(seed)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Tree) -> Answer:
        """Rewards, and draws the next instruction."""
        reward = float(action == self._wanted)
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def close(self) -> None:
        """Nothing to do."""

    def _draw(self) -> Any:
        text, self._wanted = self.ORDERS[int(self._random.integers(len(self.ORDERS)))]
        return {"instruction": text if self._told else ""}


class CueRecallEnv:
    """Only memory helps: the first observation shows a cue, the last one asks for it; reward 1 for its number then.

    Observation [cues + 1] float32: the cue, one-hot, in the first step and zeros later; 1 in the last entry where it is
    asked for, after ``delay`` steps. All other rewards are 0. The best return is 1, without memory ``1 / cues``.
    Terminated.
    """

    def __init__(self, cues: int = 2, delay: int = 2) -> None:
        self.spec = EnvSpec("cue-recall", _box((cues + 1,), np.float32, 0, 1), _discrete(cues))
        self._cues = cues
        self._delay = delay
        self._cue = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Draws a cue."""
        self._cue = int(np.random.default_rng(seed).integers(self._cues))
        self._step = 0
        return self._observation(), {}

    def step(self, action: Tree) -> Answer:
        """Rewards the answer."""
        asked = self._step == self._delay
        self._step += 1
        return self._observation(), float(asked and action == self._cue), asked, False, {}

    def close(self) -> None:
        """Nothing to do."""

    def _observation(self) -> Any:
        shown = np.zeros(self._cues + 1, np.float32)
        shown[self._cue] = self._step == 0
        shown[-1] = self._step == self._delay
        return shown


class FaultyEnv:
    """A ``CountingEnv`` that fails in its ``at``-th call (from 0) of ``phase``: construct, reset or step.

    ``fault``: "raise" RuntimeError("out of order"), "hang" for an hour, "die" (the process exits with code 7), "kill"
    (by signal 9), or "nan" (a reset or step that observes NaN). With ``once`` (a file's name) it fails only where there
    is no such file, and leaves one: the env that takes its place is sound.
    """

    def __init__(
        self,
        fault: Literal["raise", "hang", "die", "kill", "nan"],
        phase: Literal["construct", "reset", "step", "close"],
        at: int = 0,
        lengths: Sequence[int] = (3, 5, 1, 7, 4),
        once: str = "",
    ) -> None:
        self._inner = CountingEnv(lengths)
        self.spec = self._inner.spec
        self._fault = fault
        self._once = once
        self._phase = phase
        self._left = at
        self._fail("construct")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """As ``CountingEnv``, or not."""
        observation, info = self._inner.reset(seed=seed)
        return (observation * np.nan if self._fail("reset") else observation), info

    def step(self, action: Tree) -> Answer:
        """As ``CountingEnv``, or not."""
        observation, *rest = self._inner.step(action)
        return (observation * np.nan if self._fail("step") else observation, *rest)

    def close(self) -> None:
        """Nothing to do, or a failure."""
        self._fail("close")

    def _fail(self, phase: str) -> bool:
        if phase != self._phase:
            return False
        self._left -= 1
        if self._left != -1:
            return False
        if self._once:
            if Path(self._once).exists():
                return False
            Path(self._once).touch()
        if self._fault == "raise":
            raise RuntimeError("out of order")
        if self._fault == "hang":
            time.sleep(3600)
        if self._fault == "die":
            os._exit(7)
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return True
