"""The same from Python as from the command line: train, resume, evaluate, load."""

from __future__ import annotations

import dataclasses
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

import numpy as np
import torch

from pronghorn import build, checkpoint, tree
from pronghorn.acting.inference import Inference
from pronghorn.config import RunConfig, from_json, override, to_json, validate
from pronghorn.envs import own
from pronghorn.envs.base import to_env_actions
from pronghorn.envs.stack import Stack
from pronghorn.envs.text import word_numbers
from pronghorn.evaluation import Evaluation
from pronghorn.learning import compiler
from pronghorn.networks.encoders import Inputs, sees_images, sees_texts
from pronghorn.processes import preflight
from pronghorn.processes.claim import claimed
from pronghorn.processes.launch import available_cores
from pronghorn.processes.signals import Interrupted, StopRequest
from pronghorn.processes.supervise import Incident, Supervisor, Watchdog
from pronghorn.runners.sync import Collector, SyncRunner, Weights
from pronghorn.seeding import Domain, generator
from pronghorn.telemetry import sinks as named_sinks
from pronghorn.telemetry.bottleneck import TimeSpent, bottleneck
from pronghorn.telemetry.callbacks import Callback, Listeners, make_callback
from pronghorn.telemetry.events import EventLog
from pronghorn.telemetry.panel import Panel
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.telemetry.writers import JsonLines, MetricsWriter, finite, kind, replace_text, truncate_after
from pronghorn.transport.local import LocalWeights
from pronghorn.transport.shared import SharedWeights, weights_layout
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, Leaf, Metrics, UserError, action_dtype
from pronghorn.vec.base import BatchedEnv, EnvError
from pronghorn.vec.engines import native_rule
from pronghorn.vec.layout import choose

COMPILING_PAYS_FROM = 20_000
"""Gradient steps of a run from which compiling (10 to 30 s) repays itself, at about 1 ms saved by each."""

THREADS_PAY_FROM = 8192
"""Rows of a gradient step from which a small network is learnt faster by all cores than by one."""

FRESH_CONFIG = ".config.json"
"""A config.json that is being written."""

UNWRITABLE = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM")}
"""Numbers of errors by which a disk refuses."""


@dataclass(frozen=True)
class Result:
    """How a call ended: the run's directory, the exit code (0, or 128 + signal), and a line for the user."""

    run: Path
    exit_code: int
    summary: str


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

    def begin(session: _Session) -> None:
        for reason in reasons:
            session.panel.message(reason)
        session.event("start", 0, versions=versions(), decisions=reasons)
        session.prepare()
        session.runner.start()

    with claimed(run):
        _check_unused(run)  # another process may have begun meanwhile
        return _in_session(run, config, quiet, None, begin, callbacks, sinks)


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
        with Watchdog(vars(build.timeouts(config)), functools.partial(_end_of_hang, config)) as watchdog:
            spec = build.env_spec(config, watchdog)
        if loaded is not None:
            _check_spec(loaded, spec)
        config, (_, *warnings) = _preflight(config, spec)

        def begin(session: _Session) -> None:
            for warning in warnings:
                session.panel.message(warning)
            if steps is not None:
                _write_config(run, config)
                session.panel.message(f"extended to {steps:,} steps; schedules run over these from here on")
            session.restore()
            session.prepare()

        return _in_session(run, config, quiet, loaded, begin, callbacks, sinks)


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
    weights.publish(_agent_state(loaded), loaded.state["run"]["learner"]["version"])
    with closing(make()) as envs:
        _check_spec(loaded, envs.spec)
        _check_weights(loaded, build.agent(config, envs.spec).state_dict(), "agent")
        torch.set_num_threads(acting_threads(config, envs.spec))
        evaluation = build.evaluator(config, envs, weights, episodes, sample).run(most_seconds=most_seconds)
    assert evaluation is not None  # nobody could ask it to stop
    return evaluation


class Policy:
    """A trained agent to call from one's own code, for one env or several at once. It keeps the core state between
    calls; ``reset`` begins an episode.

    ``inference`` holds the network, with the weights of ``step``.

    Args:
        run: directory of the run.
        sample: draw actions from the policy instead of taking its mode.
    """

    def __init__(self, run: Path, sample: bool = False) -> None:
        self.config = load_config(run)
        loaded = checkpoint.load_latest(run)
        self.spec = build.env_spec(self.config)
        self._shown, self._stacks = self.spec.observation, list[Stack]()
        if self.config.frame_stack > 1:  # whoever calls has single observations
            self._shown = build.env_spec(dataclasses.replace(self.config, frame_stack=1)).observation
        _check_spec(loaded, self.spec)
        agent = build.agent(self.config, self.spec)
        _check_weights(loaded, agent.state_dict(), "agent")
        self.step = loaded.step
        self.inference = Inference(agent, "sample" if sample else "mode")
        self.inference.load(_agent_state(loaded), loaded.state["run"]["learner"]["version"])
        self._rng = generator(self.config.seed, Domain.EVALUATION_NOISE, 0)
        self.reset()

    def reset(self) -> None:
        """The next observation starts an episode, those of a batch one each; there may be more or fewer envs now."""
        self._first = True
        self._rows = 0

    def act(self, observation: Tree, reward: Any = 0.0, first: Any = False) -> Tree:
        """The action, in the env's own units, for one observation of the env; or for n at once, of n envs.

        The observations of n envs are stacked: [n, …] in every array (n texts in a list), and so are the actions. Row i
        is the same env in every call, and has a core state of its own. The first call after ``reset`` says how many
        there are.

        Args:
            observation: as the env gives it.
            reward: of the last action, or [n]; it matters where the agent was trained with ``last_action_and_reward``.
            first: whether the observation starts an episode, or [n] bools. After ``reset`` all do.

        Raises:
            UserError: an array has another shape than the env's space says.
        """
        batch, single = self._stacked(observation)
        rows = len(tree.leaves(batch)[0])
        agent = self.inference.agent
        if not self._rows:
            self._rows = rows
            if self.config.frame_stack > 1:
                self._stacks = [Stack(self._shown, self.config.frame_stack) for _ in range(rows)]
            self._core_state = tree.map(lambda tensor: tensor.numpy(), agent.initial_state(rows))
            self._last_action = tree.map(
                lambda leaf: np.zeros((rows, *leaf.shape), action_dtype(leaf)), self.spec.action
            )
        if rows != self._rows:
            raise UserError(f"{rows} observations where there were {self._rows} before; call reset() in between")
        starts = self._per_row("first", first, np.bool_) | self._first
        if self._stacks:
            shown = [
                stack(tree.map(lambda array, row=row: array[row], batch), bool(starts[row]))
                for row, stack in enumerate(self._stacks)
            ]
            batch = tree.map(lambda *frames: np.stack(frames), *shown)
        noise = agent.distribution.draw_noise(self._rng, (rows,))
        if agent.last_step is not None:
            batch = Inputs(batch, self._last_action, self._per_row("reward", reward, np.float32))
        choice = self.inference(batch, starts, self._core_state, noise)
        self._first, self._core_state, self._last_action = False, choice.core_state, choice.action
        actions = to_env_actions(self.spec.action, choice.action)
        return tree.map(lambda array: array[0], actions) if single else actions

    def _stacked(self, observation: Tree) -> tuple[Tree, bool]:
        """(arrays [n, …], whether it was one observation)."""

        def array(leaf: Leaf, value: Any) -> Any:
            if leaf.kind == "text":
                value = word_numbers(value) if isinstance(value, str) else [word_numbers(text) for text in value]
            return np.array(value, leaf.dtype)

        try:
            arrays = tree.map(array, self._shown, tree.conform(self._shown, observation))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is no observation of {self.spec.name}: {own.line(error)}") from error
        leaves = tree.named(self._shown)
        rows = None
        for (name, leaf), found in zip(leaves.items(), tree.leaves(arrays), strict=True):
            inner = found.ndim - len(leaf.shape)
            rows = found.shape[:inner] if rows is None else rows
            if found.shape != (*rows, *leaf.shape) or len(rows) > 1 or 0 in rows:
                where = f"observation/{name}".rstrip("/")
                raise UserError(
                    f"{where} has shape {found.shape}; it must be {leaf.shape}, or (n, ...) in every array for n envs"
                )
        return (arrays, False) if rows else (tree.map(lambda array: array[None], arrays), True)

    def _per_row(self, name: str, value: Any, dtype: Any) -> Any:
        array = np.asarray(value, dtype)
        if array.shape not in ((), (self._rows,)):
            raise UserError(f"{name} has shape {array.shape} for {self._rows} observations")
        return np.full(self._rows, array)


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


def _in_session(
    run: Path,
    config: RunConfig,
    quiet: bool,
    resumed: checkpoint.Loaded | None,
    begin: Callable[[_Session], None],
    callbacks: Iterable[Callback],
    sinks: Iterable[MetricsWriter],
) -> Result:
    """Opens a session, lets ``begin`` bring it to where training goes on, and trains. Until then a signal ends it at
    once: nothing is lost."""
    with StopRequest() as stop:
        try:
            with ExitStack() as opened:
                with stop.immediately():
                    session = opened.enter_context(_Session(run, config, quiet, resumed, stop, callbacks, sinks))
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


class _Session:
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

    def __enter__(self) -> _Session:
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
            begun = (self.run / "config.json").exists()
            if not begun:  # before anything else, so that whatever comes can be resumed
                _write_config(self.run, config)
            # A run without a checkpoint begins anew, and so does what it has logged.
            at = self._resumed.step if self._resumed is not None else -1 if begun else None
            for writer in self._listeners.writers:
                opening.callback(writer.close)
            for name in config.sinks:
                made = named_sinks.make_sink(name, self.run, to_json(config), at)
                self._listeners.writers.append(opening.enter_context(closing(made)))
            if at is not None:
                truncate_after(self.run / "metrics.jsonl", at)
            lines = opening.enter_context(closing(JsonLines(self.run / "metrics.jsonl")))
            self._listeners.writers.insert(0, lines)
            self._events = opening.enter_context(closing(EventLog(self.run / "events.jsonl", self._seconds)))
            opening.enter_context(self.panel)
            opening.callback(evaluation_envs.close)  # here already, while it can be told what goes wrong in it
            opening.callback(close_actors)
            for incident in self._incidents:  # while the envs were made
                self._tell(incident)
            self._stack = opening.pop_all()
        return self

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
        _check_weights(loaded, self._learner.state()[0])
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


def _end_of_hang(config: RunConfig, env: int, phase: str, seconds: float) -> NoReturn:
    """All that can be done, from another thread, about a call of this process that does not return."""
    print(f"pronghorn: {_hang(config, env, phase, seconds)}", file=sys.stderr, flush=True)
    os._exit(1)


def decide(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """What is chosen at the start, once: layout, workers, threads, compiling; with a line for each choice."""
    with Watchdog(vars(build.timeouts(config)), functools.partial(_end_of_hang, config)) as watchdog:
        return _decided(config, watchdog)


def _decided(config: RunConfig, watchdog: Watchdog) -> tuple[RunConfig, list[str]]:
    reasons = []
    cores = len(available_cores())
    vec = config.vec
    if vec.layout == "auto" and (engine := native_rule(config.env)):
        reasons.append(f"native: {engine} steps these environments")
        vec = dataclasses.replace(vec, layout="native")
    config = dataclasses.replace(config, vec=vec)
    validate(config)  # an engine cannot do everything
    spec = build.env_spec(config, watchdog)
    build.agent(config, spec)  # before anything else starts: can one be made?
    images = sees_images(spec.observation)
    if config.runner == "async":
        actors = min(config.actors or cores, vec.num_envs)
        reasons.append(f"actors: {actors}, with {-(-vec.num_envs // actors)} environments each at most")
        vec = dataclasses.replace(vec, workers=vec.workers or 1)
        if vec.layout == "auto":
            vec = dataclasses.replace(vec, layout="serial")
        config = dataclasses.replace(config, actors=actors)
    elif vec.layout == "auto":
        most = min(cores, vec.workers or cores)
        layout, workers, reason = choose(build.one_env(config), vec.num_envs, most, vec.groups, watchdog.note)
        reasons.append(reason)
        vec = dataclasses.replace(vec, layout=layout, workers=workers)
    elif vec.workers is None:
        workers = {"serial": 1, "pool": min(cores, vec.num_envs), "native": cores}[vec.layout]
        vec = dataclasses.replace(vec, workers=workers)
    reasons += build.env_options(config)
    compiled = config.compile
    obstacle = compiler.obstacle()
    if compiled is None:
        batches = config.steps / (config.columns_per_update * config.loss.unroll_length)
        long = batches * config.loss.epochs * config.loss.minibatches >= COMPILING_PAYS_FROM
        unrolled = config.network.core in ("lstm", "gru") or sees_texts(spec.observation)
        compiled = long and not images and not unrolled and not obstacle
        against = obstacle or "the run is too short to repay it"
        if images or unrolled:
            against = "convolutions gain nothing from it" if images else "an LSTM or a GRU takes minutes to compile"
        reasons.append(
            f"update {'compiled' if compiled else 'not compiled'}: "
            + ("the run is long enough to repay it" if compiled else against)
        )
    elif compiled and obstacle:
        reasons.append(f"update not compiled: {obstacle}")
        compiled = False
    threads = config.threads
    if threads is None:
        columns = config.columns_per_update + config.replayed_columns
        rows = config.loss.unroll_length * columns // config.loss.minibatches
        threads = cores if images or rows >= THREADS_PAY_FROM else 1
        reasons.append(f"learner threads: {threads}, for gradient steps of {rows:,} {'images' if images else 'rows'}")
    config, needed = _preflight(dataclasses.replace(config, vec=vec, compile=compiled, threads=threads), spec)
    return config, [*reasons, *needed]


def _preflight(config: RunConfig, spec: EnvSpec) -> tuple[RunConfig, list[str]]:
    """The config with no more replay than fits; what it needs, in a line, and what speaks against it.

    Raises UserError where it does not fit.
    """
    machine, needs = preflight.Machine.here(), build.needs(config, spec)
    warnings = []
    if needs.replay and needs.memory > machine.memory:
        asked, takes = config.loss.replay_capacity, preflight.size_of(needs.replay)
        fitting = asked * preflight.room_for_replay(needs, machine) // needs.replay
        capacity = max(fitting, config.columns_per_update, config.replayed_columns)
        config = override(config, replay_capacity=capacity)
        needs = build.needs(config, spec)
        warnings = [
            f"--replay-capacity lowered to {capacity:,} unrolls ({preflight.size_of(needs.replay)}): {asked:,} take "
            f"{takes}, and {preflight.size_of(machine.memory)} are available to the whole run"
        ]
    return config, [preflight.describe(needs), *warnings, *preflight.check(needs, machine)]


def acting_threads(config: RunConfig, spec: EnvSpec) -> int:
    """One is best for acting on few rows, unless they are images: envs wait while those are seen."""
    return config.threads or 1 if sees_images(spec.observation) else 1


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


def _check_weights(loaded: checkpoint.Loaded, wanted: dict[str, torch.Tensor], below: str = "") -> None:
    """Raises UserError where the checkpoint lacks a tensor of those names and shapes."""
    for name, tensor in wanted.items():
        path = f"{below}/{name}" if below else name
        found = loaded.tensors.get(path)
        shapes = "absent" if found is None else list(found.shape), list(tensor.shape)
        if shapes[0] != shapes[1]:
            raise UserError(
                f"checkpoint {loaded.path} was made for another network or optimiser than config.json has: {path} is "
                f"{shapes[0]}, has to be {shapes[1]}"
            )


def _check_spec(loaded: checkpoint.Loaded, spec: EnvSpec) -> None:
    saved, now = loaded.state["spec"], spec.describe()
    for leaf in sorted(saved.keys() | now.keys()):
        if saved.get(leaf) != now.get(leaf):
            raise UserError(
                f"the checkpoint was made for another env: {leaf} was {saved.get(leaf, 'absent')}, is "
                f"{now.get(leaf, 'absent')}"
            )


def _agent_state(loaded: checkpoint.Loaded) -> dict[str, Any]:
    return tree.below(loaded.tensors, "agent")


def versions() -> dict[str, str]:
    """Of the packages that a run depends on, of Python and of the machine."""
    packages = {name: package_version(name) for name in ("pronghorn", "torch", "gymnasium", "numpy")}
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


def _write_config(run: Path, config: RunConfig) -> None:
    text = json.dumps({"config": to_json(config), "versions": versions()}, indent=2)
    replace_text(run / "config.json", text + "\n")
