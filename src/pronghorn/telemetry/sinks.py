"""Sinks by name: ours, and those that a user registers. A sink is a ``MetricsWriter``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from pronghorn.config import SINKS, check_free
from pronghorn.telemetry.writers import Csv, MetricsWriter, TensorBoard, kind, replace_text
from pronghorn.types import UserError

MakeSink: TypeAlias = Callable[[Path, dict[str, Any], int | None], MetricsWriter]
"""(directory of the run, its options as ``config.json`` nests them, the step it continues from if it is resumed)."""


class Wandb:
    """A ``MetricsWriter`` to Weights & Biases, whose environment variables say in which mode and to whose account.

    ``wandb.json`` in the run's directory has the id of the run over there, so that a resumed run goes on in it, and
    the newest steps that were written: what a run does again since its last checkpoint is not logged twice.

    Raises:
        UserError: no run can be begun over there.
    """

    def __init__(self, run: Path, config: dict[str, Any], resumed_at: int | None) -> None:
        wandb = importlib.import_module("wandb")
        self._path = run / "wandb.json"
        self._written: dict[str, Any] = {"id": secrets.token_hex(4), "report": -1, "evaluation": -1}
        if self._path.exists():
            self._written = json.loads(self._path.read_text())
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "pronghorn"),
                name=run.name,
                id=self._written["id"],
                resume="allow",
                dir=run,
                config=config,
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.Error as error:
            raise UserError(f"--sinks wandb: {' '.join(str(error).split())}") from error
        self._run.define_metric("*", step_metric="step")

    def write(self, record: dict[str, Any]) -> None:
        step, which = int(record["step"]), kind(record)
        if step <= self._written[which]:
            return
        self._written[which] = step
        replace_text(self._path, json.dumps(self._written) + "\n")
        self._run.log(record)

    def close(self) -> None:
        self._run.finish()


_MAKERS: dict[str, MakeSink] = {
    "tensorboard": lambda run, config, resumed_at: TensorBoard(run / "tensorboard", resumed_at),
    "csv": lambda run, config, resumed_at: Csv(run / "metrics.csv", resumed_at),
    "wandb": Wandb,
}
_BUILT_IN = tuple(_MAKERS)


def register_sink(name: str, make: MakeSink) -> None:
    """Adds a sink for ``--sinks name``: ``make(run, config, resumed_at)`` is called once a run, see ``MakeSink``.

    Raises:
        UserError: ``name`` is one of ours, or cannot be written on the command line.
    """
    check_free("sink", name, _BUILT_IN)
    if name not in SINKS:
        SINKS.append(name)
    _MAKERS[name] = make


def make_sink(name: str, run: Path, config: dict[str, Any], resumed_at: int | None) -> MetricsWriter:
    """The sink called ``name`` in the config."""
    return _MAKERS[name](run, config, resumed_at)


def require(names: Iterable[str]) -> None:
    """Raises UserError where a sink needs a package that is not installed."""
    if "wandb" in names and importlib.util.find_spec("wandb") is None:
        raise UserError("--sinks wandb needs a package that is not installed: pip install 'pronghorn[wandb]'")
