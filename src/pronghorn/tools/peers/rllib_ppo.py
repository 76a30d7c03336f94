"""RLlib's PPO: one env runner per core, the learner in the main process."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import gymnasium
import ray
import work
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

NATURE = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
"""Convolutions of Mnih et al. 2015, as RLlib wants them told."""


class ChannelsLast(gymnasium.ObservationWrapper):
    """Images as RLlib's networks want them: [84, 84, 4] floats up to 1."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (84, 84, 4))

    def observation(self, observation: Any) -> Any:
        import numpy as np

        return np.moveaxis(np.asarray(observation, np.float32) / 255.0, 0, -1)


def configure(asked: work.Work, runners: int, gaussian: bool) -> PPOConfig:
    """The same work, as far as RLlib can be told to do it; ``gaussian`` are actions that are vectors."""
    sizes = list(asked.layers)
    if asked.images:
        model = DefaultModelConfig(
            conv_filters=NATURE,
            conv_activation="relu",
            head_fcnet_hiddens=[512, *sizes],
            head_fcnet_activation="relu",
            vf_share_layers=True,
        )
    else:
        model = DefaultModelConfig(
            fcnet_hiddens=sizes, fcnet_activation=asked.activation, vf_share_layers=False, free_log_std=gaussian
        )
    config = PPOConfig().environment("asked").debugging(log_level="ERROR", seed=asked.seed)
    filtered = asked.normalise_observations and not asked.images
    config = config.env_runners(
        num_env_runners=runners,
        num_envs_per_env_runner=asked.num_envs // runners,
        rollout_fragment_length=asked.unroll_length,
        env_to_module_connector=(lambda *_, **__: MeanStdFilter()) if filtered else None,
    )
    config = config.learners(num_learners=0).rl_module(model_config=model)
    return config.training(
        train_batch_size_per_learner=asked.batch,
        minibatch_size=asked.minibatch,
        num_epochs=asked.epochs,
        lr=asked.learning_rate,
        gamma=asked.discount,
        lambda_=asked.gae_lambda,
        clip_param=asked.clip_ratio,
        use_kl_loss=False,
        vf_loss_coeff=asked.value_cost,
        entropy_coeff=asked.entropy_cost,
        grad_clip=asked.max_gradient_norm,
    )


def main() -> None:
    asked = work.read()
    cores = os.cpu_count() or 1
    runners = max(count for count in range(1, cores + 1) if asked.num_envs % count == 0)

    def make_env(settings: Any) -> gymnasium.Env:
        env = asked.make_env()
        return ChannelsLast(env) if asked.images else env

    with contextlib.closing(make_env({})) as env:
        gaussian = isinstance(env.action_space, gymnasium.spaces.Box)
    register_env("asked", make_env)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # More "CPUs" than there are: the runners and the main process each ask for one.
    ray.init(num_cpus=runners + 2, include_dashboard=False, log_to_driver=False, object_store_memory=300_000_000)
    algorithm = configure(asked, runners, gaussian).build_algo()
    clock = work.Clock(asked.seconds)
    updates, enough = 0, False
    while not enough:
        found = algorithm.train()
        updates += 1
        enough = clock.lap(updates, int(found["env_runners"]["num_env_steps_sampled_lifetime"]))
    algorithm.stop()
    ray.shutdown()
    clock.answer()


if __name__ == "__main__":
    main()
