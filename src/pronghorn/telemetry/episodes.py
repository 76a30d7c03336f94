"""Statistics of finished episodes, over a window of the newest."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


class EpisodeStatistics:
    """Counts episodes and averages the newest ``window`` of them, over all tasks and per task.

    ``tasks`` names the tasks; with fewer than two nothing is reported per task.
    """

    def __init__(self, window: int = 100, tasks: Sequence[str] = ()) -> None:
        self._episodes = 0
        self._newest: deque[tuple[float, int]] = deque(maxlen=window)
        self._by_task: dict[str, deque[float]] = {}
        if len(tasks) > 1:
            self._by_task = {name: deque(maxlen=window) for name in tasks}

    def add(self, returns: ArrayLike, lengths: ArrayLike, tasks: ArrayLike) -> None:
        """Adds episodes in the order they ended: undiscounted raw returns, lengths in steps, task indices, all [n]."""
        names = list(self._by_task)
        columns = [np.asarray(array).tolist() for array in (returns, lengths, tasks)]
        for episode_return, length, task in zip(*columns, strict=True):
            self._episodes += 1
            self._newest.append((episode_return, length))
            if names:
                self._by_task[names[task]].append(episode_return)

    def report(self) -> dict[str, float]:
        """``episodes`` ended so far, ``return/mean``, ``length/mean``, ``task/NAME/return``; no mean of nothing."""
        report: dict[str, float] = {"episodes": self._episodes}
        if self._newest:
            returns, lengths = zip(*self._newest, strict=True)
            report |= {"return/mean": fmean(returns), "length/mean": fmean(lengths)}
        return report | {f"task/{name}/return": fmean(window) for name, window in self._by_task.items() if window}

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "episodes": self._episodes,
            "newest": [list(episode) for episode in self._newest],
            "tasks": {name: list(window) for name, window in self._by_task.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``state()`` gave. Tasks this run does not have are forgotten."""
        self._episodes = state["episodes"]
        self._newest.clear()
        self._newest.extend((episode_return, length) for episode_return, length in state["newest"])
        for name, window in self._by_task.items():
            window.clear()
            window.extend(state["tasks"].get(name, []))
