"""From the name of an env and an algorithm to a preset and its configuration."""

from __future__ import annotations

import re
from typing import Any

from pronghorn.config import LOSSES, RunConfig, nearest, override
from pronghorn.presets import atari, box2d, classic, dm_control, generic, mujoco, procgen, vizdoom
from pronghorn.types import UserError

_ENVS = {"classic": classic.ENVS, "mujoco": mujoco.ENVS, "box2d": box2d.ENVS}

_PREFIXES = {"atari": atari.PREFIX, "dm-control": dm_control.PREFIX, "vizdoom": vizdoom.PREFIX}


def presets() -> dict[str, dict[str, Any]]:
    """All presets: overrides of the defaults, by name. A name is ALGORITHM-TASK or ALGORITHM-FAMILY."""
    # Of a user's own algorithms; for the others they are replaced by ours.
    own: dict[str, dict[str, Any]] = {f"{algorithm}-generic": {} for algorithm in LOSSES}
    for family in (generic, classic, mujoco, box2d, dm_control, atari, procgen, vizdoom):
        own |= family.presets()
    return own


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
        family, task = _family(env)
        special, general = f"{algorithm}-{task.lower()}", f"{algorithm}-{family}"
        if family != "generic" and special in known:
            preset = special
        else:
            preset = general if general in known else f"{algorithm}-generic"
    elif preset.partition("-")[0] != algorithm:
        raise UserError(f"preset {preset} belongs to {preset.partition('-')[0]}, not to --algorithm {algorithm}")
    base = RunConfig(env=env, algorithm=algorithm, preset=preset, loss=LOSSES[algorithm]())
    return preset, override(base, **known[preset])


def _family(env: str) -> tuple[str, str]:
    """(family, task), the task without its version; EnvPool's belong to the families they imitate."""
    name = env.removeprefix("envpool/")
    task = re.sub(r"-v\d+$", "", name)
    families = [family for family, envs in _ENVS.items() if task in envs]
    families += [family for family, prefix in _PREFIXES.items() if env.startswith(prefix)]
    if name != env:
        families.append(_envpools(task, name.removeprefix(task)))
    return next(iter(families), "generic"), task


def _envpools(task: str, version: str) -> str:
    """The family of a task that has another name in EnvPool than elsewhere."""
    if version == "-v5":  # all of Gymnasium's MuJoCo that have it are known by now
        return "atari"
    if task in vizdoom.ENVPOOL_TASKS:
        return "vizdoom"
    if task in procgen.ENVPOOL_TASKS:
        return "procgen"
    return "dm-control" if version == "-v1" and task.startswith(dm_control.ENVPOOL_DOMAINS) else "generic"
