"""MuJoCo locomotion and control."""

from __future__ import annotations

from typing import Any

from pronghorn.presets import generic

ENVS = (
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
)


def presets() -> dict[str, dict[str, Any]]:
    """Overrides of the defaults, by name of the preset. BatchPPO has a task of its own for six envs."""
    batchppo = generic.batchppo()
    many_episodes = batchppo | {"episodes_per_update": 60}
    return {
        # Small minibatches learn more from a step: over seeds the return on HalfCheetah rises and varies less.
        "ppo-mujoco": {"minibatches": 16},
        "batchppo-mujoco": batchppo,
        "batchppo-ant": batchppo | {"steps": 20_000_000},
        "batchppo-halfcheetah": batchppo | {"steps": 10_000_000, "discount": 0.99},
        "batchppo-hopper": many_episodes | {"steps": 10_000_000},
        "batchppo-humanoid": many_episodes | {"steps": 50_000_000},
        # The original allows 1000 steps, but the env itself stops at 50: rows beyond would only be padding.
        "batchppo-reacher": many_episodes | {"steps": 5_000_000, "discount": 0.985, "unroll_length": 50},
        "batchppo-walker2d": batchppo | {"steps": 10_000_000},
        "impala-mujoco": generic.impala() | small_batches(),
        "a2c-mujoco": generic.a2c() | small_batches(),
    }


def small_batches() -> dict[str, Any]:
    """Many updates, for IMPALA and A2C: with 20 rows of 32 envs too few gradient steps are left in a million steps."""
    return {"num_envs": 8, "unroll_length": 8, "trace_lambda": 0.95, "learning_rate": 1.5e-3, "entropy_cost": 0.0}
