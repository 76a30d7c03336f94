"""stable-baselines3. Envs in one process (its sub-processes are slower here), no Monitor, no logging, fused Adam."""

from __future__ import annotations

import contextlib
import math

import torch
import work
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize


def main() -> None:
    asked = work.read()
    envs = DummyVecEnv([asked.make_env] * asked.num_envs)
    if asked.normalise_observations or asked.normalise_rewards:
        envs = VecNormalize(
            envs,
            norm_obs=asked.normalise_observations,
            norm_reward=asked.normalise_rewards,
            gamma=asked.discount,
        )
    agent = PPO(
        "CnnPolicy" if asked.images else "MlpPolicy",
        envs,
        learning_rate=asked.learning_rate,
        n_steps=asked.unroll_length,
        batch_size=asked.minibatch,
        n_epochs=asked.epochs,
        gamma=asked.discount,
        gae_lambda=asked.gae_lambda,
        clip_range=asked.clip_ratio,
        vf_coef=asked.value_cost,
        ent_coef=asked.entropy_cost,
        max_grad_norm=asked.max_gradient_norm or math.inf,
        policy_kwargs={
            "net_arch": list(asked.layers),
            "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[asked.activation],
            "log_std_init": math.log(asked.initial_std),
            "optimizer_kwargs": {"eps": asked.epsilon, "fused": True},
        },
        device="cpu",
        seed=asked.seed,
    )
    clock = work.Clock(asked.seconds)
    agent.train = clock.after(agent.train, asked.batch)
    with contextlib.suppress(work.Enough):
        agent.learn(work.FOREVER, log_interval=None)
    clock.answer()


if __name__ == "__main__":
    main()
