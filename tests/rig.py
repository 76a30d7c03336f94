"""Small runs to try the upper half of the system on: configurations, their parts, and what a counting env must show."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from pronghorn import build
from pronghorn.acting.actor import Actor
from pronghorn.config import CALLBACKS, IMAGE_ENCODERS, LOSSES, SINKS, PPOConfig, RunConfig, override, validate
from pronghorn.envs.gymnasium import FAMILIES
from pronghorn.envs.probes import CountingEnv, MaskedBanditEnv
from pronghorn.learning.learner import Learner
from pronghorn.networks import encoders
from pronghorn.processes.signals import StopRequest
from pronghorn.seeding import Domain, episode_seed
from pronghorn.telemetry import callbacks, sinks
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.types import Leaf

LENGTHS = (3, 5, 1, 7, 4)


def children() -> list[int]:
    """Processes of ours, without those that serve the tests themselves: a server that forks, and its tracker."""
    servants = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in map(int, found) if pid not in servants]


def config(env: str = "CountingEnv", algorithm: Any = "ppo", **options: Any) -> RunConfig:
    """A tiny run on one of our probes (or any env, if its name has a colon)."""
    small = {
        "seed": 3,
        "steps": 1000,
        "layout": "serial",
        "workers": 1,
        "threads": 1,
        "compile": False,
        "num_envs": 5,
        "unroll_length": 7,
        "layers": (8,),
        **({"epochs": 2, "minibatches": 2} if LOSSES[algorithm] is PPOConfig else {}),
    }
    name = env if ":" in env else f"pronghorn.envs.probes:{env}"
    base = RunConfig(env=name, algorithm=algorithm, loss=LOSSES[algorithm]())
    made = override(base, **{**small, **options})
    validate(made)
    return made


@contextmanager
def parts(made: RunConfig) -> Iterator[tuple[Actor, Learner]]:
    """Actor (started) and learner with equal weights."""
    with closing(build.vec(made, Domain.TRAINING_ENV)) as envs:
        actor, learner = build.actor(made, envs, PhaseTimers()), build.learner(made, envs.spec)
        hand_over(learner, actor)
        actor.start()
        yield actor, learner


def hand_over(learner: Learner, actor: Actor) -> None:
    """The newest weights."""
    actor.inference.load(learner.weights(), learner.version)


class Oracle:
    """What env ``env`` of a counting run shows, computed from its actions alone.

    ``crashes`` holds the numbers of the calls (from 0) that are answered by a restart instead of a step.
    """

    def __init__(
        self, run_seed: int, env: int, crashes: tuple[int, ...] = (), lengths: Any = LENGTHS, life: int = 0
    ) -> None:
        self._stream = run_seed, Domain.TRAINING_ENV, env
        self._crashes, self._lengths, self._life = crashes, lengths, life
        self.calls, self.episode = 0, -1
        self._begin()

    def act(self, action: int) -> dict[str, Any]:
        """The outcome of an action: fields of the row, by name."""
        call, self.calls = self.calls, self.calls + 1
        if self.over or call in self._crashes:
            self._begin()
            return self._outcome(False, 0.0, False, False)
        self.observation, reward, terminated, truncated, info = self._env.step(action)
        self.first, self.over = False, (terminated or truncated) and info.get("episode_over", True)
        self.steps += 1
        self._return += reward
        return self._outcome(True, reward, terminated, truncated)

    def _begin(self) -> None:
        self.episode += 1
        self._env = CountingEnv(self._lengths, life=self._life)
        self.observation, _ = self._env.reset(seed=episode_seed(*self._stream, self.episode))
        self.first, self.over, self.steps, self._return = True, False, 0, 0.0

    def _outcome(self, valid: bool, reward: float, terminated: bool, truncated: bool) -> dict[str, Any]:
        return {
            "valid": valid,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "episode_return": self._return if self.over else 0.0,
            "episode_length": self.steps if self.over else 0,
        }


def check_row(batch: Any, column: int, row: int, oracle: Oracle) -> None:
    """Row ``row`` of a column is what the oracle says, which moves on by the row's action."""
    assert np.array_equal(batch.observation[row, column], oracle.observation)
    assert batch.first[row, column] == oracle.first
    for name, expected in oracle.act(int(batch.action[row, column])).items():
        assert getattr(batch, name)[row, column] == expected, (name, row, column)


def check_carried(batch: Any, column: int, oracle: Oracle, last: tuple[int, float]) -> None:
    """What was carried into row 0: as many steps as the episode has, the last action and reward; 0 at its start."""
    assert batch.core_state[column] == oracle.steps
    wanted = (0, 0.0) if oracle.first else last
    assert (batch.last_action[column], batch.last_reward[column]) == wanted


class UnseedableEnv(CountingEnv):
    """Takes no seed, and says so."""

    def __init__(self, lengths: Any = LENGTHS) -> None:
        super().__init__(lengths)
        self.spec = dataclasses.replace(self.spec, seedable=False)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The episode after the last one."""
        return super().reset()


class ForgetfulEnv(UnseedableEnv):
    """Takes no seed, but says that it does."""

    def __init__(self, lengths: Any = LENGTHS) -> None:
        super().__init__(lengths)
        self.spec = dataclasses.replace(self.spec, seedable=True)


class CameraBanditEnv(MaskedBanditEnv):
    """Shows its arms in an image, a vector and a mask; the brightest column of pixels is the legal arm to choose."""

    def __init__(self) -> None:
        super().__init__(arms=5, legal=2, length=3)
        sides = 20, 25, 3
        image = Leaf("box", sides, np.dtype(np.uint8), low=np.zeros(sides), high=np.full(sides, 255.0))
        self.spec = dataclasses.replace(self.spec, observation={**self.spec.observation, "camera": image})

    def _draw(self) -> Any:
        drawn = super()._draw()
        columns = 155 * np.repeat(drawn["context"], 5).astype(np.uint8)
        noise = self._random.integers(0, 100, (20, 25, 3), np.uint8)
        return {**drawn, "camera": noise + columns[None, :, None], "context": 0 * drawn["context"]}


class MixedEnv(CountingEnv):
    """A counting env with two actions at once: the one that counts, and a direction that does nothing."""

    def __init__(self) -> None:
        super().__init__(LENGTHS)
        direction = Leaf("box", (2,), np.dtype(np.float32), low=np.full(2, -1.0), high=np.full(2, 1.0))
        self.spec = dataclasses.replace(self.spec, action={"count": self.spec.action, "direction": direction})

    def step(self, action: Any) -> Any:
        """Counts."""
        return super().step(action["count"])


class SignallingEnv(CountingEnv):
    """Interrupts its process in step ``at`` of its life, if there is a file ``marker``, which it removes."""

    def __init__(self, marker: str, at: int, lengths: Any = LENGTHS) -> None:
        super().__init__(lengths)
        self._marker, self._left = Path(marker), at

    def step(self, action: Any) -> Any:
        """Counts."""
        self._left -= 1
        if not self._left and self._marker.exists():
            self._marker.unlink()
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


class StopAfter(StopRequest):
    """Asked often whether to stop, says yes from the ``calls``-th time on."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def __call__(self) -> bool:
        self.calls -= 1
        if self.calls < 0:
            self.requested = signal.SIGINT
        return super().__call__()


def memory_files() -> list[str]:
    """What this process has open of anonymous shared memory, one entry a descriptor."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed, as is the one that lists
            links.append(str(entry.readlink()))
    return [link for link in links if "memfd" in link]


def wait_for(path: Path) -> None:
    """Until the file is there, ten seconds at most."""
    deadline = time.monotonic() + 10
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@contextmanager
def parts_forgotten() -> Iterator[None]:
    """What is registered within, and modules imported, are gone afterwards."""
    tables: tuple[dict[str, Any], ...] = (
        FAMILIES,
        LOSSES,
        build.ALGORITHMS,
        encoders._OWN,
        sinks._MAKERS,
        callbacks._MAKERS,
        sys.modules,
    )
    lists = (IMAGE_ENCODERS, SINKS, CALLBACKS, sys.path)
    kept, names = [dict(table) for table in tables], [list(part) for part in lists]
    try:
        yield
    finally:
        for table, before in zip(tables, kept, strict=True):
            for key in table.keys() - before.keys():
                del table[key]
        for part, values in zip(lists, names, strict=True):
            part[:] = values


def lasting(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without times, and without the check that every process makes once."""
    left_out = ("seconds", "steps_per_second", "time/", "check/")
    return [{key: value for key, value in record.items() if not key.startswith(left_out)} for record in records]
