"""Box2D: landing and walking, from vectors."""

from __future__ import annotations

from typing import Any

from pronghorn.presets import generic

ENVS = ("BipedalWalker", "BipedalWalkerHardcore", "LunarLander", "LunarLanderContinuous")


def presets() -> dict[str, dict[str, Any]]:
    """Overrides of the defaults, by name of the preset."""
    # What is worth most, landing or arriving, comes hundreds of steps after what made it possible.
    far = {"discount": 0.999, "gae_lambda": 0.98, "minibatches": 16}
    return {
        "ppo-box2d": far,
        "batchppo-box2d": generic.batchppo() | {"discount": 0.999},
        "impala-box2d": generic.impala() | {"discount": 0.999, "trace_lambda": 0.98},
        "a2c-box2d": generic.a2c() | {"discount": 0.999, "trace_lambda": 0.98},
    }
