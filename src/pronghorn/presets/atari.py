"""Atari games, seen as images."""

from __future__ import annotations

from typing import Any

PREFIX = "ALE/"


def presets() -> dict[str, dict[str, Any]]:
    """Overrides of the defaults, by name of the preset."""
    # Table G.1 of the paper of IMPALA, in frames, which are four to a step. Its network has no LSTM here. A lost life
    # ends an episode for the learner alone: returns are those of whole games, in the raw score.
    impala = {
        "env_args": {"life_loss": True},
        "steps": 50_000_000,
        "num_envs": 32,
        "image_encoder": "shallow",
        "layers": (),
        "activation": "relu",
        "normalise_observations": False,
        "unroll_length": 20,
        "discount": 0.99,
        "corrections": "vtrace",
        "rho_bar": 1.0,
        "c_bar": 1.0,
        "pg_rho_bar": 1.0,
        "trace_lambda": 1.0,
        "reduction": "sum",
        "value_cost": 0.5,
        "entropy_cost": 0.01,
        "reward_scaling": "none",
        "reward_clip": "unit",
        "optimiser_name": "rmsprop",
        "learning_rate": 6e-4,
        "schedule": "linear",
        "epsilon": 0.01,
        "max_gradient_norm": 40.0,
    }
    # For a budget of a million steps on a few cores. Normalised pixels let the values be learnt a dozen times sooner;
    # small batches, half of them replayed, make many updates of few steps.
    quick = {
        "steps": 1_000_000,
        "num_envs": 8,
        "normalise_images": True,
        "observation_clip": 5.0,
        "trace_lambda": 0.95,
        "mix_bootstrap": True,
        "reduction": "mean",
        "entropy_cost": 0.002,
        "entropy_schedule": "linear",
        "replay_share": 0.5,
        "replay_capacity": 500,
        "optimiser_name": "adam",
        "learning_rate": 7e-4,
        "epsilon": 1e-7,
        "max_gradient_norm": 0.5,
    }
    return {
        "impala-atari": impala,
        "impala-atari-quick": impala | quick,
        "a2c-atari": impala | {"corrections": "none"},
        # The values of OpenAI's baselines. Rewards are clipped for learning alone: returns are the raw score.
        "ppo-atari": {
            "steps": 10_000_000,
            "num_envs": 8,
            "layers": (),
            "activation": "relu",
            "normalise_observations": False,
            "unroll_length": 128,
            "epochs": 4,
            "minibatches": 4,
            "discount": 0.99,
            "gae_lambda": 0.95,
            "recompute_advantages": False,
            "clip_ratio": 0.1,
            "value_cost": 0.5,
            "entropy_cost": 0.01,
            "reward_scaling": "none",
            "reward_clip": 1.0,
            "learning_rate": 2.5e-4,
            "schedule": "linear",
            "epsilon": 1e-5,
            "max_gradient_norm": 0.5,
        },
    }
