"""Steps envs with random actions and no network, in the layout asked for. Counts only steps that an action caused."""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Generator

import work

BANK = 64
"""Batches of random actions, drawn before the clock starts and used over and over."""
WARM_UP = 50
"""Batches that are not timed."""
LOOK = 16
"""Batches between two looks at the clock."""


def pronghorn_layout(layout: str) -> Callable[[str, int], Generator[int, None, None]]:
    """Pronghorn's serial or pool layout, with a worker per core: steps in each batch."""

    def batches(env: str, num_envs: int) -> Generator[int, None, None]:
        import numpy as np

        from pronghorn import seeding, tree
        from pronghorn.envs.gymnasium import env_factory
        from pronghorn.types import Leaf
        from pronghorn.vec.layout import make_vec

        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        envs = make_vec([env_factory(env, {})] * num_envs, layout, cores, 0, seeding.Domain.PROBE_ENV)
        random = np.random.default_rng(0)

        def draw(leaf: Leaf) -> np.ndarray:
            if leaf.kind == "box":
                return random.uniform(-1, 1, (num_envs, *leaf.shape)).astype(np.float32)
            return random.integers(np.reshape(leaf.categories, leaf.shape), size=(num_envs, *leaf.shape))

        try:
            bank = [tree.map(draw, envs.spec.action) for _ in range(BANK)]
            envs.reset(np.zeros(num_envs, np.int64))
            for actions in itertools.cycle(bank):
                step = envs.recv()
                yield int(step.valid.sum())
                envs.send(tree.map(lambda array, rows=step.envs: array[rows], actions), step.envs)
        finally:
            envs.close()

    return batches


def gymnasium_vector(mode: str) -> Callable[[str, int], Generator[int, None, None]]:
    """gymnasium's SyncVectorEnv or AsyncVectorEnv (with its shared memory): steps in each batch."""

    def batches(env: str, num_envs: int) -> Generator[int, None, None]:
        import gymnasium

        envs = gymnasium.make_vec(env, num_envs, vectorization_mode=mode, disable_env_checker=True)
        envs.action_space.seed(0)
        bank = [envs.action_space.sample() for _ in range(BANK)]
        envs.reset(seed=0)
        resetting = 0
        try:
            for actions in itertools.cycle(bank):
                _, _, terminated, truncated, _ = envs.step(actions)
                yield num_envs - resetting
                resetting = int((terminated | truncated).sum())
        finally:
            envs.close()

    return batches


LAYOUTS = {
    "pronghorn-pool": pronghorn_layout("pool"),
    "pronghorn-serial": pronghorn_layout("serial"),
    "gymnasium-sync": gymnasium_vector("sync"),
    "gymnasium-async": gymnasium_vector("async"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    batches = LAYOUTS[options.layout](options.env, options.num_envs)
    for _ in range(WARM_UP):
        next(batches)
    steps, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < options.seconds:
        steps += sum(itertools.islice(batches, LOOK))
    batches.close()
    work.answer(steps, seconds)


if __name__ == "__main__":
    main()
