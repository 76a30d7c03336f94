"""ViZDoom's scenarios, seen as images."""

from __future__ import annotations

from typing import Any

from pronghorn.presets import generic

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
    network = {"image_encoder": "shallow", "layers": (), "activation": "relu", "normalise_images": True}
    ppo = network | {"num_envs": 8, "unroll_length": 64, "epochs": 4, "entropy_cost": 0.01, "learning_rate": 7e-4}
    # Small batches make many updates. Long unrolls lean less on the values they bootstrap from: in unrolls of 8 these
    # and the reward scale drove each other up until nothing of the rewards was left.
    small = {"num_envs": 4, "unroll_length": 32, "entropy_cost": 0.02, "entropy_schedule": "linear"}
    impala = generic.impala() | network | small
    return {
        "ppo-vizdoom": ppo,
        "ppo-vizdoombasic": ppo | {"steps": 30_000},
        "impala-vizdoom": impala,
        # The monster is hit within some ten steps or hardly at all.
        "impala-vizdoombasic": impala | {"steps": 60_000, "discount": 0.9},
    }
