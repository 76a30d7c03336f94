"""Actors in processes of their own: nothing lost, nothing mixed, as old as allowed, and mended."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import rig
from acting.test_actor_engines import Rows
from safetensors.numpy import load_file

from pronghorn import api, build
from pronghorn.processes.supervise import Supervisor
from pronghorn.transport.shared import SharedWeights, weights_layout
from pronghorn.types import Trajectory


def asynchronous(env="CountingEnv", **options):
    return rig.config(env, **{"runner": "async", "actors": 2, **options})


@contextmanager
def remote(made, warnings=None):
    """Started actors with the learner whose weights they use."""
    spec = build.env_spec(made)
    learner = build.learner(made, spec)
    weights = SharedWeights(weights_layout(learner.weights()))
    warn = (lambda text: None) if warnings is None else warnings.append
    actors, close = build.remote_actors(made, spec, weights, Supervisor(), warn)
    try:
        publish(weights, actors, learner)
        actors.start()
        yield actors, learner, weights
    finally:
        close()
        weights.close()


def publish(weights, actors, learner, version=None):
    number = learner.version if version is None else version
    weights.publish(learner.weights(), number)
    actors.inference.load(learner.weights(), number)


def equal(one: Trajectory, other: Trajectory) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(flat(one), flat(other), strict=True))


def flat(batch):
    arrays = []
    batch.map(lambda array: arrays.append(array) or array)
    return arrays


def test_in_lock_step_batches_are_those_of_one_process():
    # Four envs each at least: a forward pass of fewer rows may take another kernel, whose last bits differ.
    made = asynchronous(core="counting", max_policy_lag=0, num_envs=8)
    alone = rig.config(core="counting", num_envs=8)
    found, wanted = [], []
    with remote(made) as (actors, learner, weights):
        for version in range(5):
            found.append(actors.collect())
            publish(weights, actors, learner, version)
    with rig.parts(alone) as (actor, learner):
        actor.inference.mode, actor.inference.version = "random", -1
        for version in range(5):
            wanted.append(actor.collect())
            actor.inference.mode = "sample"
            actor.inference.load(learner.weights(), version)
    assert all(equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("batch_size", [None, 3, 7])
def test_no_row_is_lost_or_told_twice_and_the_lag_of_every_actor_is_told_once(batch_size):
    made = asynchronous(max_policy_lag=1000, batch_size=batch_size)
    rows, ages = [Rows() for _ in range(5)], {0: [], 1: []}
    with remote(made) as (actors, learner, weights):
        for version in range(1000):
            if version >= 25 and all(ages.values()):  # on a busy machine one actor may begin much later than the other
                break
            batch = actors.collect()
            assert len(batch.env) == (batch_size or 5)
            for column, env in enumerate(batch.env.tolist()):
                rows[env].add(batch, column, 7)
                (chosen,) = set(batch.policy_version[:, column].tolist())  # from the beginning of an unroll to its end
                ages[int(env >= 3)].append(max(0, version - 1) - chosen)
            publish(weights, actors, learner, version)
        metrics = actors.metrics()
        assert not any(name.startswith("actor/") for name in actors.metrics())
    assert sum(row.ends for row in rows) > 20
    assert sum(map(sum, ages.values())) > 0
    for number, found in ages.items():
        assert metrics[f"actor/{number}/lag/max"] == max(found)
        assert metrics[f"actor/{number}/lag/mean"] == pytest.approx(np.mean(found))
        assert metrics[f"actor/{number}/lag/p95"] == pytest.approx(np.percentile(found, 95))


def test_a_batch_taken_ahead_is_as_old_as_it_will_be_when_it_is_learnt_from():
    made = asynchronous(max_policy_lag=2)
    rows = [Rows() for _ in range(5)]
    taken = 0
    with remote(made) as (actors, learner, weights):
        for version in range(1000):
            if taken > 5 and sum(row.ends for row in rows) > 5:
                break
            batches = [actors.collect(), actors.ahead()]
            for until, batch in enumerate(batches):
                if batch is None:
                    continue
                assert (version + until - batch.policy_version[batch.valid] <= 2).all()
                taken += until
                for column, env in enumerate(batch.env.tolist()):
                    if not actors.metrics()["lag/dropped"]:  # until something was left out, nothing is missing
                        rows[env].add(batch, column, 7)
            time.sleep(0.02)
            publish(weights, actors, learner, version + 1)
    assert taken > 5 and sum(row.ends for row in rows) > 5


def test_in_lock_step_nothing_is_taken_ahead():
    with remote(asynchronous(max_policy_lag=0)) as (actors, _learner, _weights):
        actors.collect()
        time.sleep(0.5)
        assert actors.ahead() is None


def test_what_is_too_old_is_not_learnt_from_and_alarms():
    warnings = []
    made = asynchronous(max_policy_lag=2)
    stale = []
    with remote(made, warnings) as (actors, learner, weights):
        actors.collect()
        assert actors.metrics()["actors/stale"] == 0
        for version in range(0, 50, 5):
            publish(weights, actors, learner, version)
            time.sleep(0.2)  # they fill what they have, and then
            publish(weights, actors, learner, version + 3)
            asked = iter((False, True))
            batch = actors.collect(lambda asked=asked: next(asked, True))
            assert batch is None or (batch.policy_version[batch.valid] >= version + 1).all()
            stale.append(actors.metrics()["actors/stale"])
        assert actors.metrics()["lag/dropped"] > 20 and 1 <= max(stale) <= 2
        for _ in range(20):  # with unchanging weights nothing comes too late
            actors.collect()
        assert actors.metrics()["actors/stale"] == 0
    assert any("is too slow: its unrolls are more than 2 updates old" in text for text in warnings)


@pytest.mark.parametrize("options", [{"max_policy_lag": 0}, {"max_policy_lag": 3}])
def test_a_killed_actor_is_replaced(options, tmp_path):
    before = rig.memory_files()
    made = asynchronous(steps=6000, run=str(tmp_path / "run"), **options)

    def kill() -> None:
        for _ in range(2):
            time.sleep(2.0)
            for pid in rig.children()[:1]:
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    result = api.train(made, quiet=True)
    thread.join()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    restarts = [event for event in events if event["event"] == "restart"]
    assert result.exit_code == 0 and events[-1]["event"] == "stop"
    assert restarts and "signal 9" in restarts[0]["cause"] and len(restarts[0]["lost"]) in (2, 3)
    assert not rig.children() and rig.memory_files() == before


def weights_of(run: Path):
    newest = max((run / "checkpoints").glob("step_*"))
    arrays = {}
    for path in newest.glob("*.safetensors"):
        arrays |= load_file(path)
    return {name: array for name, array in arrays.items() if not name.startswith("actor/")}


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_in_lock_step_a_run_is_that_of_the_sync_runner(algorithm, tmp_path):
    options = {"algorithm": algorithm, "steps": 600}
    records = []
    for name, made in (
        ("async", asynchronous(max_policy_lag=0, run=str(tmp_path / "async"), **options)),
        ("sync", rig.config("CountingEnv", run=str(tmp_path / "sync"), **options)),
    ):
        assert api.train(made, quiet=True).exit_code == 0
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        own = ("queue/", "lag/dropped", "actor/")
        records.append(
            [
                {key: value for key, value in record.items() if not key.startswith(own)}
                for record in rig.lasting(map(json.loads, lines))
            ]
        )
    one, other = weights_of(tmp_path / "async"), weights_of(tmp_path / "sync")
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    assert records[0] == records[1]


def test_resume_begins_new_episodes_and_shares_no_noise(tmp_path):
    made = asynchronous(steps=400, run=str(tmp_path / "run"))
    assert api.train(made, quiet=True).exit_code == 0
    result = api.resume(tmp_path / "run", steps=800, quiet=True)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert result.exit_code == 0
    assert any(event.get("envs") == "envs began new episodes" for event in events)
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] >= 800


@pytest.mark.parametrize(("fault", "words"), [("raise", "out of order"), ("hang", "gave no answer for 2 s in step")])
def test_an_env_that_fails_in_an_actor_is_named_and_mended(fault, words, tmp_path):
    arguments = {"fault": fault, "phase": "step", "at": 20, "lengths": [9], "once": str(tmp_path / "once")}
    made = asynchronous("FaultyEnv", env_args=arguments, steps=1500, env_timeout=2.0, run=str(tmp_path / "run"))
    result = api.train(made, quiet=True)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    restarts = [event for event in events if event["event"] == "restart"]
    assert result.exit_code == 0 and (tmp_path / "once").exists()
    assert restarts and words in restarts[0]["cause"] and restarts[0]["lost"]
    assert not rig.children()
