"""A share of every batch from what was learnt from before (Espeholt et al. 2018, section 5.2.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pronghorn.memory.replay import ReplayBuffer
from pronghorn.runners.sync import Acting, Collector
from pronghorn.types import EnvSpec, Metrics, Trajectory


class ReplayingCollector:
    """A collector whose batches hold ``count`` replayed columns behind the fresh ones, once the buffer has so many.

    The buffer is no part of a checkpoint: after a restore it fills anew.
    """

    def __init__(self, collector: Collector, buffer: ReplayBuffer, count: int) -> None:
        self._collector, self._buffer, self._count = collector, buffer, count

    @property
    def inference(self) -> Acting:
        """That of the fresh columns."""
        return self._collector.inference

    @property
    def spec(self) -> EnvSpec:
        """Of the envs."""
        return self._collector.spec

    @property
    def longest_running(self) -> int:
        """Steps of the longest episode that has not ended."""
        return self._collector.longest_running

    def start(self) -> None:
        """Begins the first episodes."""
        self._collector.start()

    def collect(self, stop: Callable[[], bool]) -> Trajectory | None:
        """The next batch; None if ``stop`` came true first. Fresh columns are kept for later batches."""
        return self._joined(self._collector.collect(stop))

    def ahead(self) -> Trajectory | None:
        """The same of a batch that is there already."""
        return self._joined(self._collector.ahead())

    def _joined(self, fresh: Trajectory | None) -> Trajectory | None:
        if fresh is None or self.inference.mode == "random":
            return fresh
        batch = fresh
        if self._buffer.size >= self._count:
            batch = self._buffer.joined(fresh, self._buffer.sample(self._count, self.inference.version))
        self._buffer.add(fresh)
        return batch

    def metrics(self) -> Metrics:
        """What a report says of acting, and how many unrolls are kept."""
        sizes = {"replay/size": self._buffer.size} if self._buffer.size else {}
        return {**self._collector.metrics(), **sizes}

    def abandon(self) -> None:
        """Lets go of the envs for good."""
        self._collector.abandon()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, numbers) for a checkpoint."""
        return self._collector.state()

    def restore(self, arrays: dict[str, Any], numbers: dict[str, Any]) -> bool:
        """Goes on from a checkpoint; whether the envs stand where they stood."""
        return self._collector.restore(arrays, numbers)
