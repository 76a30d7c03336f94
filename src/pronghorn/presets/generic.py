"""For envs nothing is known about."""

from __future__ import annotations

from typing import Any


def presets() -> dict[str, dict[str, Any]]:
    """Overrides of the defaults, by name of the preset."""
    return {"ppo-generic": {}, "batchppo-generic": batchppo()}


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
