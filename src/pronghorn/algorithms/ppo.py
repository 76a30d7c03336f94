"""Proximal policy optimisation (Schulman et al. 2017): clipped ratio, adaptive KL penalty, or both.

The clip form is eq. 7 there; the penalty form with its quadratic cut-off is that of TensorFlow Agents (Hafner et al.
2017). One implementation serves the presets of both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pronghorn.algorithms.base import BoundAgent, Hyperparameters, Rows, Targets, Walk, scaling_numbers
from pronghorn.config import PPOConfig
from pronghorn.learning.schedules import SCHEDULES
from pronghorn.ops.distributions import ActionDistribution
from pronghorn.ops.losses import clipped_surrogate, squared_error, standardise, weighted_mean
from pronghorn.ops.returns import generalised_advantages, vtrace
from pronghorn.types import Metrics, Trajectory

PENALTY_FACTOR = 1.5
PENALTY_BAND = 1.3, 0.7
"""β grows or shrinks by the factor when the KL leaves this band around its target (TensorFlow Agents)."""


class PPO:
    """Args:
    config: see its fields.
    distribution: of the agent's actions.
    recurrent: whether rows must stay in order.
    corrected: whether batches may be of older weights, so that the recursion must weigh its errors.
    """

    def __init__(
        self, config: PPOConfig, distribution: ActionDistribution, recurrent: bool, corrected: bool = False
    ) -> None:
        self.config = config
        self.distribution = distribution
        self.corrected = corrected
        self.walk = Walk(
            epochs=config.epochs,
            minibatches=config.minibatches,
            columns=recurrent or config.kl_penalty is not None,
            recompute=config.recompute_advantages,
        )

    def initial_state(self) -> dict[str, float]:
        return {} if self.config.kl_penalty is None else {"kl_penalty": self.config.kl_penalty}

    def hyperparameters(self, state: dict[str, float], fraction_done: float) -> dict[str, float]:
        """``entropy_cost``; ``clip_ratio`` ε and ``kl_penalty`` β where in use."""
        entropy_cost = SCHEDULES[self.config.entropy_schedule](self.config.entropy_cost, fraction_done)
        numbers = {"entropy_cost": entropy_cost, **state}
        if self.config.clip_ratio is not None:
            numbers["clip_ratio"] = self.config.clip_ratio
        return numbers

    def targets(self, agent: BoundAgent, batch: Trajectory, reward_scale: Tensor) -> Targets:
        """GAE(λ) and vs = V + A; truncation bootstraps from V(final observation), termination from 0.

        Where it is ``corrected`` errors and traces are weighed by min(1, π/μ), as in V-trace; where π is μ that is
        GAE(λ) again. The advantages are not: in the surrogate the ratio comes in by itself.
        """
        config = self.config
        output = agent(batch.observation, batch.first, batch.core_state, policy=self.corrected)
        values = output.values
        rewards = batch.reward / reward_scale
        if config.reward_clip is not None:
            rewards = rewards.clamp(-config.reward_clip, config.reward_clip)
        discounts = config.discount * (~batch.terminated).to(rewards.dtype)
        recursion = rewards, values, discounts, batch.ended, batch.valid
        if self.corrected:
            log_rhos = self.distribution.log_prob(output.parameters[:-1], batch.action) - batch.behaviour_log_prob
            found = vtrace(
                log_rhos,
                *recursion,
                rho_bar=1.0,
                c_bar=1.0,
                pg_rho_bar=None,
                trace_lambda=config.gae_lambda,
                bootstrap_mix=True,
            )
            vs, advantages = found.vs, found.advantages
        else:
            advantages = generalised_advantages(*recursion, config.gae_lambda)
            vs = values[:-1] + advantages
        if config.normalise_advantages == "batch":
            advantages = standardise(advantages, batch.valid.to(rewards.dtype))
        return Targets(vs, advantages, values[:-1])

    def loss(
        self, agent: BoundAgent, rows: Rows, targets: Targets, hyperparameters: Hyperparameters
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """L = policy + β·KL + 1000·max(0, KL − 2·target)² + c_v·½(V − vs)² − c_e·H, means over valid rows.

        In a walk over columns the KL terms are those of each column's mean KL, averaged over columns that have a
        valid row.
        """
        config = self.config
        output = agent(rows.observation, rows.first, rows.core_state)
        weights = rows.valid.to(output.values.dtype)
        log_ratio = self.distribution.log_prob(output.parameters, rows.action) - rows.behaviour_log_prob
        # Rows that do not count must not overflow either: infinity times weight zero would be NaN.
        ratio = torch.where(rows.valid, log_ratio, 0.0).exp()
        advantages = targets.advantages
        if config.normalise_advantages == "minibatch":
            advantages = standardise(advantages, weights)
        if config.clip_ratio is not None:
            policy = clipped_surrogate(ratio, advantages, hyperparameters["clip_ratio"])
        else:
            policy = -ratio * advantages
        policy_loss = weighted_mean(policy, weights)
        value_loss = weighted_mean(squared_error(output.values, targets.vs), weights)
        entropy = weighted_mean(self.distribution.entropy(output.parameters), weights)
        total = policy_loss + config.value_cost * value_loss - hyperparameters["entropy_cost"] * entropy
        metrics = {"loss/policy": policy_loss, "loss/value": value_loss}
        if config.kl_penalty is not None:
            kl = self.distribution.kl(rows.behaviour, output.parameters)
            column_kl = weighted_mean(kl, weights, dim=0)
            excess = (column_kl - config.kl_cutoff_factor * config.kl_target).clamp(min=0.0)
            penalty = hyperparameters["kl_penalty"] * column_kl + config.kl_cutoff_coefficient * excess.square()
            metrics["loss/kl_penalty"] = weighted_mean(penalty, rows.valid.any(0))
            total = total + metrics["loss/kl_penalty"]
        metrics["loss/total"] = total
        return total, metrics

    def adapt(self, state: dict[str, float], metrics: Metrics) -> dict[str, float]:
        """β·1.5 where the KL after the update is above 1.3 of its target, β/1.5 below 0.7."""
        if "kl_penalty" not in state:
            return state
        above, below = (bound * self.config.kl_target for bound in PENALTY_BAND)
        kl, beta = metrics["policy/kl"], state["kl_penalty"]
        if kl > above:
            beta *= PENALTY_FACTOR
        elif kl < below:
            beta /= PENALTY_FACTOR
        return {"kl_penalty": beta}

    def reward_statistics(self, batch: Trajectory, targets: Targets, reward_scale: Tensor) -> Tensor | None:
        """See ``scaling_numbers``."""
        return scaling_numbers(self.config.reward_scaling, batch, targets, reward_scale)
