"""One worker of A3C (``a3c.py``): it acts, computes the gradient of what it saw, and applies it for all.

Run as ``python -m a3c_worker``. Nobody waits for anybody: weights and accumulators are read and written without locks
(Hogwild), so what two workers write in the same moment may be lost.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from policy_gradient import flat_gradient
from torch import Tensor

from pronghorn import build
from pronghorn.algorithms.impala import Impala
from pronghorn.config import ImpalaConfig, RunConfig
from pronghorn.learning.optimisers import clip_by_global_norm, rmsprop
from pronghorn.networks.agent import Agent
from pronghorn.processes import launch
from pronghorn.processes.shared import SharedArrays
from pronghorn.seeding import Domain
from pronghorn.telemetry.timers import PhaseTimers


@dataclass(frozen=True)
class Setup:
    """To a worker: its own config, its number, and the arrays ``weights`` [n], ``mean_square`` [n] (both float32),
    ``steps`` and ``updates`` [workers] (int64) that all share."""

    config: RunConfig
    number: int
    layout: dict[str, Any]
    fd: int


def work(setup: Setup) -> None:
    """For ever: an unroll of every env of this worker, its gradient, its step."""
    config = setup.config
    assert isinstance(config.loss, ImpalaConfig)
    shared = SharedArrays(setup.layout, setup.fd).arrays
    weights, mean_square = torch.from_numpy(shared["weights"]), torch.from_numpy(shared["mean_square"])
    rate = torch.tensor(config.optimiser.learning_rate)
    envs = build.vec(config, Domain.TRAINING_ENV)
    actor = build.actor(config, envs, PhaseTimers())
    agent = actor.inference.agent
    algorithm = Impala(config.loss, agent.distribution)
    actor.start()
    while True:
        actor.inference.load(state_dict(agent, weights), int(shared["updates"].sum()))
        batch = actor.collect()
        assert batch is not None
        batch = batch.map(torch.as_tensor)
        gradient, _ = clip_by_global_norm(flat_gradient(agent, algorithm, batch), config.optimiser.max_gradient_norm)
        step, state = rmsprop(
            torch.zeros_like(weights), gradient, {"v": mean_square}, rate, epsilon=config.optimiser.epsilon
        )
        mean_square.copy_(state["v"])
        weights.add_(step)  # to what is there now, which others may have moved since it was read
        shared["steps"][setup.number] += int(batch.valid.sum())
        shared["updates"][setup.number] += 1


def state_dict(agent: Agent, weights: Tensor) -> dict[str, Tensor]:
    """Of the agent with the parameters ``weights`` [n], in the order of ``agent.parameters()``."""
    named = dict(agent.named_parameters())
    parts = weights.split([parameter.numel() for parameter in named.values()])
    moved = {name: part.view_as(parameter) for (name, parameter), part in zip(named.items(), parts, strict=True)}
    return moved | dict(agent.named_buffers())


def main(arguments: list[str]) -> int:
    """Until the parent ends this process, or is gone."""
    control = launch.enter(arguments)
    setup: Setup = control.recv()
    torch.set_num_threads(1)
    work(setup)
    return 0


if __name__ == "__main__":
    # Not the ``__main__`` module's class: the setup is an instance of the imported one.
    import a3c_worker

    sys.exit(a3c_worker.main(sys.argv[1:]))
