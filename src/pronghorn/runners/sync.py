"""Collect, learn, repeat: acting and learning in turn, evaluation and checkpoints between updates.

The loop receives its parts ready made and names no algorithm, network or env.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np

from pronghorn import tree
from pronghorn.evaluation import Evaluation, Evaluator
from pronghorn.learning.learner import Learner
from pronghorn.learning.staging import Staged
from pronghorn.processes.signals import StopRequest
from pronghorn.telemetry.episodes import EpisodeStatistics
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.transport.base import WeightsIn, WeightsOut
from pronghorn.types import EnvSpec, Metrics, Trajectory

EVALUATION_SHARE = 0.1
"""Evaluation takes at most this share of the training steps, unless the config says how often."""

CHECKPOINT_SECONDS = 600.0
"""A checkpoint is never older than this, however slow the env."""

REPORTS = 1000
"""At most this many reports a run."""


@dataclass
class Counters:
    """How far a run has come. ``step``: valid fresh rows that entered an update, or the statistics of version 0."""

    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    evaluated_at: int = -1
    evaluation_steps: int = 0
    evaluation_length: float = 0.0
    reported_at: int = 0
    saved_at: int = -1


class Report(Protocol):
    """Where the runner tells what happens."""

    def record(self, record: Metrics, longest_running: int) -> None:
        """One object of ``metrics.jsonl``."""

    def event(self, event: str, step: int, **details: Any) -> None:
        """One line of ``events.jsonl``."""


class Weights(WeightsOut, WeightsIn, Protocol):
    """Both ends."""


class Acting(Protocol):
    """What the runner tells whoever acts: an ``Inference``, or a stand-in for those of other processes."""

    mode: Literal["sample", "mode", "random"]
    version: int

    def load(self, state: dict[str, Any], version: int) -> None:
        """These weights are the newest."""


class Collector(Protocol):
    """Whoever collects: an ``Actor`` in this process, or many in others (``RemoteActors``)."""

    @property
    def inference(self) -> Acting:
        """Where to the newest weights go."""

    @property
    def spec(self) -> EnvSpec:
        """Of the envs."""

    @property
    def longest_running(self) -> int:
        """Steps of the longest episode that has not ended."""

    def start(self) -> None:
        """Begins the first episodes."""

    def collect(self, stop: Callable[[], bool]) -> Trajectory | None:
        """The next batch; None if ``stop`` came true first."""

    def ahead(self) -> Trajectory | None:
        """The batch after the one that is learnt from next, where it is there already."""

    def metrics(self) -> Metrics:
        """What a report says of acting."""

    def abandon(self) -> None:
        """Lets go of the envs for good."""

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, numbers) for a checkpoint."""

    def restore(self, arrays: dict[str, Any], numbers: dict[str, Any]) -> bool:
        """Goes on from a checkpoint; whether the envs stand where they stood."""


class SyncRunner:
    """Args:
    actor, learner, weights, evaluator: the parts.
    report: takes metrics and events.
    save: writes a checkpoint of (step, tensors, state).
    steps: where training ends.
    evaluate_every, checkpoint_every: in steps; evaluation None means as often as its share of the steps allows.
    frames_per_step: the env's action repeat.
    force_lag: updates that the weights are old which the actor is given; after ``restore`` this grows anew from 0.
    """

    def __init__(
        self,
        *,
        actor: Collector,
        learner: Learner,
        weights: Weights,
        evaluator: Evaluator,
        report: Report,
        save: Callable[[int, dict[str, Any], dict[str, Any]], object],
        timers: PhaseTimers,
        steps: int,
        evaluate_every: int | None,
        checkpoint_every: int,
        frames_per_step: int = 1,
        force_lag: int = 0,
    ) -> None:
        self.actor, self.learner, self.weights, self.evaluator = actor, learner, weights, evaluator
        self.counters = Counters()
        self.episodes = EpisodeStatistics()
        self.last_evaluation: Evaluation | None = None
        self._report, self._save, self._timers = report, save, timers
        self._steps, self._evaluate_every, self._checkpoint_every = steps, evaluate_every, checkpoint_every
        self._frames_per_step = frames_per_step
        self._recent: deque[tuple[dict[str, Any], int]] = deque(maxlen=1 + force_lag)
        self._ahead: tuple[Trajectory, Staged] | None = None
        self._clock = time.perf_counter()
        self._mark = 0, 0.0
        self._saved_at = self._clock

    def start(self) -> None:
        """Begins a run."""
        self._publish()
        self.actor.start()

    def run(self, stop: StopRequest) -> None:
        """Trains until the steps are done or ``stop``; either way the end is saved."""
        counters = self.counters
        self._clock = time.perf_counter() - counters.seconds
        self._mark = counters.step, counters.seconds
        self._timers.reset()
        if not counters.step:
            self._observe(stop)
        while counters.step < self._steps and not stop():
            if self._evaluation_due() and not self._evaluate(stop):
                break
            # After the evaluation, so that a checkpoint never lies between an update and its evaluation.
            if self._checkpoint_due():
                self.checkpoint()
            taken = self._take(stop)
            if taken is None:
                break
            batch, staged = taken
            done = counters.step / self._steps
            self._count(batch)
            due = counters.step - counters.reported_at >= self._steps / REPORTS or counters.step >= self._steps
            with self._timers("learn"):
                metrics = self.learner.update(staged, done, diagnose=due)
            counters.updates += 1
            with self._timers("publish"):
                self._publish()
            if due:
                self._record(metrics, batch)
        if counters.step >= self._steps and not stop() and counters.evaluated_at < counters.step:
            self._evaluate(stop)
        self.checkpoint()

    def _take(self, stop: StopRequest) -> tuple[Trajectory, Staged] | None:
        """The next batch, here and on the learner's device; one that is ready is copied there while it is learnt from.

        Where nothing has to be copied a batch taken early would only be older.
        """
        taken = self._ahead or self._staged(self.actor.collect(stop))
        self._ahead = self._staged(self.actor.ahead()) if self.learner.staging.copies else None
        return taken

    def _staged(self, batch: Trajectory | None) -> tuple[Trajectory, Staged] | None:
        return None if batch is None else (batch, self.learner.staging.begin(batch))

    def _checkpoint_due(self) -> bool:
        every, counters = self._checkpoint_every, self.counters
        if counters.step // every > max(counters.saved_at, 0) // every:
            return True
        return time.perf_counter() - self._saved_at > CHECKPOINT_SECONDS

    def checkpoint(self) -> None:
        """Saves everything that decides how the run goes on."""
        counters = self.counters
        counters.seconds = time.perf_counter() - self._clock
        counters.saved_at = counters.step
        tensors, learner_state = self.learner.state()
        arrays, actor_state = self.actor.state()
        state = {
            "learner": learner_state,
            "actor": actor_state,
            "counters": asdict(counters),
            "episodes": self.episodes.state(),
        }
        self._save(counters.step, {**tensors, **{f"actor/{name}": array for name, array in arrays.items()}}, state)
        self._saved_at = time.perf_counter()
        self._report.event("checkpoint", counters.step)

    def abandon(self) -> None:
        """Saves what was learnt where the envs cannot go on: what they were at is dropped, and they begin anew."""
        self.actor.abandon()
        self.checkpoint()

    def restore(self, tensors: dict[str, Any], state: dict[str, Any]) -> bool:
        """Continues from a checkpoint. Returns whether the envs stand where they stood."""
        self.counters = Counters(**state["counters"])
        self.episodes.restore(state["episodes"])
        self.learner.restore(tensors, state["learner"])
        self._publish()
        return self.actor.restore(tree.below(tensors, "actor"), state["actor"])

    def _observe(self, stop: StopRequest) -> None:
        """The statistics of version 0 come from one batch of random actions, counted as steps."""
        inference = self.actor.inference
        inference.mode, inference.version = "random", -1  # rows that no version has chosen
        batch = self.actor.collect(stop)
        inference.mode = "sample"
        if batch is not None:
            self.learner.observe(batch)
            self._count(batch)
            self._recent.clear()  # the weights of version 0 without statistics
            self._publish()

    def _publish(self) -> None:
        self._recent.append((self.learner.weights(), self.learner.version))
        self.weights.publish(*self._recent[0])
        self.actor.inference.load(*self.weights.fetch())

    def _count(self, batch: Trajectory) -> None:
        self.counters.step += int(np.sum(batch.fresh))
        rows, columns = np.nonzero(batch.episode_length * ~batch.replayed)
        self.episodes.add(batch.episode_return[rows, columns], batch.episode_length[rows, columns], batch.task[columns])

    def _record(self, metrics: Metrics, batch: Trajectory) -> None:
        counters = self.counters
        seconds = time.perf_counter() - self._clock
        elapsed, steps = seconds - self._mark[1], counters.step - self._mark[0]
        shares = self._timers.shares(elapsed)
        ages, stale = self.learner.version - 1 - batch.policy_version, batch.valid & batch.replayed
        lags = ages[batch.fresh]
        self._timers.reset()
        self._mark = counters.step, seconds
        counters.reported_at = counters.step
        self._report.record(
            {
                **self._progress(),
                "steps_per_second": steps / elapsed,
                **self.actor.metrics(),
                "lag/mean": float(np.mean(lags)),
                "lag/p95": float(np.percentile(lags, 95)),
                "lag/max": int(np.max(lags)),
                **({"replay/age": float(np.mean(ages[stale]))} if stale.any() else {}),
                **self.episodes.report(),
                **metrics,
                **shares,
                "time/wait": max(0.0, 1.0 - sum(shares.values())),
            },
            self.actor.longest_running,
        )

    def _progress(self) -> Metrics:
        counters = self.counters
        return {
            "step": counters.step,
            "frames": counters.step * self._frames_per_step,
            "seconds": time.perf_counter() - self._clock,
            "updates": counters.updates,
        }

    def _evaluation_due(self) -> bool:
        counters = self.counters
        if counters.step <= counters.evaluated_at:
            return False
        if self._evaluate_every is not None:
            return counters.step // self._evaluate_every > max(counters.evaluated_at, 0) // self._evaluate_every
        # The end is always evaluated, so one evaluation is set aside for it.
        length = self._episode_length()
        if not length:
            return False
        each = length * self.evaluator.episodes
        spent = counters.evaluation_steps + each
        return spent <= EVALUATION_SHARE * counters.step and spent + each <= EVALUATION_SHARE * self._steps

    def _episode_length(self) -> float:
        """What an evaluation episode is likely to take; 0 where none has ended yet."""
        return self.counters.evaluation_length or self.episodes.report().get("length/mean", 0.0)

    def _most_evaluation_steps(self) -> float:
        """Where the env sets no limit: evaluation's whole share, or a good deal more than is likely to be needed."""
        if self.actor.spec.max_episode_steps is not None:
            return math.inf
        return max(EVALUATION_SHARE * self._steps, 4 * self._episode_length() * self.evaluator.episodes)

    def _evaluate(self, stop: StopRequest) -> bool:
        """Returns False where ``stop`` came first."""
        with self._timers("evaluation"):
            evaluation = self.evaluator.run(stop, self._most_evaluation_steps())
        if evaluation is None:
            return False
        counters = self.counters
        self.last_evaluation = evaluation
        counters.evaluated_at = counters.step
        counters.evaluation_steps += evaluation.steps
        counters.evaluation_length = evaluation.steps / self.evaluator.episodes
        if evaluation.capped:
            self._report.event("warning", counters.step, message=f"{evaluation.capped} evaluation episodes capped")
        found = evaluation.report()
        named = {"return_mean": "eval/return", "return_std": "eval/return_std", "episodes": "eval/episodes"}
        self._report.record(
            {
                **self._progress(),
                **self.episodes.report(),
                **{key: found[name] for name, key in named.items() if name in found},
            },
            self.actor.longest_running,
        )
        return True
