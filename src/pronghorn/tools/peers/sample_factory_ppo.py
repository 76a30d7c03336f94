"""Sample Factory, asynchronous as it is meant to be: one env worker per core, which act while there is learning.

It has no reward normalisation but that of returns, which takes its place.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import tempfile
from typing import Any

import gymnasium
import work
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.envs.env_wrappers import NumpyObsWrapper
from sample_factory.train import make_runner


class Timed(AlgoObserver):
    """Tells the clock of every update, and ends the run when it says so."""

    def __init__(self, clock: work.Clock) -> None:
        self._clock = clock

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """An update has just ended."""
        if self._clock.lap(training_iteration_since_resume, sum(runner.env_steps.values())):
            runner.cfg.train_for_env_steps = 0


def make_env(asked: work.Work, name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> gymnasium.Env:
    """One env; its processes want a function that they can find."""
    env = asked.make_env()
    return NumpyObsWrapper(env) if asked.images else env


def settings(asked: work.Work, folder: str) -> list[str]:
    """Arguments of Sample Factory's own command line."""
    workers = max(count for count in range(1, (os.cpu_count() or 1) + 1) if asked.num_envs % count == 0)
    each = asked.num_envs // workers
    # Its minibatches are whole rollouts: shorter ones, where ours are parts of an unroll.
    rollout = math.gcd(asked.unroll_length, asked.minibatch)
    sizes = [str(size) for size in asked.layers]
    if asked.images:
        encoder = ["--encoder_conv_architecture=convnet_atari", "--encoder_conv_mlp_layers", "512", "--obs_scale=255"]
        encoder += ["--decoder_mlp_layers", *sizes] if sizes else []
    else:
        encoder = ["--encoder_mlp_layers", *sizes, "--actor_critic_share_weights=False"]
    return [
        *("--env=asked", "--experiment=run", f"--train_dir={folder}", "--device=cpu", f"--seed={asked.seed}"),
        *("--async_rl=True", f"--rollout={rollout}", "--use_rnn=False", "--recurrence=1"),
        *(f"--batch_size={asked.minibatch}", f"--num_batches_per_epoch={asked.minibatches}"),
        *(f"--num_epochs={asked.epochs}", f"--num_workers={workers}", f"--num_envs_per_worker={each}"),
        f"--worker_num_splits={2 if each % 2 == 0 else 1}",
        *(f"--normalize_input={asked.normalise_observations}", f"--normalize_returns={asked.normalise_rewards}"),
        *(*encoder, f"--nonlinearity={asked.activation}", "--policy_initialization=orthogonal"),
        *("--adaptive_stddev=False", f"--initial_stddev={asked.initial_std}"),
        *(f"--gamma={asked.discount}", f"--gae_lambda={asked.gae_lambda}", f"--ppo_clip_ratio={asked.clip_ratio}"),
        *(f"--value_loss_coeff={asked.value_cost}", f"--exploration_loss_coeff={asked.entropy_cost}"),
        *(f"--learning_rate={asked.learning_rate}", f"--adam_eps={asked.epsilon}"),
        f"--max_grad_norm={asked.max_gradient_norm or 0.0}",
        # Counted in gradient steps, of which a batch has many: rows that are too old would be thrown away, then all.
        "--max_policy_lag=1000000",
        *("--save_every_sec=100000", f"--train_for_env_steps={work.FOREVER}", "--env_frameskip=1"),
    ]


def main() -> None:
    asked = work.read()
    asked.make_env().close()  # it hangs where only its processes find that there is no such env
    register_env("asked", functools.partial(make_env, asked))
    clock = work.Clock(asked.seconds)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        arguments = settings(asked, folder)
        own, _ = parse_sf_args(arguments)
        _, runner = make_runner(parse_full_cfg(own, arguments))
        runner.register_observer(Timed(clock))
        if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
            sys.exit("Sample Factory gave up")
    clock.answer()


if __name__ == "__main__":
    main()
