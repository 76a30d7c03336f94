"""What ``pronghorn bench`` measures, in a process of its own. Run as ``python -m pronghorn.tools.parts``.

Each part is a generator that does its work batch by batch and yields the steps in each.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from pronghorn import api, build, tree
from pronghorn.acting.inference import Inference
from pronghorn.config import RunConfig, from_json, override, to_json
from pronghorn.decisions import acting_threads
from pronghorn.envs import own
from pronghorn.learning.learner import Learner
from pronghorn.networks.encoders import Inputs
from pronghorn.processes.launch import available_cores, enter
from pronghorn.processes.supervise import Watchdog
from pronghorn.runners.sync import REPORTS
from pronghorn.seeding import Domain
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.tools.bench import Decided, Order, Part, Trial, thread_counts
from pronghorn.types import ACTION_MASK, EnvSpec, Trajectory, UserError
from pronghorn.vec.base import EnvError, Failed, last_words
from pronghorn.vec.engines import has_native
from pronghorn.vec.layout import random_actions

Batches = Generator[int, None, None]
"""Steps in each batch."""

BANK = 64
"""Batches of random actions, drawn before the clock starts and used over and over."""

WARM_UP = 0.1
"""Of the measured time, and one batch at least, is worked beforehand without being counted."""

INTERVALS = 4
"""In the measured time of a run whose own reports would come more rarely: a report costs some forward passes."""


class Spent(NamedTuple):
    """Steps that were made, and what they took: seconds by the clock, and of processor time in all threads. ``waits``
    counts how often a core was given up of one's own accord."""

    steps: int
    wall: float
    processor: float
    waits: int


def timed(batches: Batches, seconds: float) -> Spent:
    """Works for ``seconds``, and one batch at least, after a warm-up; then closes ``batches``."""
    with closing(batches):
        _work(batches, WARM_UP * seconds)
        return _work(batches, seconds)


def measure(config: RunConfig, seconds: float, watchdog: Watchdog) -> Iterator[Decided | Part]:
    """Each part by itself, for ``seconds``; ``watchdog`` looks after envs that run in this process."""
    config, reasons = api.decide(config)
    yield Decided(to_json(config), reasons)
    yield env_part(config, seconds, watchdog)
    spec = build.env_spec(config, watchdog)
    learner = build.learner(config, spec)
    acting, batch = played(config, learner, watchdog)
    yield inference_part(config, spec, acting, batch, seconds)
    yield learn_part(config, spec, batch, seconds)


def env_part(config: RunConfig, seconds: float, watchdog: Watchdog | None = None) -> Part:
    """Stepping with random actions, in the layouts that the run could have.

    Processor time counts, which is the same on a busy machine. But an env that waits for something else in its steps
    (a simulator in a process of its own) takes its core for as long as the clock says.
    """
    cores, vec = len(available_cores()), config.vec
    workers = vec.workers or 1
    ways: list[tuple[str, int]]
    if vec.layout == "native":
        ways = [("native", count) for count in thread_counts(min(cores, vec.num_envs), workers)]
    else:
        ways = [("serial", 1)]
        if config.runner == "sync":
            counts = thread_counts(min(cores, vec.num_envs), workers if vec.layout == "pool" else 1)
            ways += [("pool", count) for count in counts if count > 1 or (vec.layout, count) == ("pool", workers)]
    beyond = (
        [("native", cores)] if config.runner == "sync" and vec.layout != "native" and has_native(config.env) else []
    )
    share = seconds / len(ways + beyond)

    def trial(layout: str, workers: int) -> Trial:
        spent = timed(stepping(override(config, layout=layout, workers=workers), watchdog), share)
        waits = spent.waits > spent.steps / 2
        busy = spent.wall * workers if layout == "pool" else spent.wall if waits else spent.processor
        return Trial(way_to_step(layout, workers), workers, busy / spent.steps, spent.wall / spent.steps)

    trials, others = [trial(*way) for way in ways], []
    with suppress(UserError, EnvError):  # an engine that does not suit this env is no alternative
        others = [trial(*way) for way in beyond]
    return Part("env", tuple(trials), way_to_step(vec.layout, workers), tuple(others))


def inference_part(config: RunConfig, spec: EnvSpec, acting: Inference, batch: Trajectory, seconds: float) -> Part:
    """Forward passes for as many envs as wait for one at a time."""
    vec, there = config.vec, config.inference == "learner"
    together = vec.ready_envs or -(-vec.num_envs // (vec.groups if config.runner == "sync" else config.actors or 1))
    device = config.device if there else "cpu"
    served = Inference(acting.agent, device=device)
    used = acting_threads(config, spec) if config.runner == "sync" else 1
    counts = thread_counts(len(available_cores()), used) if device == "cpu" else [used]

    def trial(threads: int) -> Trial:
        torch.set_num_threads(threads)
        rows = vec.num_envs if there else together
        return _computed(timed(choosing(served, batch, rows), seconds / len(counts)), threads, device)

    trials = tuple(trial(threads) for threads in counts)
    torch.set_num_threads(used)
    return Part("inference", trials, _threads(used))


def learn_part(config: RunConfig, spec: EnvSpec, batch: Trajectory, seconds: float) -> Part:
    """Updates from one batch, with all passes over it.

    Compiled ones are measured with one thread, with all cores, and with what the run uses: each has to be compiled.
    """
    cores, used = len(available_cores()), config.threads or 1
    counts = thread_counts(cores, used)
    if config.compile:
        counts = sorted({1, cores, used})
    if config.device != "cpu":
        counts = [used]
    compiling = 0.0
    trials = []
    for threads in counts:
        learner = build.learner(override(config, threads=threads), spec)
        start = time.perf_counter()
        if config.compile:
            learner.prepare(batch)
            compiling += time.perf_counter() - start
        trials.append(_computed(timed(learning(learner, batch), seconds / len(counts)), threads, config.device))
    return Part("learn", tuple(trials), _threads(used), compile_seconds=compiling)


def stepping(config: RunConfig, watchdog: Watchdog | None = None) -> Batches:
    """The envs of a config, in its layout, with random actions. Only steps that an action caused are counted."""
    random = np.random.default_rng(0)
    with closing(build.vec(config, Domain.PROBE_ENV, watchdog=watchdog)) as envs:
        masked = isinstance(envs.spec.observation, dict) and ACTION_MASK in envs.spec.observation
        bank = [random_actions(envs.spec, (), envs.num_envs, random) for _ in range(0 if masked else BANK)]
        envs.reset(np.zeros(envs.num_envs, np.int64))
        number = 0
        while True:
            step = envs.recv()
            yield int(step.valid.sum())
            if masked:
                actions = random_actions(envs.spec, step.observation, len(step.envs), random)
            else:
                actions = tree.map(lambda array, rows=step.envs: array[rows], bank[number % BANK])
            envs.send(actions, step.envs)
            number += 1


def played(config: RunConfig, learner: Learner, watchdog: Watchdog | None = None) -> tuple[Inference, Trajectory]:
    """Who acts, with the weights of ``learner``, and a batch by it, shaped as those of the run, replayed part too."""
    one_each = config.loss.episodes_per_update is None
    num_envs = config.columns_per_update if one_each else config.vec.num_envs
    # The sync runner's actor makes any batch: of an actor process's columns it only has to have as many.
    gathering = override(
        config, runner="sync", inference="actor", batch_size=None, num_envs=num_envs, groups=1, ready_envs=None
    )
    with closing(build.vec(gathering, Domain.PROBE_ENV, watchdog=watchdog)) as envs:
        actor = build.actor(gathering, envs, PhaseTimers())
        actor.inference.load(learner.weights(), learner.version)
        collector = build.replaying(gathering, envs.spec, actor)
        collector.start()
        batch = None
        while batch is None or batch.reward.shape[1] < config.columns_per_update + config.replayed_columns:
            batch = collector.collect(lambda: False)
    return actor.inference, batch


def choosing(acting: Inference, batch: Trajectory, rows: int) -> Batches:
    """Forward passes for ``rows`` envs, on the first observations of a batch."""
    columns = np.arange(rows) % batch.reward.shape[1]
    observation: Any = tree.map(lambda array: array[0, columns], batch.observation)
    state = tree.map(lambda array: array[columns], batch.core_state)
    if acting.agent.last_step is not None:
        last_action = tree.map(lambda array: array[columns], batch.last_action)
        observation = Inputs(observation, last_action, batch.last_reward[columns])
    first = np.zeros(rows, np.bool_)
    noise = acting.agent.distribution.draw_noise(np.random.default_rng(0), (rows,))
    while True:
        state = acting(observation, first, state, noise).core_state
        yield rows


def learning(learner: Learner, batch: Trajectory) -> Batches:
    """Updates from the same batch again and again, at a rate of zero where the schedule ends there."""
    steps, begun = int(batch.fresh.sum()), dict(learner.algorithm_state)
    while True:
        learner.update(batch, 1.0, diagnose=False)
        learner.algorithm_state = dict(begun)  # what adapts from update to update would grow without end
        yield steps


def train(config: RunConfig, order: Order) -> None:
    """A real run, but for evaluation and checkpoints. It reports often enough to be measured, and no more than that:
    there is a report every thousandth of ``steps``, which is all that these decide here."""
    rarely = int(REPORTS * order.rate * order.seconds / INTERVALS)
    steps = max(1, min(config.steps, rarely))
    never = {"evaluate_every": 2 * steps, "evaluation_episodes": 1, "checkpoint_every": 2 * steps}
    api.train(override(config, run=order.run, steps=steps, **never), quiet=True)


def way_to_step(layout: str, workers: int) -> str:
    """The name of a layout, with what it is made of."""
    unit = {"serial": "", "pool": "worker", "native": "thread"}[layout]
    return f"{layout}, {_count(workers, unit)}" if unit else layout


def _threads(count: int) -> str:
    return _count(count, "thread")


def _count(count: int, unit: str) -> str:
    return f"{count} {unit}{'s' * (count != 1)}"


def _computed(spent: Spent, threads: int, device: str) -> Trial:
    """Of work that never waits; what a GPU takes is told by the clock alone."""
    cost = spent.processor if device == "cpu" else spent.wall
    return Trial(_threads(threads), threads, cost / spent.steps, spent.wall / spent.steps)


def _work(batches: Batches, seconds: float) -> Spent:
    steps, start, spent, waits = 0, time.perf_counter(), time.process_time(), _waits()
    while not steps or time.perf_counter() - start < seconds:
        steps += next(batches)
    return Spent(steps, time.perf_counter() - start, time.process_time() - spent, _waits() - waits)


def _waits() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def main(arguments: Sequence[str]) -> int:
    """Carries out one order; the exit code."""
    control = enter(arguments)
    os.dup2(2, 1)  # what is printed here is not the answer

    def hung(env: int, phase: str, seconds: float) -> None:
        text = f"no answer of env {env} for {seconds:g} s in {phase}; --env-timeout sets how long it may take"
        control.send(Failed(text, False))
        os._exit(1)

    try:
        order: Order = control.recv()
        own.read_parts(order.config["imports"])
        config = from_json(RunConfig, order.config)
        torch.set_num_threads(1)
        if order.run:
            train(config, order)
        else:
            with Watchdog(vars(build.timeouts(config)), hung) as watchdog:
                for message in measure(config, order.seconds, watchdog):
                    control.send(message)
        control.send(None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except BaseException as error:
        with suppress(OSError):
            control.send(last_words(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
