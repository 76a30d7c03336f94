"""Runs that are killed at any moment go on from their newest checkpoint and end as if nothing had happened."""

from __future__ import annotations

import json
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Command, flags, wait_for
from test_api import assert_equal_runs

from pronghorn import checkpoint

TINY = flags(layout="serial", threads=1, compile="false", num_envs=5, unroll_length=7, layers=8, seed=3)
OFTEN = flags(evaluation_episodes=2, evaluate_every=200, checkpoint_every=1)
STEPS = 720
"""Twenty updates."""

COUNTING = "pronghorn.envs.probes:CountingEnv"
KINDS = {
    "ppo": flags(epochs=2, minibatches=2),
    "batchppo": flags(algorithm="batchppo", episodes_per_update=4),
    "impala": flags(algorithm="impala"),
    "memory": [*flags(core="lstm", core_size=6, epochs=1, minibatches=1), "--last-action-and-reward"],
}


def train(run: Path, *options: str) -> list[str]:
    return ["train", COUNTING, *TINY, *OFTEN, *flags(run=run), "--quiet", *options]


def go_on(run: Path, fresh: list[str], output: Path) -> Command:
    return Command(["resume", str(run), "--quiet"] if (run / "config.json").exists() else fresh, output)


def kill_again_and_again(run: Path, fresh: list[str], kills: int) -> list[int]:
    """The steps of the newest checkpoints after each kill. Of many the first and every fifth come while it starts,
    the others within some milliseconds of a checkpoint, of which there are many a second."""
    moments, steps = random.Random(0), []
    while len(steps) < kills:
        command = go_on(run, fresh, run.with_suffix(f".{len(steps)}.txt"))
        if kills == 1 or len(steps) % 5:
            for _ in range(moments.randrange(1, 4)):
                newest = newest_of(run)
                wait_for(lambda newest=newest: newest_of(run) != newest)
            time.sleep(moments.uniform(0, 0.03))
        else:
            time.sleep(moments.uniform(0, 0.6))
        command.kill()
        assert command.ended() == -signal.SIGKILL, command.said()  # so it was still at it
        if checkpoint.exists(run):
            loaded = checkpoint.load_latest(run)
            assert loaded.skipped == [] and loaded.step >= max(steps, default=0)
            steps.append(loaded.step)
        else:
            steps.append(0)
    return steps


def newest_of(run: Path) -> str:
    return max((path.name for path in (run / "checkpoints").glob("step_*")), default="")


def assert_logged_once(run: Path) -> None:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [record["step"] for record in records if "steps_per_second" in record]
    evaluated = [record["step"] for record in records if "eval/episodes" in record]
    assert trained and evaluated
    for steps in (trained, evaluated):
        assert steps == sorted(set(steps))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory if there is one: what a kill may spoil is no question of disks, which may be slow."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_it_ends_as_if_it_had_run_on(kind, place):
    options = [*KINDS[kind], *flags(steps=STEPS)]
    straight, killed = place / "straight", place / "killed"
    assert Command(train(straight, *options), place / "straight.txt").ended() == 0
    steps = kill_again_and_again(killed, train(killed, *options), 1)
    assert 0 < steps[-1] < STEPS
    assert go_on(killed, train(killed, *options), place / "end.txt").ended() == 0
    assert_equal_runs(straight, killed)
    assert_logged_once(killed)
    assert checkpoint.load_latest(straight).state["run"]["learner"]["version"] >= 20


def test_in_lock_step_two_copies_of_a_killed_run_of_actors_end_alike(place):
    """Their envs begin new episodes, the same in both."""
    killed = place / "killed"
    options = flags(runner="async", actors=2, max_policy_lag=0, epochs=1, minibatches=1, steps=STEPS)
    kill_again_and_again(killed, train(killed, *options), 1)
    copies = [Path(shutil.copytree(killed, place / name)) for name in ("one", "other")]
    for copy in copies:
        assert go_on(copy, train(copy, *options), copy.with_suffix(".txt")).ended() == 0
        assert_logged_once(copy)
    assert_equal_runs(*copies)


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.learning)])
def test_many_kills_during_constant_checkpointing(kills, place):
    killed = place / "killed"
    steps = kill_again_and_again(killed, train(killed, *KINDS["ppo"], *flags(steps="100k")), kills)
    assert len(set(steps)) > kills // 2
    more = steps[-1] + 300
    assert Command(["resume", str(killed), "--steps", str(more)], place / "end.txt").ended() == 0
    assert_logged_once(killed)
    assert checkpoint.load_latest(killed).step >= more
    print(f"newest checkpoints after {kills} kills: {steps}")
