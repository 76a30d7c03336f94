"""skrl. Envs in one process, no TensorBoard and no checkpoints.

What stands in for reward normalisation is its scaler of values and returns.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import gymnasium
import torch
import work
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.trainers.torch import SequentialTrainer
from torch import Tensor, nn


def stream(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers of tanh and a linear one."""
    sizes = (inputs, *work.LAYERS)
    hidden = [part for size in itertools.pairwise(sizes) for part in (nn.Linear(*size), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs))


class Policy(GaussianMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.net = stream(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict[str, Tensor], role: str) -> tuple[Tensor, dict[str, Tensor]]:
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = stream(self.num_observations, 1)

    def compute(self, inputs: dict[str, Tensor], role: str) -> tuple[Tensor, dict[str, Tensor]]:
        return self.net(inputs["observations"]), {}


class TimedPPO(PPO):
    """PPO that notes the end of each update."""

    laps: work.Laps

    def update(self, *, timestep: int, timesteps: int) -> None:
        super().update(timestep=timestep, timesteps=timesteps)
        self.laps.lap()


def main() -> None:
    steps = work.steps()
    make_env = functools.partial(gymnasium.make, work.ENV, disable_env_checker=True)
    envs = wrap_env(gymnasium.vector.SyncVectorEnv([make_env] * work.NUM_ENVS), verbose=False)
    spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space, "device": "cpu"}
    agent = TimedPPO(
        models={"policy": Policy(**spaces), "value": Value(**spaces)},
        memory=RandomMemory(memory_size=work.UNROLL_LENGTH, num_envs=work.NUM_ENVS, device="cpu"),
        cfg={
            "rollouts": work.UNROLL_LENGTH,
            "learning_epochs": work.EPOCHS,
            "mini_batches": work.MINIBATCHES,
            "learning_rate": work.LEARNING_RATE,
            "value_clip": 0.0,
            "value_loss_scale": 0.5,
            "time_limit_bootstrap": True,
            "observation_preprocessor": RunningStandardScaler,
            "observation_preprocessor_kwargs": {"size": envs.observation_space, "device": "cpu"},
            "value_preprocessor": RunningStandardScaler,
            "value_preprocessor_kwargs": {"size": 1, "device": "cpu"},
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
        **spaces,
    )
    agent.laps = work.Laps()
    settings = {"timesteps": steps // work.NUM_ENVS, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=envs, agents=agent, cfg=settings | {"close_environment_at_exit": False}).train()
    agent.laps.answer()


if __name__ == "__main__":
    main()
