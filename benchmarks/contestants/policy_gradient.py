"""The gradient of IMPALA's loss from one pass forward and one back: no more than the mathematics asks for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pronghorn import tree
from pronghorn.algorithms.base import Rows
from pronghorn.algorithms.impala import Impala
from pronghorn.networks.agent import Agent, AgentOutput
from pronghorn.types import Trajectory


def flat_gradient(agent: Agent, algorithm: Impala, batch: Trajectory) -> Tensor:
    """[n], parameters in the order of ``agent.parameters()``; targets come from the same pass as the loss."""
    batch = agent.seen(batch)
    found: AgentOutput = agent(batch.observation, batch.first, batch.core_state)
    constant = AgentOutput(found.parameters.detach(), found.values.detach(), ())
    acted = AgentOutput(found.parameters[:-1], found.values[:-1], ())

    def looked_up(output: AgentOutput) -> Any:
        return lambda observation, first, core_state: output

    targets = algorithm.targets(looked_up(constant), batch, torch.ones(()))
    rows = Rows(
        tree.map(lambda leaf: leaf[:-1], batch.observation),
        batch.first[:-1],
        batch.action,
        batch.behaviour,
        batch.behaviour_log_prob,
        batch.valid,
        batch.core_state,
    )
    numbers = {name: torch.tensor(value) for name, value in algorithm.hyperparameters({}, 0.0).items()}
    loss, _ = algorithm.loss(looked_up(acted), rows, targets, numbers)
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(agent.parameters()))])
