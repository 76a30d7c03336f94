"""The agent: encoder, torso, core, policy and value streams, and the statistics that belong to their weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pronghorn.config import NetworkConfig
from pronghorn.networks.cores import make_core
from pronghorn.networks.encoders import Encoder, Inputs, LastStep, with_last_step
from pronghorn.networks.mlp import MLP, Torso
from pronghorn.ops.distributions import ActionDistribution
from pronghorn.ops.running import Scale
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, EnvSpec, Leaf, Trajectory, UserError


class AgentOutput(NamedTuple):
    """``parameters`` [..., P] of the action distribution, masked; ``values`` [...] in units of scaled rewards;
    the ``core_state`` after the last row. What was not asked for is an empty tensor."""

    parameters: Tensor
    values: Tensor
    core_state: Tree


class Agent(nn.Module):
    """One state dict: parameters, observation statistics, reward scale.

    Policy and value are two streams that share nothing but the statistics and what stands before them: the networks
    of images and texts, the torso and the core, where there are any.

    Args:
        spec: of the env; leaves that cannot be handled raise UserError naming them.
        config: sizes and initialisation.
        seed: of the initial parameters.
    """

    def __init__(self, spec: EnvSpec, config: NetworkConfig, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.spec = spec
        self.distribution = ActionDistribution(spec.action)
        self.encoder = Encoder(spec.observation, config, generator)
        self.torso = None
        size = self.encoder.size
        if config.torso:
            self.torso = Torso([size, *config.torso], config.activation, init=config.init, generator=generator)
            size = self.torso.size
        self.last_step = LastStep(spec.action) if config.last_action_and_reward else None
        if self.last_step is not None:
            size += self.last_step.size
        self.core = make_core(config.core, size, config.core_size, generator)
        self.recurrent = self.core.recurrent
        self.reward_scale = Scale()
        self.masked = isinstance(spec.observation, dict) and ACTION_MASK in spec.observation
        if self.masked:
            _check_mask(spec, self.distribution)

        sizes = [self.core.size, *config.layers]
        means, logits = self.distribution.mean_size, self.distribution.logit_size
        self.policy = MLP(
            [*sizes, means + logits],
            config.activation,
            init=config.init,
            output_scale=0.01 if config.init == "orthogonal" else 0.1,
            generator=generator,
        )
        self.value = MLP([*sizes, 1], config.activation, init=config.init, output_scale=None, generator=generator)
        self.tanh_mean = config.mean_activation == "tanh"
        self._softplus = config.std_parametrisation == "softplus"
        start = math.log(math.expm1(config.initial_std)) if self._softplus else math.log(config.initial_std)
        self.deviation = nn.Parameter(torch.full((means,), start)) if means else None

    def initial_state(self, batch: int) -> Tree:
        """The core state at the start of an episode, [batch, …] in every leaf."""
        return self.core.initial_state(batch)

    def seen(self, batch: Trajectory) -> Trajectory:
        """The batch with all that this agent looks at as its observation: ``Inputs`` if it is told its last step."""
        return batch if self.last_step is None else with_last_step(batch)

    def forward(
        self,
        observation: Tree,
        first: Tensor,
        core_state: Tree,
        *,
        policy: bool = True,
        value: bool = True,
    ) -> AgentOutput:
        """Time-major over rows [T, B, …]; without a recurrent core any leading dimensions will do.

        ``observation`` is what ``seen`` says. ``core_state`` [B, …] is what was carried into row 0. ``policy`` and
        ``value`` say what to compute.
        """
        features, core_state = self.core(self._features(observation, first), first, core_state)
        parameters = values = features.new_empty(0)
        if policy:
            parameters = self._policy(features, observation)
        if value:
            values = self.value(features).squeeze(-1)
        return AgentOutput(parameters, values, core_state)

    def step(self, observation: Tree, first: Tensor, core_state: Tree) -> tuple[Tensor, Tree]:
        """Acting on a batch [B, …]: distribution parameters [B, P] and the new core state. Values are left out."""
        features = self._features(observation, first)
        if self.recurrent:
            outputs, core_state = self.core(features.unsqueeze(0), first.unsqueeze(0), core_state)
            features = outputs.squeeze(0)
        return self._policy(features, observation), core_state

    def log_std(self) -> Tensor:
        """Of the Gaussian parts, [means]: state-independent."""
        assert self.deviation is not None
        return torch.log(nn.functional.softplus(self.deviation)) if self._softplus else self.deviation

    def random_parameters(self, observation: Tree, batch: int) -> Tensor:
        """Parameters [batch, P] of the distribution of random legal actions."""
        return self._legal(self.distribution.null_parameters().expand(batch, -1), observation)

    def _features(self, observation: Tree, first: Tensor) -> Tensor:
        """What the core consumes."""
        features: Tensor = self.encoder(_of_env(observation))
        if self.torso is not None:
            features = self.torso(features)
        if self.last_step is not None:
            features = torch.cat([features, self.last_step(observation, first)], -1)
        return features

    def _policy(self, features: Tensor, observation: Tree) -> Tensor:
        return self._legal(self._with_deviation(self.policy(features)), observation)

    def _legal(self, parameters: Tensor, observation: Tree) -> Tensor:
        if not self.masked:
            return parameters
        mask = _of_env(observation)[ACTION_MASK]
        return self.distribution.mask(parameters, mask.reshape(*parameters.shape[:-1], -1))

    def _with_deviation(self, outputs: Tensor) -> Tensor:
        if self.deviation is None:
            return outputs
        log_std = self.log_std()
        means, logits = outputs[..., : self.distribution.mean_size], outputs[..., self.distribution.mean_size :]
        return self.distribution.join(torch.tanh(means) if self.tanh_mean else means, logits, log_std)


def _of_env(observation: Tree) -> Tree:
    return observation.observation if isinstance(observation, Inputs) else observation


def _check_mask(spec: EnvSpec, distribution: ActionDistribution) -> None:
    leaf: Leaf = spec.observation[ACTION_MASK]
    if leaf.size != distribution.logit_size:
        raise UserError(
            f"observation/{ACTION_MASK} has {leaf.size} entries but the discrete actions have "
            f"{distribution.logit_size} choices in all"
        )
