"""A run that trains: all that it holds open, what it writes to its directory, and how it ends."""

from __future__ import annotations

import errno
import functools
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, NoReturn

import torch

from pronghorn import build, checkpoint
from pronghorn.config import RunConfig, to_json
from pronghorn.decisions import acting_threads
from pronghorn.learning import compiler
from pronghorn.processes.launch import available_cores
from pronghorn.processes.signals import Interrupted, StopRequest
from pronghorn.processes.supervise import Incident, Supervisor, Watchdog
from pronghorn.runners.sync import Collector, SyncRunner, Weights
from pronghorn.seeding import Domain
from pronghorn.telemetry import sinks as named_sinks
from pronghorn.telemetry.bottleneck import TimeSpent, bottleneck
from pronghorn.telemetry.callbacks import Callback, Listeners, make_callback
from pronghorn.telemetry.events import EventLog
from pronghorn.telemetry.panel import Panel
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.telemetry.writers import LineFile, MetricsWriter, finite, kind, replace_text, truncate_after
from pronghorn.transport.local import LocalWeights
from pronghorn.transport.shared import SharedWeights, weights_layout
from pronghorn.types import EnvSpec, Metrics, UserError
from pronghorn.vec.base import EnvError

UNWRITABLE = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM")}
"""Numbers of errors by which a disk refuses."""


@dataclass(frozen=True)
class Result:
    """How a call ended: the run's directory, the exit code (0, or 128 + signal), and a line for the user."""

    run: Path
    exit_code: int
    summary: str


def in_session(
    run: Path,
    config: RunConfig,
    quiet: bool,
    resumed: checkpoint.Loaded | None,
    begin: Callable[[Session], None],
    callbacks: Iterable[Callback],
    sinks: Iterable[MetricsWriter],
) -> Result:
    """Opens a session, lets ``begin`` bring it to where training goes on, and trains. Until then a signal ends it at
    once: nothing is lost."""
    with StopRequest() as stop:
        try:
            with ExitStack() as opened:
                with stop.immediately():
                    session = opened.enter_context(Session(run, config, quiet, resumed, stop, callbacks, sinks))
                    begin(session)
                return session.finish(stop)
        except Interrupted:
            left = f"; continue with `pronghorn resume {run}`" if (run / "config.json").exists() else ""
            return Result(run, stop.exit_code, f"stopped before training went on{left}")
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise UserError(
                f"{run} cannot be written to: {error.strerror}; its checkpoints are as they were: mend that, then "
                f"`pronghorn resume {run}`"
            ) from error


class Session:
    """Everything a run holds open: envs, files, panel. A context manager that leaves no process behind."""

    def __init__(
        self,
        run: Path,
        config: RunConfig,
        quiet: bool,
        resumed: checkpoint.Loaded | None,
        stop: StopRequest,
        callbacks: Iterable[Callback] = (),
        sinks: Iterable[MetricsWriter] = (),
    ) -> None:
        self.run, self._config = run, config
        self._stack = ExitStack()
        self._resumed = resumed
        self._seconds = 0.0 if resumed is None else resumed.state["run"]["counters"]["seconds"]
        self._incidents: list[Incident] = []
        self._restarts = 0
        self._spent = TimeSpent(self._seconds)
        self._machine = len(available_cores()), torch.cuda.is_available()
        self._ended = False
        self._events: EventLog | None = None
        named = map(make_callback, config.callbacks)
        self._listeners = Listeners(run, [*named, *callbacks], sinks, stop.ask)
        self.panel = Panel(run.name, config.steps, quiet=quiet)
        self.spec: EnvSpec
        self.runner: SyncRunner

    def __enter__(self) -> Session:
        with self._stack as opening:
            torch.set_num_threads(1)
            config, timers = self._config, PhaseTimers()
            supervisor = Supervisor(config.vec.env_errors, config.vec.env_restarts, self._incident)
            watchdog = opening.enter_context(Watchdog(vars(build.timeouts(config)), self._hung))
            few = min(config.evaluation_episodes, config.vec.num_envs)
            evaluation_envs = build.vec(config, Domain.EVALUATION_ENV, few, supervisor, watchdog)
            opening.callback(evaluation_envs.close)
            self.spec = evaluation_envs.spec
            learner = build.learner(config, self.spec)
            self._learner = learner
            weights: Weights
            actor: Collector
            if config.runner == "async":
                weights = shared = SharedWeights(weights_layout(learner.weights()))
                opening.callback(shared.close)
                actor, close_actors = build.remote_actors(config, self.spec, shared, supervisor, self._warn)
            else:
                weights = LocalWeights()
                envs = build.vec(config, Domain.TRAINING_ENV, None, supervisor, watchdog)
                actor, close_actors = build.actor(config, envs, timers), envs.close
            opening.callback(close_actors)
            actor = build.replaying(config, self.spec, actor)
            torch.set_num_threads(acting_threads(config, self.spec))
            self.runner = SyncRunner(
                actor=actor,
                learner=learner,
                weights=weights,
                evaluator=build.evaluator(config, evaluation_envs, weights, config.evaluation_episodes),
                report=self,
                save=self._save,
                timers=timers,
                steps=config.steps,
                evaluate_every=config.evaluate_every,
                checkpoint_every=config.checkpoint_every,
                frames_per_step=self.spec.action_repeat,
                force_lag=config.force_lag,
            )
            self._open_files(opening)
            opening.enter_context(self.panel)
            opening.callback(evaluation_envs.close)  # here already, while it can be told what goes wrong in it
            opening.callback(close_actors)
            for incident in self._incidents:  # while the envs were made
                self._tell(incident)
            self._stack = opening.pop_all()
        return self

    def _open_files(self, opening: ExitStack) -> None:
        """What a run writes as it goes. The config comes first, so that whatever follows can be resumed."""
        begun = (self.run / "config.json").exists()
        if not begun:
            write_config(self.run, self._config)
        # A run without a checkpoint begins anew, and so does what it has logged.
        at = self._resumed.step if self._resumed is not None else -1 if begun else None
        for writer in self._listeners.writers:
            opening.callback(writer.close)
        for name in self._config.sinks:
            made = named_sinks.make_sink(name, self.run, to_json(self._config), at)
            self._listeners.writers.append(opening.enter_context(closing(made)))
        if at is not None:
            truncate_after(self.run / "metrics.jsonl", at)
        lines = opening.enter_context(closing(LineFile(self.run / "metrics.jsonl")))
        self._listeners.writers.insert(0, lines)
        self._events = opening.enter_context(closing(EventLog(self.run / "events.jsonl", self._seconds)))

    def __exit__(self, *exception: Any) -> bool | None:
        return self._stack.__exit__(*exception)

    def record(self, record: Metrics, longest_running: int) -> None:
        """To every writer, the panel and the callbacks, which find a checkpoint of what was evaluated."""
        record = finite({**record, "restarts": self._restarts} if self._restarts else record)
        self._listeners.write(record)
        self.panel.update(record, longest_running, bottleneck(self._spent.add(record), self._config, *self._machine))
        if kind(record) == "evaluation" and self._listeners.callbacks:
            self.runner.checkpoint()
        self._listeners.tell(kind(record), record)

    def event(self, event: str, step: int, **details: Any) -> None:
        """To the event log and the callbacks; a warning to the panel too."""
        assert self._events is not None
        self._events.write(event, step, **details)
        self._listeners.tell(event, {"step": step, **details})
        if event == "warning":
            self.panel.message(f"warning: {details['message']}")

    def restore(self) -> None:
        """Goes on from the checkpoint; from the start where there is none."""
        loaded = self._resumed
        if loaded is None:
            self.event("resume", 0, envs="begun from the start", versions=versions())
            self.panel.message("there is no checkpoint yet: the run begins from the start")
            self.runner.start()
            return
        for skipped in loaded.skipped:
            self.event("warning", loaded.step, message=f"damaged checkpoint skipped: {skipped}")
        loaded.check_tensors(self._learner.state()[0])
        exact = self.runner.restore(loaded.tensors, loaded.state["run"])
        contract = "envs replayed to where they stood" if exact else "envs began new episodes"
        self.event("resume", loaded.step, checkpoint=loaded.path.name, envs=contract, versions=versions())
        self.panel.message(f"resumed from {loaded.path.name}: {contract}")

    def prepare(self) -> None:
        """Compiles the update where the config says so."""
        if not self._config.compile:
            return
        if obstacle := compiler.obstacle():
            raise UserError(f"the run's update is compiled, which cannot be done here: {obstacle}")
        self.panel.message("compiling the update, once (10 to 30 s; a few from the cache)")
        fresh, replayed = self._config.columns_per_update, self._config.replayed_columns
        for columns in sorted({fresh, fresh + replayed}):
            self._learner.prepare(build.example_batch(self._config, self.spec, columns))

    def finish(self, stop: StopRequest) -> Result:
        """Trains to the end and says how it went."""
        try:
            self.runner.run(stop)
        except EnvError as error:
            self._salvage(str(error))
            raise
        self._ended = True
        counters = self.runner.counters
        step = counters.step
        done = counters.evaluated_at >= step >= self._config.steps
        failed = self._listeners.failure is not None
        reason = {} if stop.reason is None else {"reason": stop.reason}
        self.event("stop", step, exit_code=1 if failed else stop.exit_code, **reason)
        if self._listeners.failure is not None:
            raise self._listeners.failure
        if stop.exit_code or (stop() and not done):
            why = f": {stop.reason}" if stop.reason else ""
            summary = f"stopped at step {step:,}{why}; continue with `pronghorn resume {self.run}`"
        else:
            summary = f"done: {step:,} steps in {counters.seconds:.0f} s; everything is in {self.run}"
            if self.runner.last_evaluation is not None and self.runner.last_evaluation.returns:
                found = self.runner.last_evaluation.report()
                summary = (
                    f"return {found['return_mean']:.1f} ± {found['return_std']:.1f} over {found['episodes']:.0f} "
                    f"evaluation episodes; {summary}"
                )
        return Result(self.run, stop.exit_code, summary)

    def _incident(self, incident: Incident) -> None:
        """Something in the envs has failed, and was replaced or closed. Before the log is open, it is kept for it."""
        if self._events is None:
            self._incidents.append(incident)
        else:
            self._tell(incident)

    def _tell(self, incident: Incident) -> None:
        details = {key: value for key, value in asdict(incident).items() if value not in ("", (), -1)}
        step = self.runner.counters.step
        if incident.lost:
            self._restarts += 1
            self.event("restart", step, **details)
            self.panel.message(f"started again: {incident.cause}")
        else:
            self.event("warning", step, message=incident.cause, **details)

    def _warn(self, message: str) -> None:
        self.event("warning", self.runner.counters.step, message=message)

    def _hung(self, env: int, phase: str, seconds: float) -> None:
        """The watchdog's end of the run: whoever waits for the env, which is this process, never comes back."""
        with suppress(Exception):  # nothing may keep the process from ending
            if self._events is not None and not self._ended:  # else all is saved, and it hangs in closing
                self._salvage(_hang(self._config, env, phase, seconds))
        _end_of_hang(self._config, env, phase, seconds)

    def _salvage(self, message: str) -> None:
        """Saves what was learnt in a run that cannot go on."""
        self.runner.abandon()
        self.event("warning", self.runner.counters.step, message=message)
        self.event("stop", self.runner.counters.step, exit_code=1)
        self.panel.message(f"saved; continue with `pronghorn resume {self.run}`")

    def _save(self, step: int, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        contents = {"run": state, "spec": self.spec.describe()}
        checkpoint.save(self.run, step, tensors, contents, self._config.keep_checkpoints)


def _hang(config: RunConfig, env: int, phase: str, seconds: float) -> str:
    who = "the environments' engine" if config.vec.layout == "native" else f"env {env}"
    return f"{who} gave no answer for {seconds:g} s in {phase}; --env-timeout sets how long it may take"


def watching(config: RunConfig) -> Watchdog:
    """Over envs that run in this process; where one gives no answer in time it says so, and ends the process."""
    return Watchdog(vars(build.timeouts(config)), functools.partial(_end_of_hang, config))


def _end_of_hang(config: RunConfig, env: int, phase: str, seconds: float) -> NoReturn:
    """All that can be done, from another thread, about a call of this process that does not return."""
    print(f"pronghorn: {_hang(config, env, phase, seconds)}", file=sys.stderr, flush=True)
    os._exit(1)


def versions() -> dict[str, str]:
    """Of the packages that a run depends on, of Python and of the machine."""
    packages = {name: package_version(name) for name in ("pronghorn", "torch", "gymnasium", "numpy")}
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


def write_config(run: Path, config: RunConfig) -> None:
    text = json.dumps({"config": to_json(config), "versions": versions()}, indent=2)
    replace_text(run / "config.json", text + "\n")
