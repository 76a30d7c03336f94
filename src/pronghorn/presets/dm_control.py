"""The DeepMind Control Suite: a thousand steps an episode, each worth at most 1."""

from __future__ import annotations

from typing import Any

from pronghorn.presets import generic, mujoco

PREFIX = "dm_control/"

ENVPOOL_DOMAINS = (
    "Acrobot",
    "BallInCup",
    "Cartpole",
    "Cheetah",
    "Dog",
    "Finger",
    "Fish",
    "Hopper",
    "Humanoid",
    "HumanoidCMU",
    "Lqr",
    "Manipulator",
    "Pendulum",
    "PointMass",
    "Quadruped",
    "Reacher",
    "Stacker",
    "Swimmer",
    "Walker",
)
"""What names of its tasks begin with in EnvPool (``CheetahRun``)."""


def presets() -> dict[str, dict[str, Any]]:
    """Overrides of the defaults, by name of the preset."""
    return {
        "ppo-dm-control": {"minibatches": 16},
        "batchppo-dm-control": generic.batchppo(),
        "impala-dm-control": generic.impala() | mujoco.small_batches(),
        "a2c-dm-control": generic.a2c() | mujoco.small_batches(),
    }
