"""Where envs run: in this process or in workers, by the measured time of a step."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Literal

import numpy as np

from pronghorn import seeding, tree
from pronghorn.envs.base import EnvFactory, action_converter, unbatch
from pronghorn.envs.wrappers import EpisodeEnv
from pronghorn.processes.supervise import Notes, Supervisor, unread
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, EnvSpec, Leaf
from pronghorn.vec.base import BatchedEnv, EnvError, Timeouts
from pronghorn.vec.pool import PoolVec
from pronghorn.vec.rows import own_rows
from pronghorn.vec.serial import SerialVec

Layout = Literal["serial", "pool"]

PROBE_SECONDS = 0.5
PROBE_STEPS = 400
REQUEST_SECONDS, WORKER_SECONDS = 100e-6, 25e-6
"""What a request to a pool costs on top of the stepping, in all and per worker (measured on two virtual cores)."""

UNSURE = 3.0
"""Where estimates are nearer to each other than this factor, both layouts are tried."""

MOST_TRIED = 512
"""With more envs than this estimates have to do: it has not been checked yet whether so many fit into memory."""

TRIAL_SECONDS = 0.3


def look_at(factory: EnvFactory, notes: Notes | None = None) -> EnvSpec:
    """The spec of an env that is made here and closed again; ``notes`` tell a ``Watchdog`` of it."""
    with _probe(factory, notes) as env:
        return env.spec


def choose(
    factory: EnvFactory, num_envs: int, cores: int, groups: int = 1, notes: Notes | None = None
) -> tuple[Layout, int, str]:
    """(layout, number of workers, reason), the reason being one line with the numbers behind it.

    Makes one env here and steps it with random actions for half a second at most. Where the time of a step does not
    decide it, both layouts are made and stepped for a moment. ``notes`` tell a ``Watchdog`` of what is called here.
    """
    if cores == 1 or num_envs == 1:
        return "serial", 1, f"serial: {'one core' if cores == 1 else 'one environment'}"
    seconds = step_seconds(factory, notes)
    workers = min(cores, num_envs)
    serial = num_envs * seconds
    pool = math.ceil(num_envs / workers) * seconds + REQUEST_SECONDS + workers * WORKER_SECONDS
    basis = f"a step takes {seconds * 1e6:.0f} µs"
    if 1 / UNSURE < serial / pool < UNSURE and num_envs <= MOST_TRIED:
        serial, pool = (
            round_seconds(factory, num_envs, layout, workers, groups, notes) for layout in ("serial", "pool")
        )
        basis = "measured"
    layout: Layout = "pool" if pool < serial else "serial"
    reason = (
        f"{layout}: {basis}, {num_envs} environments take {serial * 1e6:.0f} µs in this process, "
        f"{'' if basis == 'measured' else 'about '}{pool * 1e6:.0f} µs in {workers} workers"
    )
    return layout, workers if layout == "pool" else 1, reason


def step_seconds(factory: EnvFactory, notes: Notes | None = None) -> float:
    """Median seconds of a step with random actions."""
    random = seeding.generator(0, seeding.Domain.PROBE_ENV)
    durations: list[float] = []
    with _probe(factory, notes) as env:
        arrays = own_rows(env.spec, 1)
        convert = action_converter(env.spec.action)
        env.attach(arrays, 0)
        env.begin(0)
        deadline = time.perf_counter() + PROBE_SECONDS
        while not durations or (len(durations) < PROBE_STEPS and time.perf_counter() < deadline):
            sampled = random_actions(env.spec, arrays["observation"], 1, random)
            action = unbatch(env.spec.action, convert(sampled))[0]
            start = time.perf_counter()
            try:
                env.step(action)
            except EnvError:
                if not durations:
                    raise
                break  # whether it is started again is not decided here
            durations.append(time.perf_counter() - start)
    return statistics.median(durations)


@contextmanager
def _probe(factory: EnvFactory, notes: Notes | None) -> Iterator[EpisodeEnv]:
    """An env that belongs to no run. Whether it can be closed does not matter."""
    notes = notes or unread()
    env = EpisodeEnv(factory, 0, seeding.Domain.PROBE_ENV, 0, functools.partial(notes, 0))
    try:
        yield env
    finally:
        with suppress(EnvError):
            env.close()
        notes.idle()


def round_seconds(
    factory: EnvFactory, num_envs: int, layout: Layout, workers: int, groups: int, notes: Notes | None = None
) -> float:
    """Seconds in which all envs of a layout take a step, with random actions."""
    random = seeding.generator(0, seeding.Domain.PROBE_ENV)
    with closing(
        make_vec([factory] * num_envs, layout, workers, 0, seeding.Domain.PROBE_ENV, groups, first_index=1, notes=notes)
    ) as vec:
        vec.reset(np.zeros(num_envs, np.int64))

        def seconds_per_round(duration: float) -> float:
            start = stop = time.perf_counter()
            steps = 0
            while steps < num_envs or stop - start < duration:
                step = vec.recv()
                vec.send(random_actions(vec.spec, step.observation, len(step.envs), random), step.envs)
                steps += len(step.envs)
                stop = time.perf_counter()
            return (stop - start) * num_envs / steps

        seconds_per_round(TRIAL_SECONDS / 3)  # to get warm
        return seconds_per_round(TRIAL_SECONDS)


def random_actions(spec: EnvSpec, observation: Tree, count: int, random: np.random.Generator) -> Tree:
    """``count`` random actions as an agent would sample them, legal under the mask of ``observation`` [count, …], if
    it has one."""
    mask = observation.get(ACTION_MASK) if isinstance(observation, dict) else None
    at = 0

    def draw(leaf: Leaf) -> Any:
        nonlocal at
        if leaf.kind == "box":
            return random.uniform(-1, 1, (count, *leaf.shape)).astype(np.float32)
        if mask is None:
            return random.integers(0, np.reshape(leaf.categories, leaf.shape), (count, *leaf.shape))
        chosen = []
        for categories in leaf.categories:
            legal = mask.reshape(count, -1)[:, at : at + categories] != 0
            chosen.append((random.uniform(0.5, 1, legal.shape) * legal).argmax(axis=1))
            at += categories
        return np.stack(chosen, 1).reshape(count, *leaf.shape)

    return tree.map(draw, spec.action)


def make_vec(
    factories: Sequence[EnvFactory],
    layout: Layout,
    workers: int,
    run_seed: int,
    domain: seeding.Domain,
    groups: int = 1,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
    first_index: int = 0,
    supervisor: Supervisor | None = None,
    notes: Notes | None = None,
    ready: int | None = None,
) -> BatchedEnv:
    """The envs of ``factories`` in the given layout; see there."""
    if layout == "serial":
        return SerialVec(factories, run_seed, domain, groups, first_index, supervisor, notes, ready)
    return PoolVec(factories, run_seed, domain, groups, timeouts, first_index, workers, supervisor, ready)
