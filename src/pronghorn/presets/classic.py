"""Classic control: small problems, solved in seconds to minutes."""

from __future__ import annotations

from typing import Any

from pronghorn.presets import generic

ENVS = ("Acrobot", "CartPole", "MountainCar", "MountainCarContinuous", "Pendulum")


def presets() -> dict[str, dict[str, Any]]:
    """Overrides of the defaults, by name of the preset. BatchPPO has a task of its own for two envs."""
    batchppo, impala, a2c = generic.batchppo(), generic.impala(), generic.a2c()
    pendulum = {
        "steps": 1_000_000,
        "num_envs": 8,
        "unroll_length": 8,
        "discount": 0.9,
        "trace_lambda": 0.95,
        "entropy_cost": 0.0,
        "learning_rate": 2e-3,
    }
    return {
        "ppo-classic": {"steps": 500_000, "unroll_length": 256, "epochs": 4},
        "ppo-cartpole": {
            "steps": 100_000,
            "num_envs": 8,
            "unroll_length": 32,
            "epochs": 20,
            "minibatches": 1,
            "discount": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": 1e-3,
        },
        "ppo-pendulum": {
            "steps": 300_000,
            "num_envs": 8,
            "unroll_length": 256,
            "minibatches": 16,
            "discount": 0.9,
            "learning_rate": 1e-3,
        },
        "batchppo-classic": batchppo,
        "batchppo-cartpole": batchppo | {"steps": 200_000, "unroll_length": 500},
        # The original learns from chunks of 50 steps here; whole episodes keep the value targets unbiased.
        "batchppo-pendulum": batchppo | {"steps": 1_000_000, "unroll_length": 200},
        "impala-classic": impala | {"steps": 500_000},
        "impala-cartpole": impala | {"steps": 100_000, "num_envs": 8, "unroll_length": 10, "learning_rate": 3e-3},
        "impala-pendulum": impala | pendulum,
        "a2c-classic": a2c | {"steps": 500_000},
        "a2c-cartpole": a2c | {"steps": 100_000, "num_envs": 8, "learning_rate": 3e-3},
        "a2c-pendulum": a2c | pendulum,
    }
