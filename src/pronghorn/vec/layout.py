"""Where envs run: in this process or in workers, by the measured time of a step."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from pronghorn import seeding, tree
from pronghorn.envs.base import EnvFactory, to_env_actions, unbatch
from pronghorn.envs.wrappers import EpisodeEnv
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, EnvSpec, Leaf
from pronghorn.vec.base import BatchedEnv, Timeouts
from pronghorn.vec.pool import PoolVec
from pronghorn.vec.rows import rows_layout
from pronghorn.vec.serial import SerialVec

Layout = Literal["serial", "pool"]

PROBE_SECONDS = 0.5
PROBE_STEPS = 400
REQUEST_SECONDS, WORKER_SECONDS = 150e-6, 25e-6
"""What a request to a pool costs on top of the stepping, in all and per worker (measured on two virtual cores)."""


def choose(factory: EnvFactory, num_envs: int, cores: int) -> tuple[Layout, int, str]:
    """(layout, number of workers, reason), the reason being one line with the numbers behind it.

    Makes one env here and steps it with random actions for half a second at most.
    """
    if cores == 1 or num_envs == 1:
        return "serial", 1, f"serial: {'one core' if cores == 1 else 'one environment'}"
    seconds = step_seconds(factory)
    workers = min(cores, num_envs)
    serial = num_envs * seconds
    pool = math.ceil(num_envs / workers) * seconds + REQUEST_SECONDS + workers * WORKER_SECONDS
    layout: Layout = "pool" if pool < serial else "serial"
    reason = (
        f"{layout}: a step takes {seconds * 1e6:.0f} µs, so {num_envs} environments take {serial * 1e6:.0f} µs in this "
        f"process, about {pool * 1e6:.0f} µs in {workers} workers"
    )
    return layout, workers if layout == "pool" else 1, reason


def step_seconds(factory: EnvFactory) -> float:
    """Median seconds of a step with random actions."""
    env = EpisodeEnv(factory, 0, seeding.Domain.PROBE_ENV, 0)
    random = seeding.generator(0, seeding.Domain.PROBE_ENV)
    arrays = tree.map(lambda array: np.zeros(array.shape, array.dtype), rows_layout(env.spec, 1))
    durations: list[float] = []
    try:
        env.attach(arrays, 0)
        env.begin(0)
        deadline = time.perf_counter() + PROBE_SECONDS
        while not durations or (len(durations) < PROBE_STEPS and time.perf_counter() < deadline):
            action = random_action(env.spec, tree.map(lambda array: array[0], arrays["observation"]), random)
            start = time.perf_counter()
            env.step(action)
            durations.append(time.perf_counter() - start)
    finally:
        env.close()
    return statistics.median(durations)


def random_action(spec: EnvSpec, observation: Tree, random: np.random.Generator) -> Tree:
    """A random action in the env's units, legal under the observation's mask if there is one."""
    mask = observation.get(ACTION_MASK) if isinstance(observation, dict) else None

    def draw(leaf: Leaf) -> Any:
        if leaf.kind == "box":
            return random.uniform(-1, 1, (1, *leaf.shape)).astype(np.float32)
        if leaf.kind == "discrete" and mask is not None and mask.shape == leaf.categories and mask.any():
            return random.choice(np.flatnonzero(mask), 1)
        return random.integers(0, np.reshape(leaf.categories, (1, *leaf.shape)))

    return unbatch(spec.action, to_env_actions(spec.action, tree.map(draw, spec.action)))[0]


def make_vec(
    factories: Sequence[EnvFactory],
    layout: Layout,
    workers: int,
    run_seed: int,
    domain: seeding.Domain,
    groups: int = 1,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
    first_index: int = 0,
) -> BatchedEnv:
    """The envs of ``factories`` in the given layout."""
    if layout == "serial":
        return SerialVec(factories, run_seed, domain, groups, first_index)
    return PoolVec(factories, run_seed, domain, groups, timeouts, first_index, workers)
