"""The protocols between actors and learner: unrolls one way, weights the other. Neither side knows the distance."""

from __future__ import annotations

from typing import Any, Protocol

from pronghorn.types import Trajectory


class WeightsOut(Protocol):
    """The learner's end: publishes one state dict, parameters and statistics together, under one version."""

    def publish(self, state: dict[str, Any], version: int) -> None:
        """Makes ``state`` the newest weights. Readers see all of it or none."""


class WeightsIn(Protocol):
    """An actor's end."""

    def fetch(self) -> tuple[dict[str, Any], int]:
        """The newest published (state, version).

        Raises:
            TimeoutError: nothing was published within the transport's time-out.
        """


class UnrollsIn(Protocol):
    """The learner's end: finished columns, as batches."""

    def ready(self) -> bool:
        """Whether a full batch is waiting."""

    def take(self) -> Trajectory:
        """The next batch. The arrays are the caller's."""


class UnrollsOut(Protocol):
    """An actor's end: columns to fill. Only column numbers are passed around."""

    def begin(self, env: int) -> int:
        """A free column for ``env``; -1 if none is free now."""

    def finish(self, column: int, length: int) -> None:
        """Hands over a column of which ``length`` rows are filled."""
