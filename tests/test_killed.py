"""Runs that are killed at any moment go on from their newest checkpoint and end as if nothing had happened."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path

import pytest
from forked import Command, flags
from test_api import assert_equal_runs

from pronghorn import checkpoint

TINY = flags(layout="serial", threads=1, compile="false", num_envs=5, unroll_length=7, layers=8, seed=3)
OFTEN = flags(evaluation_episodes=2, evaluate_every=200, checkpoint_every=1)
STEPS = 1400
"""Forty updates."""

COUNTING = "pronghorn.envs.probes:CountingEnv"
KINDS = {
    "ppo": flags(epochs=2, minibatches=2),
    "batchppo": flags(algorithm="batchppo", episodes_per_update=4),
    "impala": flags(algorithm="impala"),
    "memory": [*flags(core="lstm", core_size=6), "--last-action-and-reward"],
}


def train(run: Path, *options: str) -> list[str]:
    return ["train", COUNTING, *TINY, *OFTEN, *flags(run=run), "--quiet", *options]


def go_on(run: Path, fresh: list[str], output: Path) -> Command:
    return Command(["resume", str(run), "--quiet"] if (run / "config.json").exists() else fresh, output)


def kill_again_and_again(run: Path, fresh: list[str], kills: int, longest: float) -> list[int]:
    """The steps of the newest checkpoints after each kill, at a random moment of the first ``longest`` seconds."""
    moments, steps = random.Random(0), [-1]
    while len(steps) <= kills:
        command = go_on(run, fresh, run.with_suffix(f".{len(steps)}.txt"))
        time.sleep(moments.uniform(0, longest))
        command.kill()
        assert command.ended() == -9, command.said()  # so it was still at it
        if not checkpoint.exists(run):
            steps.append(-1)
            continue
        loaded = checkpoint.load_latest(run)
        assert loaded.skipped == [] and loaded.step >= steps[-1]
        steps.append(loaded.step)
    return steps[1:]


def assert_logged_once(run: Path) -> None:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [record["step"] for record in records if "steps_per_second" in record]
    evaluated = [record["step"] for record in records if "eval/episodes" in record]
    assert trained and evaluated
    for steps in (trained, evaluated):
        assert steps == sorted(set(steps))


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_it_ends_as_if_it_had_run_on(kind, tmp_path):
    options = [*KINDS[kind], *flags(steps=STEPS)]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert Command(train(straight, *options), tmp_path / "straight.txt").ended() == 0
    steps = kill_again_and_again(killed, train(killed, *options), 2, 1.0)
    assert steps[-1] < STEPS
    assert go_on(killed, train(killed, *options), tmp_path / "end.txt").ended() == 0
    assert_equal_runs(straight, killed)
    assert_logged_once(killed)
    assert checkpoint.load_latest(straight).state["run"]["learner"]["version"] >= 20


def test_in_lock_step_two_copies_of_a_killed_run_of_actors_end_alike(tmp_path):
    """Their envs begin new episodes, the same in both."""
    killed = tmp_path / "killed"
    options = flags(runner="async", actors=2, max_policy_lag=0, steps=STEPS)
    kill_again_and_again(killed, train(killed, *options), 2, 1.5)
    copies = [Path(shutil.copytree(killed, tmp_path / name)) for name in ("one", "other")]
    for copy in copies:
        assert go_on(copy, train(copy, *options), copy.with_suffix(".txt")).ended() == 0
        assert_logged_once(copy)
    assert_equal_runs(*copies)


@pytest.mark.parametrize(
    ("kills", "steps"), [(8, 20_000), pytest.param(50, 200_000, marks=pytest.mark.learning)], ids=["8", "50"]
)
def test_many_kills_during_constant_checkpointing(kills, steps, tmp_path):
    killed = tmp_path / "killed"
    options = [*KINDS["ppo"], *flags(steps=steps)]
    found = kill_again_and_again(killed, train(killed, *options), kills, 1.2)
    assert len(set(found)) > kills // 3 and found[-1] < steps  # most of them in the middle of training
    if kills == 50:
        print(f"newest checkpoints after the kills: {found}")
    more = str(found[-1] + 500)
    assert Command(["resume", str(killed), "--steps", more], tmp_path / "end.txt").ended() == 0
    assert_logged_once(killed)
