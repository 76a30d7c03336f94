"""Actors in other processes, seen from the learner: the collector of the asynchronous runner.

Lag is bounded in one of two ways. In lock-step (``max_policy_lag`` 0) a batch is one unroll of every env, all begun
with the version that is being improved; whoever finishes first waits, and the run is that of a single process, bit for
bit. Otherwise batches fill in the order in which unrolls are finished, and one whose oldest row is more than
``max_policy_lag`` versions old when its batch begins is not learnt from.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Literal, NamedTuple

import numpy as np

from pronghorn.acting.actor import Actor
from pronghorn.acting.remote import Filled, Setup
from pronghorn.acting.server import InferenceServer
from pronghorn.memory.rollout import RolloutMemory
from pronghorn.processes.launch import Child, launch
from pronghorn.processes.supervise import Incident, Supervisor
from pronghorn.transport.shared import SharedWeights
from pronghorn.types import EnvSpec, Metrics, Trajectory, UserError
from pronghorn.vec.base import EnvError, Failed
from pronghorn.vec.rows import permitted

MODULE = "pronghorn.acting.remote"
CLOSE_SECONDS = 5.0
WAIT_SECONDS = 120.0
"""How long the learner waits for a batch while no actor says anything."""

ALARM = 3
"""Unrolls of one actor, one after the other, that come too late to be learnt from."""


@dataclass(frozen=True)
class ActorPlan:
    """One actor process: its envs (numbers of the run), its columns, and what makes it."""

    envs: range
    columns: range
    make: Callable[[Callable[[Incident | Failed], None]], tuple[Actor, SharedWeights]]


class _Inference:
    """Stands for those of the actors, which fetch the weights themselves."""

    mode: Literal["sample", "mode", "random"] = "sample"
    version = -1

    def load(self, state: dict[str, Any], version: int) -> None:
        """Takes note of the version that is being improved."""
        self.version = version


class _Remote:
    """Our view of one actor process."""

    def __init__(self, plan: ActorPlan, life: int, fds: Sequence[int]) -> None:
        self.plan, self.life = plan, life
        self.fds = fds
        self.unread: deque[list[int]] = deque()
        self.dropped = self.longest_running = self.stale = 0
        self.ages: list[int] = []
        self.child: Child

    def launch(self, lock_step: bool, observe: int) -> None:
        """Starts it."""
        self.child = launch(MODULE, threads=1, fds=self.fds)
        self.child.send(Setup(self.plan.make, self.life, lock_step, observe))


class _Unroll(NamedTuple):
    """A finished one of an actor, ``age`` versions old now that a batch begins."""

    remote: _Remote
    column: int
    age: int


class RemoteActors:
    """A collector over actor processes.

    Args:
        plans: of the actors; their envs follow one upon the other.
        memory: reads the shared columns; begins none itself.
        spec: of the envs.
        batch_size: columns of a batch.
        max_policy_lag: see above.
        supervisor: decides whether an actor that died is started again.
        fds: descriptors that the actors attach to.
        warn: is told of an actor whose unrolls come too late again and again.
        server: chooses their actions, if they do not themselves; number them as ``plans`` does.
    """

    def __init__(
        self,
        plans: Sequence[ActorPlan],
        memory: RolloutMemory,
        spec: EnvSpec,
        batch_size: int,
        max_policy_lag: int,
        supervisor: Supervisor,
        fds: Sequence[int],
        warn: Callable[[str], None],
        server: InferenceServer | None = None,
    ) -> None:
        self._server = server
        self.spec, self.inference = spec, _Inference()
        self._memory, self._batch_size, self._most_lag = memory, batch_size, max_policy_lag
        self._supervisor, self._warn = supervisor, warn
        self._remotes = [_Remote(plan, 0, fds) for plan in plans]
        self._ready: deque[tuple[_Remote, int]] = deque()
        self._stale = 0
        self._running = False

    @property
    def longest_running(self) -> int:
        """Steps of the longest episode that has not ended."""
        return max(remote.longest_running for remote in self._remotes)

    def start(self) -> None:
        """Starts the processes; their first unrolls are of random actions."""
        self._launch(self._to_observe)

    def collect(self, stop: Callable[[], bool] = lambda: False) -> Trajectory | None:
        """The next batch; None if ``stop`` came true first.

        Raises:
            EnvError: an actor failed beyond the budget, or none has said anything for 120 s.
        """
        heard = time.monotonic()
        while True:
            batch = self._batch()
            if batch is not None or stop():
                return batch
            if self._listen(1.0):
                heard = time.monotonic()
            elif time.monotonic() - heard > WAIT_SECONDS:
                raise EnvError(f"no actor has finished an unroll in {WAIT_SECONDS:g} s")

    def ahead(self) -> Trajectory | None:
        """The batch after the one that is learnt from next, where it is there already; never in lock-step."""
        if not self._most_lag:
            return None
        while self._listen(0.0):
            pass
        return self._batch(ahead=1)

    def _batch(self, ahead: int = 0) -> Trajectory | None:
        """A batch if there is one, not too late to be learnt from ``ahead`` versions from now."""
        chosen = self._choose(ahead)
        if chosen is None:
            return None
        for unroll in chosen:
            unroll.remote.ages.append(unroll.age)
        batch = self._memory.gather([unroll.column for unroll in chosen])
        self._give_back(chosen)
        return batch

    def metrics(self) -> Metrics:
        """Steps lost, unrolls that came too late, those that wait to be learnt from, actors whose unrolls come too late
        again and again, and the lag of each of several actors: how old its unrolls were that were learnt from since
        this was last asked."""
        waiting = len(self._ready) + sum(len(columns) for remote in self._remotes for columns in remote.unread)
        return {
            "steps/dropped": sum(remote.dropped for remote in self._remotes),
            "lag/dropped": self._stale,
            "queue/columns": waiting,
            **({"actors/stale": sum(map(_is_stale, self._remotes))} if self._most_lag else {}),
            **(self._lags() if len(self._remotes) > 1 else {}),
            **(self._server.metrics() if self._server is not None else {}),
        }

    def _lags(self) -> Metrics:
        found: Metrics = {}
        for number, remote in enumerate(self._remotes):
            if remote.ages:
                found[f"actor/{number}/lag/mean"] = float(np.mean(remote.ages))
                found[f"actor/{number}/lag/p95"] = float(np.percentile(remote.ages, 95))
                found[f"actor/{number}/lag/max"] = max(remote.ages)
            remote.ages.clear()
        return found

    def abandon(self) -> None:
        """Nothing to let go of: no episode outlives its process."""

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, numbers): actors begin new episodes, so only that none is begun twice has to be known."""
        return {}, {"life": max(remote.life for remote in self._remotes)}

    def restore(self, arrays: dict[str, Any], numbers: dict[str, Any]) -> bool:
        """Starts the processes with new episodes."""
        for remote in self._remotes:
            remote.life = int(numbers["life"]) + 1
        self._launch(observe=0)
        return False

    def close(self) -> None:
        """Ends the processes. May be called twice."""
        if not self._running:
            return
        self._running = False
        if self._server is not None:
            self._server.close()
        launched = [remote for remote in self._remotes if hasattr(remote, "child")]  # all, unless interrupted meanwhile
        for remote in launched:
            try:
                remote.child.send(None)
            except OSError:
                remote.child.kill()
        deadline = time.monotonic() + CLOSE_SECONDS
        for remote in launched:
            remote.child.end(max(0.0, deadline - time.monotonic()))
        self._memory.release()

    @property
    def _to_observe(self) -> int:
        """Random unrolls of every env that make a batch."""
        return -(-self._batch_size // sum(len(remote.plan.envs) for remote in self._remotes))

    def _launch(self, observe: int) -> None:
        self._running = True
        if self._server is not None:
            self._server.start()
        for remote in self._remotes:
            remote.launch(self._most_lag == 0, observe)

    def _choose(self, ahead: int) -> list[_Unroll] | None:
        """Those of the next batch, in env order where a batch has one of each env."""
        if self._most_lag == 0:
            if not all(remote.unread for remote in self._remotes):
                return None
            return [self._unroll(remote, column) for remote in self._remotes for column in remote.unread.popleft()]
        for remote in self._remotes:
            while remote.unread:
                self._ready.extend((remote, column) for column in remote.unread.popleft())
        while len(self._ready) >= self._batch_size:
            chosen = [self._unroll(*self._ready.popleft(), ahead) for _ in range(self._batch_size)]
            fresh = [unroll for unroll in chosen if not self._too_late(unroll)]
            if len(fresh) == self._batch_size:
                return fresh
            self._ready.extendleft((unroll.remote, unroll.column) for unroll in reversed(fresh))
        return None

    def _unroll(self, remote: _Remote, column: int, ahead: int = 0) -> _Unroll:
        return _Unroll(remote, column, self._age(column) + ahead)

    def _too_late(self, unroll: _Unroll) -> bool:
        remote = unroll.remote
        if unroll.age <= self._most_lag:
            remote.stale = 0
            return False
        remote.stale += 1
        self._stale += 1
        if remote.stale == ALARM * len(remote.plan.envs):  # once: it becomes ``_is_stale`` now
            first, last = remote.plan.envs[0], remote.plan.envs[-1]
            self._warn(
                f"the actor of envs {first} to {last} is too slow: its unrolls are more than {self._most_lag} updates "
                "old; give it fewer envs, --unroll-length fewer rows, or --max-policy-lag a larger number"
            )
        self._give_back([unroll])
        return True

    def _age(self, column: int) -> int:
        """Versions since its oldest row was acted on; 0 for the random actions that the statistics of version 0 are
        made from, whose version is -1. One that comes later grows old as any other."""
        length = int(self._memory.lengths[column])
        versions = self._memory.arrays["policy_version"][column, :length]
        valid = self._memory.arrays["valid"][column, :length]
        oldest = int(versions[valid].min()) if valid.any() else self.inference.version
        return 0 if self.inference.mode == "random" else self.inference.version - oldest

    def _give_back(self, read: list[_Unroll]) -> None:
        for remote in self._remotes:
            columns = [unroll.column for unroll in read if unroll.remote is remote]
            if columns:
                with contextlib.suppress(OSError):  # it has died, and whoever listens to it will see
                    remote.child.send(columns)

    def _listen(self, seconds: float) -> bool:
        """Whether an actor has finished something within so long."""
        if self._server is not None:
            self._server.check()
        heard = False
        by_control = {remote.child.control: remote for remote in self._remotes}
        for control in connection.wait(list(by_control), seconds):
            remote = by_control[control]  # type: ignore[index]
            try:
                message = remote.child.control.recv()
            except (EOFError, OSError):
                self._replace(remote, f"its process {remote.child.fate()}")
                continue
            heard = True
            if isinstance(message, Filled):
                remote.unread.append(message.columns)
                remote.dropped, remote.longest_running = message.dropped, message.longest_running
            elif isinstance(message, Incident):
                self._supervisor.report(message)
            elif isinstance(message, Failed):
                if message.mistake:
                    raise UserError(message.text)
                self._replace(remote, message.text)
        return heard

    def _replace(self, remote: _Remote, cause: str) -> None:
        """Starts an actor that has died anew, as far as the supervisor permits; its columns are free again."""
        envs = remote.plan.envs
        who = f"the actor of envs {envs[0]} to {envs[-1]}: {cause}"
        time.sleep(permitted(self._supervisor, Incident(-1, "", who, tuple(envs))))
        remote.child.end(0.0)
        if self._server is not None:
            self._server.forget(self._remotes.index(remote))
        remote.unread.clear()
        self._ready = deque(item for item in self._ready if item[0] is not remote)
        remote.life += 1
        remote.launch(self._most_lag == 0, self._to_observe if self.inference.mode == "random" else 0)


def _is_stale(remote: _Remote) -> bool:
    """Whether the newest unrolls of all its envs have come too late, several times over."""
    return remote.stale >= ALARM * len(remote.plan.envs)
