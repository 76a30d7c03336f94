"""Where the wall time goes, phase by phase. Cheap enough to be always on."""

from __future__ import annotations

import time
from collections.abc import Callable


class PhaseTimers:
    """Sums the seconds spent in named phases: ``with timers("env"): …``.

    A phase must not be entered again while it runs; phases inside each other are each counted in full.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._phases: dict[str, _Phase] = {}

    def __call__(self, phase: str) -> _Phase:
        """The context manager of ``phase``, the same object each time."""
        if phase not in self._phases:
            self._phases[phase] = _Phase(self._clock)
        return self._phases[phase]

    def seconds(self) -> dict[str, float]:
        """Seconds by phase since the last reset, finished passes only."""
        return {name: phase.total for name, phase in self._phases.items()}

    def shares(self, total: float) -> dict[str, float]:
        """``{"time/env": …}``: each phase's part of ``total`` seconds of wall time; empty if ``total`` is 0."""
        return {f"time/{name}": seconds / total for name, seconds in self.seconds().items()} if total > 0 else {}

    def reset(self) -> None:
        """Starts all sums at zero. A pass under way is counted in full when it ends."""
        for phase in self._phases.values():
            phase.total = 0.0


class _Phase:
    __slots__ = ("_clock", "_start", "total")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = 0.0
        self.total = 0.0

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *_: object) -> None:
        self.total += self._clock() - self._start
