"""For envs nothing is known about."""

from __future__ import annotations

from typing import Any


def presets() -> dict[str, dict[str, Any]]:
    """Overrides of the defaults, by name of the preset."""
    return {"ppo-generic": {}, "batchppo-generic": batchppo(), "impala-generic": impala(), "a2c-generic": a2c()}


def batchppo() -> dict[str, Any]:
    """The parameters BatchPPO (Hafner, Davidson, Vanhoucke 2017) shares among its tasks, as of its release 1.4.

    Differs on purpose: episodes cut by a time limit are bootstrapped, and padding enters no mean.
    """
    return {
        "num_envs": 30,
        "layers": (200, 100),
        "activation": "relu",
        "mean_activation": "tanh",
        "initial_std": 0.35,
        "std_parametrisation": "softplus",
        "init": "glorot",
        "observation_clip": 5.0,
        "unroll_length": 1000,
        "episodes_per_update": 30,
        "epochs": 25,
        "minibatches": 1,
        "discount": 0.995,
        "gae_lambda": 1.0,
        "recompute_advantages": False,
        "normalise_advantages": "batch",
        "clip_ratio": None,
        "kl_penalty": 1.0,
        "kl_target": 0.01,
        "kl_cutoff_factor": 2.0,
        "kl_cutoff_coefficient": 1000.0,
        "value_cost": 1.0,
        "entropy_cost": 0.0,
        "reward_scaling": "rewards",
        "reward_clip": 10.0,
        "learning_rate": 1e-4,
        "schedule": "constant",
        "epsilon": 1e-8,
        "max_gradient_norm": None,
    }


def impala() -> dict[str, Any]:
    """Batches of 32 unrolls of 20, as in the paper; Adam and means instead of its RMSProp and sums, since they need
    no tuning to the length of an unroll and the size of a batch."""
    return {"num_envs": 32, "unroll_length": 20, "reduction": "mean", "learning_rate": 1e-3}


def a2c() -> dict[str, Any]:
    """Advantages of GAE from short unrolls, nothing corrected."""
    return impala() | {
        "corrections": "none",
        "num_envs": 16,
        "unroll_length": 8,
        "trace_lambda": 0.95,
        "mix_bootstrap": True,
    }
