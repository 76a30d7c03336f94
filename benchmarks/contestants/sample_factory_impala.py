"""Sample Factory, asynchronous, one epoch of one batch, two env workers of 16 envs in two halves.

Without V-trace, which fails in its version 2.1.1 where statistics are reported; its own correction costs no more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from typing import Any

import gymnasium
import work
from gymnasium.wrappers import AtariPreprocessing, FrameStack
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.envs.env_wrappers import NumpyObsWrapper
from sample_factory.train import make_runner

ENCODERS = {
    "nature": ("--encoder_conv_architecture=convnet_atari", "--encoder_conv_mlp_layers", "512"),
    "deep": ("--encoder_conv_architecture=resnet_impala", "--encoder_conv_mlp_layers", "256"),
}
WARM_UP = 6
"""Updates that are not timed, as for Pronghorn."""


class Clock(AlgoObserver):
    """Steps and seconds since the warm-up, at the end of each update."""

    def __init__(self) -> None:
        self.start: tuple[int, float] | None = None
        self.end = (0, 0.0)

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """An update has just ended."""
        self.end = (sum(runner.env_steps.values()), time.perf_counter())
        if self.start is None and training_iteration_since_resume >= WARM_UP:
            self.start = self.end


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gymnasium.Env:
    """Pong, seen as Pronghorn sees it."""
    import ale_py.registration

    if "ALE/Pong-v5" not in gymnasium.registry:
        ale_py.registration.register_v5_envs()
    game = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    return NumpyObsWrapper(FrameStack(AtariPreprocessing(game, noop_max=30, frame_skip=4), 4))


def settings(steps: int, network: str, core: str, folder: str) -> list[str]:
    """Arguments of Sample Factory's own command line."""
    recurrent = core == "lstm"
    return [
        *("--env=pong", "--experiment=run", f"--train_dir={folder}", "--device=cpu", "--seed=0"),
        *("--async_rl=True", "--rollout=20"),
        *("--batch_size=640", "--num_batches_per_epoch=1", "--num_epochs=1"),
        *("--num_workers=2", "--num_envs_per_worker=16", "--worker_num_splits=2"),
        *("--normalize_input=False", "--normalize_returns=False", "--obs_scale=255", "--reward_clip=1"),
        *ENCODERS[network],
        *("--nonlinearity=relu", f"--use_rnn={recurrent}", "--rnn_type=lstm", "--rnn_size=256"),
        *("--learning_rate=6e-4", "--max_grad_norm=40", "--exploration_loss_coeff=0.01"),
        *("--save_every_sec=100000", "--env_frameskip=1", f"--train_for_env_steps={steps}"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True, help="warm-up included")
    parser.add_argument("--network", choices=ENCODERS, required=True)
    parser.add_argument("--core", choices=("none", "lstm"), required=True)
    options = parser.parse_args()
    register_env("pong", make_env)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = settings(options.steps, options.network, options.core, folder)
        own, _ = parse_sf_args(arguments)
        _, runner = make_runner(parse_full_cfg(own, arguments))
        runner.register_observer(clock)
        if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
            sys.exit("Sample Factory gave up")
    if clock.start is None or clock.start == clock.end:
        parser.error(f"--steps {options.steps} ends within the warm-up of {WARM_UP} updates; use more")
    work.answer(clock.end[0] - clock.start[0], clock.end[1] - clock.start[1])


if __name__ == "__main__":
    main()
