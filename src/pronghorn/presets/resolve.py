"""From the name of an env and an algorithm to a preset and its configuration."""

from __future__ import annotations

import re
from typing import Any

from pronghorn.config import LOSSES, RunConfig, nearest, override
from pronghorn.presets import atari, classic, generic, mujoco
from pronghorn.types import UserError

_FAMILIES = {"classic": classic.ENVS, "mujoco": mujoco.ENVS}


def presets() -> dict[str, dict[str, Any]]:
    """All presets: overrides of the defaults, by name. A name is ALGORITHM-TASK or ALGORITHM-FAMILY."""
    # Of a user's own algorithms; for the others they are replaced by ours.
    own: dict[str, dict[str, Any]] = {f"{algorithm}-generic": {} for algorithm in LOSSES}
    return own | generic.presets() | classic.presets() | mujoco.presets() | atari.presets()


def algorithms() -> list[str]:
    """Names of the algorithms."""
    return list(LOSSES)


def resolve(env: str, algorithm: str = "", preset: str = "") -> tuple[str, RunConfig]:
    """(name of the preset, configuration with its values).

    Without ``preset`` the most special one is taken: that of the task, of its family, or the generic one. Without
    ``algorithm`` it is that of the preset, or PPO. Raises UserError for unknown names and where the two disagree.
    """
    known = presets()
    if algorithm and algorithm not in algorithms():
        raise UserError(f"unknown algorithm {algorithm!r}; {nearest(algorithm, algorithms())}")
    if preset and preset not in known:
        raise UserError(f"unknown preset {preset!r}; {nearest(preset, known)}")
    algorithm = algorithm or preset.partition("-")[0] or "ppo"
    if not preset:
        task = re.sub(r"-v\d+$", "", env)
        family = next((name for name, envs in _FAMILIES.items() if task in envs), "generic")
        if env.startswith(atari.PREFIX):
            family = "atari"
        special, general = f"{algorithm}-{task.lower()}", f"{algorithm}-{family}"
        if family != "generic" and special in known:
            preset = special
        else:
            preset = general if general in known else f"{algorithm}-generic"
    elif preset.partition("-")[0] != algorithm:
        raise UserError(f"preset {preset} belongs to {preset.partition('-')[0]}, not to --algorithm {algorithm}")
    base = RunConfig(env=env, algorithm=algorithm, preset=preset, loss=LOSSES[algorithm]())
    return preset, override(base, **known[preset])
