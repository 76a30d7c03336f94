"""Pronghorn: train reinforcement-learning agents as fast as the hardware allows.

Importing this loads neither torch nor gymnasium; the functions do when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pronghorn.algorithms.base import Algorithm
    from pronghorn.api import Policy, Result
    from pronghorn.config import ImpalaConfig, PPOConfig, RunConfig
    from pronghorn.networks.agent import Agent
    from pronghorn.networks.encoders import OwnNetwork
    from pronghorn.tools.export import Exported


def train(env: str, algorithm: str = "", preset: str = "", quiet: bool = False, **options: Any) -> Result:
    """Trains an agent. ``options`` are those of the command line, e.g. ``steps=100_000, num_envs=8, seed=1``;
    ``env_args`` add to those of the preset.

    Raises:
        pronghorn.types.UserError: an option, the env or its spaces cannot be used.
    """
    from pronghorn import api, config
    from pronghorn.envs.own import read_parts
    from pronghorn.presets.resolve import resolve

    read_parts(options.get("imports", ()))
    _, defaults = resolve(env, algorithm, preset)
    options["env_args"] = defaults.env_args | options.get("env_args", {})
    chosen = config.override(defaults, **options)
    return api.train(chosen if chosen.run else config.override(chosen, run=config.default_run(chosen)), quiet)


def load(run: str | Path, sample: bool = False) -> Policy:
    """The policy of a run's newest good checkpoint: ``load(run).act(observation)``."""
    from pronghorn import api

    return api.Policy(Path(run), sample)


def evaluate(run: str | Path, episodes: int = 20, sample: bool = False, seed: int | None = None) -> dict[str, Any]:
    """Plays episodes with a run's newest good checkpoint; the keys are those of ``pronghorn eval --json``."""
    from pronghorn import api

    return api.evaluate(Path(run), episodes, sample, seed)


def export(run: str | Path, out: str | Path | None = None, sample: bool = False) -> Exported:
    """Writes the policy of a run's newest good checkpoint as ONNX, checked against the network; see ``tools.export``.

    Raises:
        pronghorn.types.UserError: it cannot be exported; nothing is written.
    """
    from pronghorn.tools import export

    return export.export(Path(run), None if out is None else Path(out), sample)


def register_envs(prefix: str, make: Callable[..., Any]) -> None:
    """See ``envs.gymnasium.register_envs``. Loads no torch."""
    from pronghorn.envs import gymnasium

    gymnasium.register_envs(prefix, make)


def register_image_encoder(name: str, make: OwnNetwork) -> None:
    """See ``networks.encoders.register_image_encoder``."""
    from pronghorn.networks import encoders

    encoders.register_image_encoder(name, make)


def register_algorithm(
    name: str, options: type[PPOConfig] | type[ImpalaConfig], make: Callable[[RunConfig, Agent], Algorithm]
) -> None:
    """See ``build.register_algorithm``."""
    from pronghorn import build

    build.register_algorithm(name, options, make)
