"""How a number changes over a run: functions of its start value and the fraction of the run that is done."""

from __future__ import annotations

from collections.abc import Callable


def linear(start: float, fraction_done: float) -> float:
    """From ``start`` to 0 at the end of the run; 0 beyond it, ``start`` before it."""
    return start * min(1.0, max(0.0, 1.0 - fraction_done))


def constant(start: float, fraction_done: float) -> float:
    """Always ``start``."""
    return start


SCHEDULES: dict[str, Callable[[float, float], float]] = {"linear": linear, "constant": constant}
