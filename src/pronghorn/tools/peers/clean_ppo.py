"""PPO in one file of plain torch and gymnasium, in the manner of CleanRL, with its details and its vector env.

As there, envs are stepped in this process, and an episode that a time limit ends is not bootstrapped. The row in which
gymnasium only resets an env is not learnt from, and not counted.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
import work
from gymnasium.wrappers import vector
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

CLIP = 10.0
"""Bound of normalised observations and rewards."""


def layer(inputs: int, outputs: int, gain: float = math.sqrt(2.0)) -> nn.Linear:
    """Orthogonal weights, no bias."""
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Pixels(nn.Module):
    """[N, 4, 84, 84] bytes to 512 features: the network of Mnih et al. 2015."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = (nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1))
        parts = [part for convolution in convolutions for part in (convolution, nn.ReLU())]
        self.net = nn.Sequential(*parts, nn.Flatten(), layer(64 * 7 * 7, 512), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images.float() / 255.0)


class Agent(nn.Module):
    """Two streams, behind what they share where observations are images."""

    def __init__(self, asked: work.Work, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.features: nn.Module = Pixels() if asked.images else nn.Identity()
        inputs = 512 if asked.images else math.prod(observation_space.shape)
        discrete = isinstance(action_space, gymnasium.spaces.Discrete)
        outputs = int(action_space.n) if discrete else math.prod(action_space.shape)
        self.policy = self._stream(asked, inputs, outputs, 0.01)
        self.value = self._stream(asked, inputs, 1, 1.0)
        start = torch.full((outputs,), math.log(asked.initial_std))
        self.log_std = None if discrete else nn.Parameter(start)

    def forward(self, observations: Tensor) -> tuple[Any, Tensor]:
        """The distribution of actions, and values [N]."""
        features = self.features(observations)
        numbers, values = self.policy(features), self.value(features).squeeze(-1)
        if self.log_std is None:
            return Categorical(logits=numbers), values
        return Independent(Normal(numbers, self.log_std.exp().expand_as(numbers)), 1), values

    @staticmethod
    def _stream(asked: work.Work, inputs: int, outputs: int, gain: float) -> nn.Sequential:
        parts: list[nn.Module] = []
        for size in asked.layers:
            parts += [layer(inputs, size), {"tanh": nn.Tanh, "relu": nn.ReLU}[asked.activation]()]
            inputs = size
        return nn.Sequential(*parts, layer(inputs, outputs, gain))


def make_envs(asked: work.Work) -> Any:
    """All envs, normalised as asked, actions clipped to their bounds."""
    envs: Any = gymnasium.vector.SyncVectorEnv([asked.make_env] * asked.num_envs)
    if isinstance(envs.single_action_space, gymnasium.spaces.Box):
        envs = vector.ClipAction(envs)
    if asked.normalise_observations and not asked.images:
        envs = vector.NormalizeObservation(envs)
        envs = vector.TransformObservation(envs, lambda seen: np.clip(seen, -CLIP, CLIP))
    if asked.normalise_rewards:
        envs = vector.NormalizeReward(envs, gamma=asked.discount)
    return vector.TransformReward(envs, lambda rewards: np.clip(rewards, -CLIP, CLIP))


def learn(asked: work.Work, after_update: Callable[[int, int], bool]) -> None:
    """Trains until ``after_update(updates, steps)`` says that it is enough."""
    torch.manual_seed(asked.seed)
    envs = make_envs(asked)
    agent = Agent(asked, envs.single_observation_space, envs.single_action_space)
    optimiser = torch.optim.Adam(agent.parameters(), lr=asked.learning_rate, eps=asked.epsilon, fused=True)

    rows = (asked.unroll_length, asked.num_envs)
    space, action_space = envs.single_observation_space, envs.single_action_space
    observations = torch.zeros(*rows, *space.shape, dtype=torch.uint8 if asked.images else torch.float32)
    discrete = isinstance(action_space, gymnasium.spaces.Discrete)
    actions = torch.zeros(*rows, *action_space.shape, dtype=torch.int64 if discrete else torch.float32)
    log_probs, rewards, values, ended = (torch.zeros(rows) for _ in range(4))
    valid = torch.zeros(rows, dtype=torch.bool)

    seen, _ = envs.reset(seed=asked.seed)
    observation = torch.as_tensor(seen)
    over = torch.zeros(asked.num_envs, dtype=torch.bool)
    updates = steps = 0
    with contextlib.closing(envs):
        while True:
            for row in range(asked.unroll_length):
                observations[row], valid[row] = observation, ~over
                with torch.no_grad():
                    distribution, values[row] = agent(observation)
                    actions[row] = distribution.sample()
                    log_probs[row] = distribution.log_prob(actions[row])
                seen, reward, terminated, truncated, _ = envs.step(actions[row].numpy())
                observation, rewards[row] = torch.as_tensor(seen), torch.as_tensor(reward)
                over = torch.as_tensor(terminated | truncated)
                ended[row] = over
            with torch.no_grad():
                _, last_values = agent(observation)
            advantages = generalised_advantages(asked, rewards, values, ended, last_values)
            batch = (observations, actions, log_probs, advantages, advantages + values)
            for item in epochs(asked, [part.flatten(0, 1)[valid.flatten()] for part in batch]):
                optimiser.zero_grad()
                loss(asked, agent, *item).backward()
                if asked.max_gradient_norm is not None:
                    nn.utils.clip_grad_norm_(agent.parameters(), asked.max_gradient_norm)
                optimiser.step()
            updates, steps = updates + 1, steps + int(valid.sum())
            if after_update(updates, steps):
                return


def generalised_advantages(
    asked: work.Work, rewards: Tensor, values: Tensor, ended: Tensor, last_values: Tensor
) -> Tensor:
    """GAE(λ) of rows [T, B]."""
    advantages, carried, next_values = torch.zeros_like(rewards), torch.zeros_like(last_values), last_values
    for row in reversed(range(len(rewards))):
        going_on = 1.0 - ended[row]
        error = rewards[row] + asked.discount * going_on * next_values - values[row]
        carried = error + asked.discount * asked.gae_lambda * going_on * carried
        advantages[row], next_values = carried, values[row]
    return advantages


def epochs(asked: work.Work, batch: list[Tensor]) -> Any:
    """Minibatches of the rows of ``batch``, shuffled anew in each pass."""
    for _ in range(asked.epochs):
        for chosen in torch.randperm(len(batch[0])).tensor_split(asked.minibatches):
            yield [part[chosen] for part in batch]


def loss(
    asked: work.Work,
    agent: Agent,
    observations: Tensor,
    actions: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
) -> Tensor:
    """The clipped surrogate, the error of the values and the entropy, of one minibatch."""
    distribution, values = agent(observations)
    ratio = (distribution.log_prob(actions) - log_probs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - asked.clip_ratio, 1 + asked.clip_ratio)
    policy = -torch.min(ratio * advantages, clipped * advantages).mean()
    value = 0.5 * (values - returns).square().mean()
    return policy + asked.value_cost * value - asked.entropy_cost * distribution.entropy().mean()


def main() -> None:
    asked = work.read()
    clock = work.Clock(asked.seconds)
    learn(asked, clock.lap)
    clock.answer()


if __name__ == "__main__":
    main()
