"""Episodes under the policy's mode (or sampled), through the same actor as training, in envs of their own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pronghorn.acting.actor import Actor
from pronghorn.transport.base import WeightsIn
from pronghorn.types import IntArray

MOST_SECONDS = 600.0
MOST_STEPS = 27_000
"""Where an episode is cut in evaluation if its env sets no limit."""


@dataclass(frozen=True)
class Evaluation:
    """Raw returns and lengths of whole episodes, in the order of envs; ``capped`` counts those cut by a cap, which are
    in neither. ``steps`` were taken in all."""

    returns: list[float]
    lengths: list[int]
    capped: int
    steps: int

    def report(self) -> dict[str, float]:
        """``episodes``, ``capped``, and where there are episodes ``return_mean``, ``return_std``, ``length_mean``."""
        report: dict[str, float] = {"episodes": len(self.returns), "capped": self.capped}
        if self.returns:
            report["return_mean"] = float(np.mean(self.returns))
            report["return_std"] = float(np.std(self.returns))
            report["length_mean"] = float(np.mean(self.lengths))
        return report

    def quartiles(self) -> list[float]:
        """25, 50 and 75 per cent of the returns; empty without an episode."""
        return [float(value) for value in np.percentile(self.returns, (25, 50, 75))] if self.returns else []


class Evaluator:
    """Built once, used again and again; every evaluation plays the same held-out episodes.

    Episodes are allotted to envs beforehand, so long and short ones count alike.

    Args:
        actor: with its own envs and memory of unrolls, in evaluation's seeds.
        weights: where the newest weights come from.
        episodes: of each evaluation.
    """

    def __init__(self, actor: Actor, weights: WeightsIn, episodes: int) -> None:
        self._actor, self._weights, self.episodes = actor, weights, episodes
        envs = actor.vec.num_envs
        self._allotted: IntArray = np.full(envs, episodes // envs, np.int64)
        self._allotted[: episodes % envs] += 1

    def run(
        self, stop: Callable[[], bool] = lambda: False, most_steps: float = math.inf, most_seconds: float | None = None
    ) -> Evaluation | None:
        """Plays the episodes, in about ``most_steps`` steps and ``most_seconds`` (None: 600) at most; None if ``stop``
        came true before the end."""
        self._actor.inference.load(*self._weights.fetch())
        self._actor.start()
        left = self._allotted.copy()
        found: list[tuple[int, float, int]] = []
        longest = self._actor.vec.spec.max_episode_steps or MOST_STEPS
        most = min(most_steps, longest * int(left.max()) * self._actor.vec.num_envs)
        end, steps = time.monotonic() + (MOST_SECONDS if most_seconds is None else most_seconds), 0
        while left.any() and steps < most and time.monotonic() < end:
            batch = self._actor.collect(stop)
            if batch is None:
                return None
            steps += int(batch.valid.sum())
            for row, column in np.argwhere(batch.episode_length > 0):
                env = int(batch.env[column])
                if left[env]:
                    left[env] -= 1
                    found.append(
                        (env, float(batch.episode_return[row, column]), int(batch.episode_length[row, column]))
                    )
        found.sort(key=lambda item: item[0])
        return Evaluation([item[1] for item in found], [item[2] for item in found], int(left.sum()), steps)
