"""skrl. Envs in one process, no TensorBoard and no checkpoints.

What stands in for reward normalisation is its scaler of values and returns.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from typing import Any

import gymnasium
import torch
import work
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.trainers.torch import SequentialTrainer
from torch import Tensor, nn


def stream(inputs: int, outputs: int, asked: work.Work) -> nn.Sequential:
    """Hidden layers and a linear one."""
    sizes = (inputs, *asked.layers)
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[asked.activation]
    hidden = [part for size in itertools.pairwise(sizes) for part in (nn.Linear(*size), activation())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs))


class Gaussian(GaussianMixin, Model):
    def __init__(self, asked: work.Work, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.net = stream(self.num_observations, self.num_actions, asked)
        self.log_std = nn.Parameter(torch.full((self.num_actions,), math.log(asked.initial_std)))

    def compute(self, inputs: dict[str, Tensor], role: str) -> tuple[Tensor, dict[str, Tensor]]:
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Categorical(CategoricalMixin, Model):
    def __init__(self, asked: work.Work, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = stream(self.num_observations, self.num_actions, asked)

    def compute(self, inputs: dict[str, Tensor], role: str) -> tuple[Tensor, dict[str, Tensor]]:
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    def __init__(self, asked: work.Work, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = stream(self.num_observations, 1, asked)

    def compute(self, inputs: dict[str, Tensor], role: str) -> tuple[Tensor, dict[str, Tensor]]:
        return self.net(inputs["observations"]), {}


def scaler(size: Any) -> dict[str, Any]:
    return {"size": size, "device": "cpu"}


def main() -> None:
    asked = work.read()
    if asked.images:
        sys.exit("cannot run this env: set up for vectors only")
    envs = wrap_env(gymnasium.vector.SyncVectorEnv([asked.make_env] * asked.num_envs), verbose=False)
    spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space, "device": "cpu"}
    policy = Categorical if isinstance(envs.action_space, gymnasium.spaces.Discrete) else Gaussian
    settings = {
        "rollouts": asked.unroll_length,
        "learning_epochs": asked.epochs,
        "mini_batches": asked.minibatches,
        "learning_rate": asked.learning_rate,
        "discount_factor": asked.discount,
        "gae_lambda": asked.gae_lambda,
        "ratio_clip": asked.clip_ratio,
        "value_clip": 0.0,
        "value_loss_scale": asked.value_cost,
        "entropy_loss_scale": asked.entropy_cost,
        "grad_norm_clip": asked.max_gradient_norm or 0.0,
        "time_limit_bootstrap": True,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }
    if asked.normalise_observations:
        settings["observation_preprocessor"] = RunningStandardScaler
        settings["observation_preprocessor_kwargs"] = scaler(envs.observation_space)
    if asked.normalise_rewards:
        settings["value_preprocessor"] = RunningStandardScaler
        settings["value_preprocessor_kwargs"] = scaler(1)
    agent = PPO(
        models={"policy": policy(asked, **spaces), "value": Value(asked, **spaces)},
        memory=RandomMemory(memory_size=asked.unroll_length, num_envs=asked.num_envs, device="cpu"),
        cfg=settings,
        **spaces,
    )
    clock = work.Clock(asked.seconds)
    agent.update = clock.after(agent.update, asked.batch)
    trainer = {"timesteps": work.FOREVER, "headless": True, "disable_progressbar": True}
    with contextlib.suppress(work.Enough):
        SequentialTrainer(env=envs, agents=agent, cfg=trainer | {"close_environment_at_exit": False}).train()
    clock.answer()


if __name__ == "__main__":
    main()
