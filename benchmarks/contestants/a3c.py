"""A3C (Mnih et al. 2016), out of Pronghorn's parts: every worker acts, computes gradients and applies them by itself.

Weights and RMSProp's mean squares lie in shared memory. Nothing is normalised, neither observations nor rewards: such
statistics belong to one learner, and here there is none.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from a3c_worker import Setup

from pronghorn import build
from pronghorn.config import RunConfig, override
from pronghorn.presets.resolve import resolve
from pronghorn.processes.launch import launch
from pronghorn.processes.shared import ArraySpec, SharedArrays
from pronghorn.tools.peers import work
from pronghorn.vec.engines import native_rule

START_SECONDS = 120.0
END_SECONDS = 5.0
WARM_UP = 3
"""Updates of each worker that are not timed."""


class Workers:
    """Running workers, and ``arrays`` that they share (see ``Setup``); ``weights`` begin as those of an agent."""

    def __init__(self, config: RunConfig, count: int) -> None:
        agent = build.agent(config, build.env_spec(config))
        weights = torch.cat([parameter.detach().flatten() for parameter in agent.parameters()]).numpy()
        layout = {
            "weights": ArraySpec(weights.shape, weights.dtype),
            "mean_square": ArraySpec(weights.shape, weights.dtype),
            "steps": ArraySpec((count,), np.dtype(np.int64)),
            "updates": ArraySpec((count,), np.dtype(np.int64)),
        }
        self._shared = SharedArrays(layout)
        self.arrays: dict[str, Any] = self._shared.arrays
        self.arrays["weights"][:] = weights
        self.arrays["mean_square"][:] = 1.0  # as TensorFlow's
        self.children = []
        shares = np.array_split(np.arange(config.vec.num_envs), count)
        for number, share in enumerate(shares):
            child = launch("a3c_worker", threads=1, fds=(self._shared.fd,))
            self.children.append(child)
            # A seed of its own: envs and noise are named by seed and index, and every worker counts from 0.
            own = override(config, num_envs=len(share), seed=config.seed + number)
            child.send(Setup(own, number, layout, self._shared.fd))

    @property
    def steps(self) -> int:
        """Made by all of them so far."""
        return int(self.arrays["steps"].sum())

    def updated(self, times: int) -> bool:
        """Whether every worker has made so many updates. Raises RuntimeError where one has died."""
        for child in self.children:
            if child.process.poll() is not None:
                raise RuntimeError(f"a worker of A3C {child.fate()}")
        return bool((self.arrays["updates"] >= times).all())

    def close(self) -> None:
        """Ends them; none would by itself."""
        for child in self.children:
            child.end(0.0)
        self._shared.close()


@contextmanager
def running(config: RunConfig, count: int) -> Iterator[Workers]:
    """Workers past their warm-up.

    Raises:
        RuntimeError: one has died, or they were not there within 120 s.
    """
    workers = Workers(config, count)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not workers.updated(WARM_UP):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the workers of A3C have not begun within {START_SECONDS:g} s")
            time.sleep(0.01)
        yield workers
        workers.updated(0)
    finally:
        workers.close()


def configure(env: str, num_envs: int, options: dict[str, Any]) -> RunConfig:
    """The preset of A2C for ``env``, without statistics, and with ``options``."""
    _, config = resolve(env, "a2c")
    layout = "native" if native_rule(env) else "serial"
    config = override(config, layout=layout, workers=1, normalise_observations=False, reward_scaling="none")
    return override(config, num_envs=num_envs, optimiser_name="rmsprop", **options)


def check() -> None:
    """Two workers on CartPole for a second: both apply gradients, the weights move and stay finite, and all end."""
    with running(configure("CartPole-v1", 4, {}), 2) as workers:
        arrays = workers.arrays
        before, updates = arrays["weights"].copy(), arrays["updates"].copy()
        time.sleep(1.0)
        made, after = arrays["updates"] - updates, arrays["weights"].copy()
    assert (made > 0).all(), f"updates of each worker: {made}"
    assert np.isfinite(after).all(), "weights are not finite"
    assert (before != after).any(), "no weight has changed"
    assert all(child.process.poll() is not None for child in workers.children), "a worker is still running"
    print(f"A3C works: {' + '.join(str(number) for number in made)} updates in a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--num-envs", type=int, default=32, help="shared out among the workers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20_000, help="timed, after the warm-up")
    parser.add_argument("--options", type=json.loads, default={}, help="of the run, as a JSON object")
    parser.add_argument("--check", action="store_true", help="see whether it works at all, on CartPole")
    arguments = parser.parse_args()
    if arguments.check:
        check()
        return
    if not 1 <= arguments.workers <= arguments.num_envs:
        parser.error(f"--workers {arguments.workers} must be from 1 to --num-envs {arguments.num_envs}")
    with running(configure(arguments.env, arguments.num_envs, arguments.options), arguments.workers) as workers:
        before, start = workers.steps, time.perf_counter()
        while workers.steps - before < arguments.steps:
            workers.updated(0)
            time.sleep(0.01)
        work.answer(workers.steps - before, time.perf_counter() - start)


if __name__ == "__main__":
    main()
