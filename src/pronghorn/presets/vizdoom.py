"""ViZDoom's scenarios, seen as images."""

from __future__ import annotations

from typing import Any

PREFIX = "Vizdoom"

ENVPOOL_TASKS = (
    "Basic",
    "BasicAudio",
    "BasicNotifications",
    "Cig",
    "D1Basic",
    "D2Navigation",
    "D3Battle",
    "D4Battle2",
    "DeadlyCorridor",
    "Deathmatch",
    "DefendTheCenter",
    "DefendTheLine",
    "Doom",
    "Doom2",
    "Freedoom1",
    "Freedoom2",
    "HealthGathering",
    "HealthGatheringSupreme",
    "Learning",
    "Multi",
    "MultiDuel",
    "MyWayHome",
    "Oblige",
    "PredictPosition",
    "RocketBasic",
    "SimplerBasic",
    "TakeCover",
    "VizdoomCustom",
)
"""Names in EnvPool."""


def presets() -> dict[str, dict[str, Any]]:
    """Overrides of the defaults, by name of the preset."""
    ppo = {
        "num_envs": 8,
        "image_encoder": "shallow",
        "layers": (),
        "activation": "relu",
        "normalise_images": True,
        "unroll_length": 64,
        "epochs": 4,
        "entropy_cost": 0.01,
        "learning_rate": 7e-4,
    }
    return {"ppo-vizdoom": ppo, "ppo-vizdoombasic": ppo | {"steps": 30_000}}
