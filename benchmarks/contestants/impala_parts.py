"""One part of IMPALA by itself: stepping envs, inference, or learning. Its ``seconds`` are core-seconds.

What is measured is what the work itself takes, not what Pronghorn makes of it: ale-py's vector env bare, and learning
without reports, checks and statistics, with one pass forward and one back.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import time
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
import work
from env_stepping import bare_ale
from policy_gradient import flat_gradient

from pronghorn import build, tree
from pronghorn.acting.inference import Inference
from pronghorn.algorithms.impala import Impala
from pronghorn.config import ImpalaConfig, RunConfig, override
from pronghorn.learning.optimisers import OPTIMISERS, clip_by_global_norm
from pronghorn.networks.encoders import Inputs
from pronghorn.presets.resolve import resolve
from pronghorn.seeding import Domain
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.types import Trajectory

WARM_UP = 3
"""Batches that are not timed."""


def configure(env: str, options: dict[str, Any]) -> RunConfig:
    """The preset of IMPALA, in lock-step."""
    _, config = resolve(env, "impala")
    return override(config, layout="native", workers=1, **options)


def played(config: RunConfig) -> tuple[Inference, Trajectory]:
    """Who acts, and one unroll of every env by it."""
    with contextlib.closing(build.vec(config, Domain.PROBE_ENV)) as envs:
        actor = build.actor(config, envs, PhaseTimers())
        actor.start()
        batch = actor.collect()
    assert batch is not None
    return actor.inference, batch


def inference(config: RunConfig) -> Generator[int, None, None]:
    """Steps in each forward pass, which is for all envs."""
    acting, batch = played(config)
    count = config.vec.num_envs
    observation: Any = tree.map(lambda leaf: leaf[0].copy(), batch.observation)
    if acting.agent.last_step is not None:
        observation = Inputs(observation, batch.last_action, batch.last_reward)
    first, state = np.zeros(count, np.bool_), batch.core_state
    noise = acting.agent.distribution.draw_noise(np.random.default_rng(0), (count,))
    while True:
        state = acting(observation, first, state, noise).core_state
        yield count


def learning(config: RunConfig) -> Generator[int, None, None]:
    """Steps in each update from a batch of one unroll of every env."""
    assert isinstance(config.loss, ImpalaConfig)
    acting, seen = played(config)
    agent, batch = acting.agent, seen.map(torch.as_tensor)
    algorithm = Impala(config.loss, agent.distribution)
    start, optimise = OPTIMISERS[config.optimiser.optimiser_name]
    weights = torch.nn.utils.parameters_to_vector(agent.parameters()).detach()
    state, rate = start(weights), torch.tensor(config.optimiser.learning_rate)
    while True:
        gradient, _ = clip_by_global_norm(flat_gradient(agent, algorithm, batch), config.optimiser.max_gradient_norm)
        weights, state = optimise(weights, gradient, state, rate, epsilon=config.optimiser.epsilon)
        torch.nn.utils.vector_to_parameters(weights, agent.parameters())
        yield seen.reward.size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("env", "inference", "learning"), required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--options", type=json.loads, default={}, help="of the run, as a JSON object")
    arguments = parser.parse_args()
    config = configure(arguments.env, arguments.options)
    torch.set_num_threads(arguments.threads)
    if arguments.part == "env":
        batches = bare_ale(arguments.threads)(config.env, config.vec.num_envs)
    else:
        batches = {"inference": inference, "learning": learning}[arguments.part](config)
    for _ in itertools.islice(batches, WARM_UP):
        pass
    steps, start, spent = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < arguments.seconds:
        steps += next(batches)
    work.answer(steps, time.process_time() - spent)


if __name__ == "__main__":
    main()
