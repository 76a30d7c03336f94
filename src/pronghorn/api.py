"""The same from Python as from the command line: train, resume, load, evaluate."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from pronghorn import build, checkpoint
from pronghorn.config import RunConfig, from_json, validate
from pronghorn.decisions import acting_threads, decided, fitted
from pronghorn.envs import own
from pronghorn.evaluation import Evaluation
from pronghorn.policy import Policy
from pronghorn.processes.claim import claimed
from pronghorn.seeding import Domain
from pronghorn.session import Result, Session, in_session, versions, watching, write_config
from pronghorn.telemetry import sinks as named_sinks
from pronghorn.telemetry.callbacks import Callback
from pronghorn.telemetry.writers import MetricsWriter
from pronghorn.transport.local import LocalWeights
from pronghorn.types import UserError
from pronghorn.vec.base import BatchedEnv

FRESH_CONFIG = ".config.json"
"""A config.json that is being written."""


def train(
    config: RunConfig,
    quiet: bool = False,
    callbacks: Iterable[Callback] = (),
    sinks: Iterable[MetricsWriter] = (),
) -> Result:
    """Trains from the beginning in a new directory. ``callbacks`` and ``sinks`` are added to those of the config.

    Raises:
        UserError: an option, the env or its spaces cannot be used, the directory is not empty, or cannot be written to.
    """
    own.read_parts(config.imports)
    validate(config)
    named_sinks.require(config.sinks)
    _check_device(config.device)
    run = Path(config.run)
    _check_unused(run)
    config, reasons = decide(config)

    def begin(session: Session) -> None:
        for reason in reasons:
            session.panel.message(reason)
        session.event("start", 0, versions=versions(), decisions=reasons)
        session.prepare()
        session.runner.start()

    with claimed(run):
        _check_unused(run)  # another process may have begun meanwhile
        return in_session(run, config, quiet, None, begin, callbacks, sinks)


def resume(
    run: Path,
    steps: int | None = None,
    quiet: bool = False,
    callbacks: Iterable[Callback] = (),
    sinks: Iterable[MetricsWriter] = (),
) -> Result:
    """Continues a run exactly where its newest good checkpoint was taken; ``steps`` extends it. ``callbacks`` and
    ``sinks`` are added to those of its config: objects that it was begun with have to be given again.

    A run that was killed before its first checkpoint begins from the start.

    Raises:
        UserError: there is no run, no usable checkpoint, it was made for other spaces or another network, another
            process trains in the directory, or it cannot be written to.
    """
    config = load_config(run)
    if steps is not None:
        config = dataclasses.replace(config, steps=steps)
        validate(config)
    named_sinks.require(config.sinks)
    with claimed(run):
        loaded = checkpoint.load_latest(run) if checkpoint.exists(run) else None
        if loaded is not None and _has_finished(loaded, config):
            more = f"`pronghorn resume {run} --steps N` goes on to N"
            return Result(run, 0, f"{run} has finished its {config.steps:,} steps; {more}")
        if loaded is not None and steps is not None and steps < loaded.step:
            raise UserError(f"{run} has taken {loaded.step:,} steps already, more than --steps {steps:,}")
        with watching(config) as watchdog:
            spec = build.env_spec(config, watchdog)
        if loaded is not None:
            loaded.check_spec(spec)
        config, (_, *warnings) = fitted(config, spec)

        def begin(session: Session) -> None:
            for warning in warnings:
                session.panel.message(warning)
            if steps is not None:
                write_config(run, config)
                session.panel.message(f"extended to {steps:,} steps; schedules run over these from here on")
            session.restore()
            session.prepare()

        return in_session(run, config, quiet, loaded, begin, callbacks, sinks)


def load(run: Path, sample: bool = False) -> Policy:
    """The agent of the newest good checkpoint, to act with; see ``Policy``.

    Raises:
        UserError: there is no run, no usable checkpoint, or it was made for other spaces or another network.
    """
    return Policy(load_config(run), checkpoint.load_latest(run), sample)


def evaluate(run: Path, episodes: int = 20, sample: bool = False, seed: int | None = None) -> dict[str, Any]:
    """Plays ``episodes`` of the newest good checkpoint; see ``Evaluation.report`` for the keys, and
    ``return_quartiles``. ``seed`` chooses other episodes than training's evaluations play."""
    config = load_config(run)
    if episodes < 1:
        raise UserError(f"--episodes must be positive, not {episodes}")
    if seed is not None:
        config = dataclasses.replace(config, seed=seed)
    loaded = checkpoint.load_latest(run)
    evaluation = play(
        config, loaded, lambda: build.vec(config, Domain.EVALUATION_ENV, min(episodes, 16)), episodes, sample
    )
    quartiles = evaluation.quartiles()
    return {**evaluation.report(), **({"return_quartiles": quartiles} if quartiles else {})}


def play(
    config: RunConfig,
    loaded: checkpoint.Loaded,
    make: Callable[[], BatchedEnv],
    episodes: int,
    sample: bool = False,
    most_seconds: float | None = None,
) -> Evaluation:
    """Plays ``episodes`` with the agent of a checkpoint in the envs that ``make`` makes, and closes these; see
    ``Evaluator.run``.

    Raises:
        UserError: the checkpoint was made for other spaces or another network.
    """
    weights = LocalWeights()
    with closing(make()) as envs:
        loaded.check_spec(envs.spec)
        weights.publish(*loaded.agent(build.agent(config, envs.spec).state_dict()))
        torch.set_num_threads(acting_threads(config, envs.spec))
        evaluation = build.evaluator(config, envs, weights, episodes, sample).run(most_seconds=most_seconds)
    assert evaluation is not None  # nobody could ask it to stop
    return evaluation


def load_config(run: Path) -> RunConfig:
    """The configuration of a run. Raises UserError where there is none, or it is not one."""
    path = Path(run) / "config.json"
    if not path.is_file():
        raise UserError(f"{run} is not a run: it has no config.json")
    try:
        options = json.loads(path.read_text())["config"]
        own.read_parts(options.get("imports", ()))
        config = from_json(RunConfig, options)
        validate(config)
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {own.line(error) or type(error).__name__}") from error
    return config


def decide(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """What is chosen at the start, once: layout, workers, threads, compiling; with a line for each choice."""
    with watching(config) as watchdog:
        return decided(config, watchdog)


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {device} cannot be used: {str(error).splitlines()[0]}") from error


def _check_unused(run: Path) -> None:
    if run.exists() and (not run.is_dir() or {path.name for path in run.iterdir()} - {FRESH_CONFIG}):
        raise UserError(
            f"run directory {run} exists and is not empty; continue it with `pronghorn resume {run}` or choose "
            "another with --run"
        )


def _has_finished(loaded: checkpoint.Loaded, config: RunConfig) -> bool:
    counters = loaded.state["run"]["counters"]
    return bool(counters["step"] >= config.steps and counters["evaluated_at"] >= counters["step"])
