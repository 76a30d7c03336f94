"""Pronghorn: train reinforcement-learning agents as fast as the hardware allows.

Importing this loads neither torch nor gymnasium; the functions do when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium

    from pronghorn.algorithms.base import Algorithm
    from pronghorn.config import ImpalaConfig, PPOConfig, RunConfig
    from pronghorn.networks.agent import Agent
    from pronghorn.networks.encoders import OwnNetwork
    from pronghorn.policy import Policy
    from pronghorn.session import Result
    from pronghorn.telemetry.callbacks import Callback
    from pronghorn.telemetry.sinks import MakeSink
    from pronghorn.telemetry.writers import MetricsWriter
    from pronghorn.tools.export import Exported

__all__ = [
    "evaluate",
    "export",
    "load",
    "make_env",
    "register_algorithm",
    "register_callback",
    "register_envs",
    "register_image_encoder",
    "register_sink",
    "resume",
    "train",
]


def train(
    env: str,
    algorithm: str = "",
    *,
    preset: str = "",
    quiet: bool = False,
    callbacks: Iterable[str | Callback] = (),
    sinks: Iterable[str | MetricsWriter] = ("tensorboard",),
    **options: Any,
) -> Result:
    """Trains an agent, in a new directory.

    Args:
        env: as on the command line: a Gymnasium id, package.module:Class, or ./file.py:Class.
        algorithm: ppo, batchppo, impala, a2c, or one of your own; empty: that of the preset, or ppo.
        preset: named default values; empty: by algorithm and env.
        quiet: prints nothing but warnings.
        callbacks: are told what happens and may end the run; see ``telemetry.callbacks.Callback``.
        sinks: where metrics go beside ``metrics.jsonl``: names, and objects with the methods of
            ``telemetry.writers.MetricsWriter``, which are closed at the end.
        **options: all others of the command line, e.g. ``steps=100_000, num_envs=8, seed=1``; ``env_args`` add to those
            of the preset.

    Names of callbacks and sinks are written to ``config.json`` and hold for ``resume``, too; objects do not.

    Raises:
        pronghorn.types.UserError: an option, the env or its spaces cannot be used.
    """
    from pronghorn import api, config
    from pronghorn.envs.own import read_parts
    from pronghorn.presets.resolve import resolve

    read_parts(options.get("imports", ()))
    _, defaults = resolve(env, algorithm, preset)
    options["env_args"] = defaults.env_args | options.get("env_args", {})
    options["callbacks"], callback_objects = _names_and_objects(callbacks)
    options["sinks"], sink_objects = _names_and_objects(sinks)
    chosen = config.override(defaults, **options)
    chosen = chosen if chosen.run else config.override(chosen, run=config.default_run(chosen))
    return api.train(chosen, quiet, callback_objects, sink_objects)


def resume(
    run: str | Path,
    steps: int | None = None,
    *,
    quiet: bool = False,
    callbacks: Iterable[Callback] = (),
    sinks: Iterable[MetricsWriter] = (),
) -> Result:
    """Continues a run where it stopped; ``steps`` extends it. ``callbacks`` and ``sinks`` are objects, beside those
    that the run's ``config.json`` names."""
    from pronghorn import api

    return api.resume(Path(run), steps, quiet, callbacks, sinks)


def load(run: str | Path, sample: bool = False) -> Policy:
    """The policy of a run's newest good checkpoint: ``load(run).act(observation)``, for one env or several at once;
    see ``policy.Policy``."""
    from pronghorn import api

    return api.load(Path(run), sample)


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


def make_env(
    env: str | Path, algorithm: str = "", *, env_args: dict[str, Any] | None = None, imports: Iterable[str] = ()
) -> gymnasium.Env[Any, Any]:
    """One env as training sees it, as a ``gymnasium.Env``: to look at, or to play in with ``load(run).act``.

    Args:
        env: directory of a run, or an env as for ``train``.
        algorithm: with an env, whose preset says how it is made.
        env_args: keyword arguments of the env, added to those of the run or the preset, e.g.
            ``{"render_mode": "rgb_array"}``.
        imports: with an env, files or modules that register own parts.

    Raises:
        pronghorn.types.UserError: there is no such env, it does not take these arguments, or its library steps many
            at once.
    """
    from pronghorn.envs import gymnasium, own, view
    from pronghorn.presets.resolve import resolve
    from pronghorn.types import UserError
    from pronghorn.vec.engines import native_rule

    if Path(env, "config.json").is_file():
        from pronghorn import api

        config = api.load_config(Path(env))
        imports = config.imports
    else:
        own.read_parts(imports)
        _, config = resolve(str(env), algorithm)
    if native_rule(config.env) not in (None, "ale-py"):
        raise UserError(f"{config.env} steps many environments at once: there is not one to look at")
    given = config.env_args | (env_args or {})
    return view.as_gymnasium(gymnasium.make(config.env, given, tuple(imports)))


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


def register_sink(name: str, make: MakeSink) -> None:
    """See ``telemetry.sinks.register_sink``. Loads no torch."""
    from pronghorn.telemetry import sinks

    sinks.register_sink(name, make)


def register_callback(name: str, make: Callable[[], Callback]) -> None:
    """See ``telemetry.callbacks.register_callback``. Loads no torch."""
    from pronghorn.telemetry import callbacks

    callbacks.register_callback(name, make)


def _names_and_objects(given: Iterable[Any]) -> tuple[tuple[str, ...], list[Any]]:
    parts = [given] if isinstance(given, str) else list(given)
    names = tuple(part for part in parts if isinstance(part, str))
    return names, [part for part in parts if not isinstance(part, str)]
