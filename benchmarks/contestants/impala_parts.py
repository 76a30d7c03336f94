"""One part of IMPALA by itself: stepping envs, inference, or learning. Its ``seconds`` are core-seconds.

What is measured is what the work itself takes, not what Pronghorn makes of it: ale-py's vector env bare, and learning
without reports, checks and statistics, with one pass forward and one back.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from env_stepping import bare_ale
from policy_gradient import flat_gradient

from pronghorn import build
from pronghorn.algorithms.impala import Impala
from pronghorn.config import ImpalaConfig, RunConfig, override
from pronghorn.learning.optimisers import OPTIMISERS, clip_by_global_norm
from pronghorn.networks.agent import Agent
from pronghorn.presets.resolve import resolve
from pronghorn.tools import parts
from pronghorn.tools.peers import work
from pronghorn.types import Trajectory


def configure(env: str, options: dict[str, Any]) -> RunConfig:
    """The preset of IMPALA, in lock-step."""
    _, config = resolve(env, "impala")
    return override(config, layout="native", workers=1, **options)


def learning(config: RunConfig, agent: Agent, seen: Trajectory) -> parts.Batches:
    """Steps in each update from a batch."""
    assert isinstance(config.loss, ImpalaConfig)
    batch = seen.map(torch.as_tensor)
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
        acting, seen = parts.played(config, build.learner(config, build.env_spec(config)))
        if arguments.part == "inference":
            batches = parts.choosing(acting, seen, config.vec.num_envs)
        else:
            batches = learning(config, acting.agent, seen)
    spent = parts.timed(batches, arguments.seconds)
    work.answer(spent.steps, spent.processor)


if __name__ == "__main__":
    main()
