"""Procgen's games, of which EnvPool has an engine, seen as images."""

from __future__ import annotations

from typing import Any

from pronghorn.presets import generic

GAMES = (
    "Bigfish",
    "Bossfight",
    "Caveflyer",
    "Chaser",
    "Climber",
    "Coinrun",
    "Dodgeball",
    "Fruitbot",
    "Heist",
    "Jumper",
    "Leaper",
    "Maze",
    "Miner",
    "Ninja",
    "Plunder",
    "Starpilot",
)

MODES = ("Easy", "Hard", "Extreme", "Memory", "Exploration")

ENVPOOL_TASKS = tuple(game + mode for game in GAMES for mode in MODES)
"""Names in EnvPool; not every game has every mode."""


def presets() -> dict[str, dict[str, Any]]:
    """Overrides of the defaults, by name of the preset."""
    # The network and the numbers that the benchmark was published with, for its easy levels.
    deep = {
        "steps": 25_000_000,
        "num_envs": 64,
        "image_encoder": "deep",
        "layers": (),
        "activation": "relu",
        "discount": 0.999,
        "entropy_cost": 0.01,
        "learning_rate": 5e-4,
    }
    ppo = {
        "unroll_length": 256,
        "epochs": 3,
        "minibatches": 8,
        "gae_lambda": 0.95,
        "recompute_advantages": False,
        "schedule": "constant",
    }
    return {"ppo-procgen": deep | ppo, "impala-procgen": generic.impala() | deep | {"num_envs": 32}}
