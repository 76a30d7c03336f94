"""IMPALA's loss (Espeholt et al. 2018, section 4): V-trace corrects for the lag between who acts and who learns.

A2C is the special case in which nothing needs to be corrected.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pronghorn.algorithms.base import BoundAgent, Hyperparameters, Rows, Targets, Walk, scaling_numbers
from pronghorn.config import ImpalaConfig
from pronghorn.learning.schedules import SCHEDULES
from pronghorn.ops.distributions import ActionDistribution
from pronghorn.ops.losses import soft_asymmetric, squared_error, weighted_mean
from pronghorn.ops.returns import capped_ratios, vtrace
from pronghorn.types import Metrics, Trajectory

LOG_EPSILON = math.log(1e-6)
"""Of what ``corrections="epsilon"`` adds to a probability before its logarithm is differentiated."""


class Impala:
    """Args:
    config: see its fields.
    distribution: of the agent's actions.
    """

    walk = Walk(epochs=1, minibatches=1, columns=True, recompute=False)

    def __init__(self, config: ImpalaConfig, distribution: ActionDistribution) -> None:
        self.config = config
        self.distribution = distribution

    def initial_state(self) -> dict[str, float]:
        return {}

    def hyperparameters(self, state: dict[str, float], fraction_done: float) -> dict[str, float]:
        """``entropy_cost``."""
        return {"entropy_cost": SCHEDULES[self.config.entropy_schedule](self.config.entropy_cost, fraction_done)}

    def targets(self, agent: BoundAgent, batch: Trajectory, reward_scale: Tensor) -> Targets:
        """V-trace with the ratios of the weights that are about to be improved.

        Truncation bootstraps from V(final observation), termination from 0. The variants: "one-step" weights the
        advantages by min(ρ̄_pg, π/μ) and corrects no value; "epsilon" and "none" take every ratio for 1.
        """
        config = self.config
        output = agent(batch.observation, batch.first, batch.core_state)
        log_rhos = self.distribution.log_prob(output.parameters[:-1], batch.action) - batch.behaviour_log_prob
        corrected = config.corrections == "vtrace"
        rewards = self._clipped(batch.reward / reward_scale)
        found = vtrace(
            log_rhos if corrected else torch.zeros_like(log_rhos),
            rewards,
            output.values,
            config.discount * (~batch.terminated).to(rewards.dtype),
            batch.ended,
            batch.valid,
            rho_bar=config.rho_bar if corrected else None,
            c_bar=config.c_bar if corrected else None,
            pg_rho_bar=config.pg_rho_bar if corrected else None,
            trace_lambda=config.trace_lambda,
            bootstrap_mix=config.mix_bootstrap,
        )
        advantages = found.pg_advantages
        if config.corrections == "one-step":
            ratios = capped_ratios(log_rhos, config.pg_rho_bar)
            advantages = torch.where(batch.valid, ratios * advantages, 0.0)
        return Targets(found.vs, advantages, output.values[:-1])

    def loss(
        self, agent: BoundAgent, rows: Rows, targets: Targets, hyperparameters: Hyperparameters
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """L = −log π(a)·A + c_v·½(V − vs)² − c_e·H, the mean or sum over valid rows. Parts are reported as means.

        With corrections="epsilon" log π is log(π + 1e-6).
        """
        config = self.config
        output = agent(rows.observation, rows.first, rows.core_state)
        weights = rows.valid.to(output.values.dtype)
        log_prob = self.distribution.log_prob(output.parameters, rows.action)
        if config.corrections == "epsilon":
            log_prob = torch.logaddexp(log_prob, torch.full_like(log_prob, LOG_EPSILON))
        policy_loss = weighted_mean(-log_prob * targets.advantages, weights)
        value_loss = weighted_mean(squared_error(output.values, targets.vs), weights)
        entropy = weighted_mean(self.distribution.entropy(output.parameters), weights)
        total = policy_loss + config.value_cost * value_loss - hyperparameters["entropy_cost"] * entropy
        if config.reduction == "sum":
            total = total * weights.sum()
        return total, {"loss/policy": policy_loss, "loss/value": value_loss, "loss/total": total}

    def adapt(self, state: dict[str, float], metrics: Metrics) -> dict[str, float]:
        """Nothing adapts."""
        return state

    def reward_statistics(self, batch: Trajectory, targets: Targets, reward_scale: Tensor) -> Tensor | None:
        """See ``scaling_numbers``."""
        return scaling_numbers(self.config.reward_scaling, batch, targets, reward_scale)

    def _clipped(self, rewards: Tensor) -> Tensor:
        if self.config.reward_clip == "unit":
            return rewards.clamp(-1.0, 1.0)
        return soft_asymmetric(rewards) if self.config.reward_clip == "soft_asymmetric" else rewards
