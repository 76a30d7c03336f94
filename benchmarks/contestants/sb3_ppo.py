"""stable-baselines3. Envs in one process (its sub-processes are slower here), no Monitor, no logging, fused Adam."""

from __future__ import annotations

import functools

import gymnasium
import work
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize


class TimedPPO(PPO):
    """PPO that notes the end of each update."""

    laps: work.Laps

    def train(self) -> None:
        super().train()
        self.laps.lap()


def main() -> None:
    steps = work.steps()
    make_env = functools.partial(gymnasium.make, work.ENV, disable_env_checker=True)
    envs = VecNormalize(DummyVecEnv([make_env] * work.NUM_ENVS))
    agent = TimedPPO(
        "MlpPolicy",
        envs,
        learning_rate=work.LEARNING_RATE,
        n_steps=work.UNROLL_LENGTH,
        batch_size=work.BATCH // work.MINIBATCHES,
        n_epochs=work.EPOCHS,
        policy_kwargs={"net_arch": list(work.LAYERS), "optimizer_kwargs": {"eps": 1e-5, "fused": True}},
        device="cpu",
        seed=0,
    )
    agent.laps = work.Laps()
    agent.learn(steps, log_interval=None)
    agent.laps.answer()


if __name__ == "__main__":
    main()
