"""RLlib's IMPALA: two env runners of 16 envs, the learner in the main process, its own wrappers of Atari."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import gymnasium
import ray
import work
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

CONVOLUTIONS = {
    "nature": ([[32, 8, 4], [64, 4, 2], [64, 3, 1]], [512]),
    "shallow": ([[16, 8, 4], [32, 4, 2]], [256]),
}
WARM_UP = 6 * 640
"""Steps that are not timed: six updates, as for Pronghorn."""


def make_env(settings: Any) -> gymnasium.Env:
    """Pong, 4 frames to a step, 4 in an observation."""
    import ale_py

    gymnasium.register_envs(ale_py)
    game = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    return wrap_atari_for_new_api_stack(game, dim=84, frameskip=4, framestack=4)


def configure(network: str, core: str) -> IMPALAConfig:
    """The same work, as far as RLlib can be told to do it."""
    filters, units = CONVOLUTIONS[network]
    model = DefaultModelConfig(
        conv_filters=filters,
        conv_activation="relu",
        head_fcnet_hiddens=units,
        head_fcnet_activation="relu",
        vf_share_layers=True,
        use_lstm=core == "lstm",
        lstm_cell_size=256,
        max_seq_len=20,
    )
    config = IMPALAConfig().environment("pong").debugging(log_level="ERROR").reporting(min_time_s_per_iteration=1)
    config = config.env_runners(num_env_runners=2, num_envs_per_env_runner=16, rollout_fragment_length=20)
    config = config.learners(num_learners=0).rl_module(model_config=model)
    return config.training(train_batch_size_per_learner=640, lr=6e-4, grad_clip=40.0, entropy_coeff=0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True, help="warm-up included")
    parser.add_argument("--network", choices=CONVOLUTIONS, required=True)
    parser.add_argument("--core", choices=("none", "lstm"), required=True)
    options = parser.parse_args()
    register_env("pong", make_env)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # More "CPUs" than there are: two runners, an aggregator and the main process each ask for one.
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=300_000_000)
    algorithm = configure(options.network, options.core).build_algo()
    start: tuple[int, float] | None = None
    end = (0, 0.0)
    while end[0] < options.steps:
        learners = algorithm.train().get("learners", {})  # absent before the first update
        trained = learners.get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0)
        end = (int(trained), time.perf_counter())
        if start is None and trained >= WARM_UP:
            start = end
    algorithm.stop()
    ray.shutdown()
    if start is None or start == end:
        parser.error(f"--steps {options.steps} ends within the warm-up of {WARM_UP} steps; use more")
    work.answer(end[0] - start[0], end[1] - start[1])


if __name__ == "__main__":
    main()
