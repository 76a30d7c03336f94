"""What a slow actor costs the others: one of three steps its envs 50 ms slower each.

The envs sleep instead of computing, so no actor wants for a core, and what the others lose they lose to waiting.
Rounds with and without the slow one are taken in turn; the learner only takes batches and publishes weights.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from pronghorn import build
from pronghorn.config import RunConfig, override
from pronghorn.envs.probes import CountingEnv
from pronghorn.presets.resolve import resolve
from pronghorn.processes.supervise import Supervisor
from pronghorn.transport.shared import SharedWeights, weights_layout

ACTORS, ENVS_EACH = 3, 2


class SleepingEnv(CountingEnv):
    """Takes ``seconds`` a step, and ``slow`` more in the first process that makes one, which leaves a ``mark``."""

    def __init__(self, seconds: float, slow: float, mark: str) -> None:
        super().__init__()
        path = Path(mark)
        with suppress(FileExistsError), path.open("x") as file:
            file.write(str(os.getpid()))
        self._seconds = seconds + (slow if path.read_text() == str(os.getpid()) else 0.0)

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return super().step(action)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=float, default=0.002, help="seconds of a step")
    parser.add_argument("--slow", type=float, default=0.05, help="seconds more of a slow step")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    kept = []
    for number in range(arguments.repeats):
        plain = others(arguments, 0.0)
        beside = others(arguments, arguments.slow)
        kept.append(beside / plain)
        print(f"round {number}: the other actors make {plain:.0f} steps/s, {beside:.0f} beside a slow one", flush=True)
    print(f"kept: {np.median(kept):.3f} ({min(kept):.3f}–{max(kept):.3f})")


def others(arguments: argparse.Namespace, slow: float) -> float:
    """Steps a second of the fastest two actors."""
    with tempfile.TemporaryDirectory() as folder:
        mark = str(Path(folder) / "slow")
        Path(mark).write_text("nobody")  # while the envs are looked at
        made = config(arguments.step, slow, mark)
        spec = build.env_spec(made)
        learner = build.learner(made, spec)
        with closing(SharedWeights(weights_layout(learner.weights()))) as weights:
            actors, close = build.remote_actors(made, spec, weights, Supervisor(), print)
            try:
                weights.publish(learner.weights(), 0)
                actors.inference.load(learner.weights(), 0)
                Path(mark).unlink()
                actors.start()
                for _ in range(3):  # the first are of random actions, after which they wait for weights
                    actors.collect()
                    weights.publish(learner.weights(), 0)
                counts, begun = np.zeros(ACTORS), time.perf_counter()
                while time.perf_counter() - begun < arguments.seconds:
                    batch = actors.collect()
                    np.add.at(counts, batch.env // ENVS_EACH, made.loss.unroll_length)
                    weights.publish(learner.weights(), 0)
                return float(np.sort(counts)[1:].sum() / (time.perf_counter() - begun))
            finally:
                close()


def config(seconds: float, slow: float, mark: str) -> RunConfig:
    """Three actors with two envs each, batches of four unrolls in the order of completion."""
    _, made = resolve(f"{Path(__file__).resolve()}:SleepingEnv", "impala")
    return override(
        made,
        runner="async",
        actors=ACTORS,
        num_envs=ACTORS * ENVS_EACH,
        batch_size=4,
        max_policy_lag=1000,
        unroll_length=20,
        layout="serial",
        workers=1,
        layers=(8,),
        env_args={"seconds": seconds, "slow": slow, "mark": mark},
    )


if __name__ == "__main__":
    main()
