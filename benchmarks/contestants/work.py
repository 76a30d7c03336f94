"""The reference work ``cheetah-ppo``, and the clock that all contestants are timed by."""

from __future__ import annotations

import argparse
import json
import time

ENV = "HalfCheetah-v5"
NUM_ENVS = 16
UNROLL_LENGTH = 128
EPOCHS = 10
MINIBATCHES = 4
LAYERS = (64, 64)
LEARNING_RATE = 3e-4
BATCH = NUM_ENVS * UNROLL_LENGTH

WARM_UP = 2
"""Updates that are not timed: imports, allocation, compilation and caches are over by then."""


def steps() -> int:
    """``--steps`` of the command line, rounded down to whole updates. Exits where none is left to time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    updates: int = parser.parse_args().steps // BATCH
    if updates <= WARM_UP:
        parser.error(f"--steps must be at least {(WARM_UP + 1) * BATCH}")
    return updates * BATCH


def answer(steps: int, seconds: float) -> None:
    """Prints what the runner reads."""
    print(json.dumps({"steps": steps, "seconds": seconds}))


class Laps:
    """The ends of updates, by the clock."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def lap(self) -> None:
        """An update has just ended."""
        self.ends.append(time.perf_counter())

    def answer(self) -> None:
        """Prints steps and seconds from the end of the warm-up to the end of the last update."""
        timed = self.ends[WARM_UP - 1 :]
        answer((len(timed) - 1) * BATCH, timed[-1] - timed[0])
