"""Replay behind both runners: what is replayed was learnt from before, and is counted, and takes part, nowhere else."""

from __future__ import annotations

import dataclasses
import json
from contextlib import contextmanager

import numpy as np
import pytest
import rig
import torch
from runners.test_sync import assert_equal, run

from pronghorn import api, build, tree
from pronghorn.algorithms.impala import Impala
from pronghorn.memory.replay import ReplayBuffer
from pronghorn.processes import preflight
from pronghorn.runners.replay import ReplayingCollector
from pronghorn.types import UserError


def never() -> bool:
    return False


def impala(**options):
    return rig.config(**{"algorithm": "impala", "core": "counting", **options})


def replaying(**options):
    return impala(**{"replay_share": 0.5, "replay_capacity": 30, **options})


@contextmanager
def parts(made):
    """Collector (started) and learner with equal weights, and the same collector without replay."""
    with rig.parts(made) as (actor, learner):
        yield build.replaying(made, actor.spec, actor), learner


def update(learner, collector, batch):
    learner.update(batch, 0.0)
    rig.hand_over(learner, collector)


def columns(batch, chosen):
    """Every column of a batch as bytes, without the valid of a burn-in and whether it is replayed."""
    found = set()
    for column in np.flatnonzero(chosen):
        once = [*tree.leaves(batch.core_state), batch.last_action, batch.last_reward, batch.env, batch.task]
        rows = [*tree.leaves(batch.observation), batch.first, batch.action, batch.behaviour, batch.behaviour_log_prob]
        rows += [batch.reward, batch.terminated, batch.truncated, batch.policy_version, batch.episode_length]
        found.add(b"".join([array[column].tobytes() for array in once] + [row[:, column].tobytes() for row in rows]))
    return found


@pytest.mark.parametrize(("share", "count"), [(0.5, 5), (0.2, 1), (0.75, 15)])
def test_batches_are_fresh_columns_and_then_some_that_were_fresh_before(share, count):
    seen = set()
    with rig.parts(impala()) as (alone, _), parts(replaying(replay_share=share)) as (collector, _):
        for version in range(6):
            collector.inference.version = alone.inference.version = version
            batch, fresh = collector.collect(never), alone.collect(never)
            assert batch.replayed.tolist() == [False] * 5 + [True] * (count if len(seen) >= count else 0)
            own = columns(batch, ~batch.replayed)
            assert own == columns(fresh, fresh.env >= 0) and batch.env[:5].tolist() == list(range(5))
            replayed = columns(batch, batch.replayed)
            assert replayed <= seen and len(replayed) == batch.replayed.sum()
            assert np.array_equal(batch.fresh, batch.valid & (np.arange(len(batch.env)) < 5))
            seen |= own
            assert collector.metrics()["replay/size"] == min(30, len(seen))


def test_random_actions_are_never_replayed():
    with parts(replaying()) as (collector, _):
        collector.inference.mode = "random"
        collector.collect(never)
        assert "replay/size" not in collector.metrics()
        collector.inference.mode = "sample"
        assert not collector.collect(never).replayed.any()
        assert collector.metrics()["replay/size"] == 5


def test_without_a_share_nothing_stands_in_between():
    with rig.parts(impala()) as (actor, _):
        assert build.replaying(impala(), actor.spec, actor) is actor


def test_steps_episodes_and_lag_are_those_of_fresh_rows():
    # The lengths of episodes do not depend on actions here.
    plain, found = (run(made, evaluate_every=10**6) for made in (impala(), replaying()))
    assert found.counters() == plain.counters() and found.state["counters"]["updates"] > 20
    assert found.state["episodes"] == plain.state["episodes"]
    assert all(line["lag/max"] == line["lag/mean"] == 0 for line in found.lines() if "lag/max" in line)
    last = found.records[-2]  # before the evaluation at the end
    assert last["replay/size"] == 30 and 1 < last["replay/age"] < 6
    ages = [line.get("replay/age") for line in found.lines() if "lag/max" in line]
    assert ages[:2] == [None, 1.0]  # the second update learns from the first one's unrolls too
    assert not any(key.startswith("replay/") for line in plain.lines() for key in line)
    assert not any(torch.equal(found.tensors[name], plain.tensors[name]) for name in ["agent/policy.layers.0.weight"])


def test_statistics_are_those_of_fresh_rows():
    options = {"reward_scaling": "rewards"}
    made = replaying(**options)
    with parts(made) as (collector, learner):
        for _ in range(2):
            batch = collector.collect(never)
        plain = build.learner(impala(**options), collector.spec)
        learner.update(batch, 0.0)
        fresh = int(batch.fresh.sum())
        buffers = dict(learner.agent.named_buffers())
        counts = [float(value) for name, value in buffers.items() if name.endswith("count")]
        assert batch.replayed.any() and counts and set(counts) == {fresh}
        plain.update(dataclasses.replace(batch, valid=batch.fresh), 0.0)
        for name, value in plain.agent.named_buffers():
            assert torch.allclose(buffers[name], value, rtol=1e-12), name
        assert not torch.equal(learner.weights()["value.layers.0.weight"], plain.weights()["value.layers.0.weight"])


def vtrace_of(batch, values, ratios, discount):
    """(vs, advantages) with all caps 1, one row at a time, backwards."""
    rows, count = batch.reward.shape
    vs, advantages = values[:rows].copy(), np.zeros((rows, count))
    for b in range(count):
        carried = 0.0  # vs - V of the next row
        for t in reversed(range(rows)):
            if not batch.valid[t, b]:
                carried = 0.0
                continue
            d = discount * (not batch.terminated[t, b])
            later = 0.0 if batch.terminated[t, b] or batch.truncated[t, b] else carried
            rho = min(1.0, ratios[t, b])
            error = batch.reward[t, b] + d * values[t + 1, b] - values[t, b]
            advantages[t, b] = rho * (error + d * later)
            carried = rho * (error + d * later)
            vs[t, b] += carried
    return vs, advantages


@pytest.mark.parametrize("options", [{}, {"core": "lstm", "core_size": 6, "replay_burn_in": 3}])
def test_replayed_rows_are_corrected_by_vtrace(options):
    made = replaying(learning_rate=0.03, max_gradient_norm=10.0, reduction="sum", **options)
    with parts(made) as (collector, learner):
        for _ in range(8):
            update(learner, collector, batch := collector.collect(never))
        batch = collector.collect(never)
        agent = build.agent(made, collector.spec)
        agent.load_state_dict(learner.weights())
        tensors = batch.map(torch.as_tensor)
        with torch.no_grad():
            output = agent(tensors.observation, tensors.first, tensors.core_state)
            log_prob = agent.distribution.log_prob(output.parameters[:-1], tensors.action)
            targets = Impala(made.loss, agent.distribution).targets(agent, tensors, torch.ones(()))
    ratios = np.exp(log_prob.double().numpy() - batch.behaviour_log_prob)
    stale = batch.valid & batch.replayed
    assert np.allclose(ratios[batch.fresh], 1.0, atol=1e-4)
    assert ratios[stale].min() < 0.95 and ratios[stale].max() > 1.05
    assert stale[made.loss.replay_burn_in :].any() and not stale[: made.loss.replay_burn_in].any()
    vs, advantages = vtrace_of(batch, output.values.double().numpy(), ratios, made.loss.discount)
    assert np.allclose(targets.vs.numpy(), vs, rtol=1e-4, atol=1e-4)
    assert np.allclose(targets.advantages.numpy(), advantages, rtol=1e-4, atol=1e-4)


def test_a_run_can_be_repeated_and_resumed():
    made = replaying(steps=500, replay_burn_in=2)
    straight = run(made)
    assert_equal(straight, run(made))
    stopped = run(made, stop_after=60)
    one, other = run(made, resumed=stopped), run(made, resumed=stopped)
    assert one.exact and one.state["counters"]["step"] == straight.state["counters"]["step"]
    assert_equal(one, other)
    sizes = [line["replay/size"] for line in one.records if "replay/size" in line]
    assert np.diff(sizes).min() < 0 and sizes[-1] == 30  # begun anew where it was resumed


def records_of(run_directory):
    return [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text().splitlines()]


def test_in_lock_step_actors_in_processes_replay_the_same(tmp_path):
    found = []
    for runner, options in (("async", {"actors": 1, "max_policy_lag": 0}), ("sync", {})):
        made = replaying(steps=500, runner=runner, run=str(tmp_path / runner), **options)
        assert api.train(made, quiet=True).exit_code == 0
        left_out = {"queue/columns", "lag/dropped"}
        lasting = rig.lasting(records_of(tmp_path / runner))
        found.append([{key: value for key, value in record.items() if key not in left_out} for record in lasting])
    assert found[0] == found[1] and found[0][-2]["replay/age"] > 1


def test_a2c_replays():
    found = run(replaying(algorithm="a2c", steps=300), evaluate_every=10**6)
    assert found.records[-2]["replay/age"] > 1


def test_the_asynchronous_runner_replays(tmp_path):
    options = {"runner": "async", "actors": 1, "batch_size": 3, "steps": 800, "run": str(tmp_path / "run")}
    options |= {"core": "lstm", "core_size": 4, "replay_burn_in": 2, "replay_capacity": 300}
    assert api.train(replaying(**options), quiet=True).exit_code == 0
    records = [record for record in records_of(tmp_path / "run") if "replay/age" in record]
    # Exempt from the bound of the lag, which holds for the rest.
    assert records and max(record["lag/max"] for record in records) <= 4 < records[-1]["replay/age"]
    assert records[-1]["step"] < 800 + 3 * 7
    assert records[-1]["replay/size"] == 3 * records[-1]["updates"]


def bytes_of(batch):
    return sum(array.nbytes for array in tree.leaves(list(vars(batch).values())))


@pytest.mark.parametrize("compiled", [False, True])
def test_it_takes_what_is_said(compiled):
    made, plain = (dataclasses.replace(each, compile=compiled) for each in (replaying(), impala()))
    with parts(made) as (collector, _):
        assert isinstance(collector, ReplayingCollector)
        buffer = collector._buffer
        assert isinstance(buffer, ReplayBuffer)
        collector.collect(never)
        joined = collector.collect(never)
        needs, less = (build.needs(each, collector.spec) for each in (made, plain))
        assert (needs.replay, less.replay) == (buffer.nbytes, 0)
        example = bytes_of(build.example_batch(made, collector.spec, 10)) // 2 if compiled else 0
        assert needs.rollouts - less.rollouts == bytes_of(buffer.sample(5, 0)) + bytes_of(joined) + example
        assert "of replay" in preflight.describe(needs) and "of replay" not in preflight.describe(less)


def test_what_does_not_fit_is_lowered_and_written_down(tmp_path, monkeypatch):
    made = replaying(replay_capacity=10**6, steps=200, evaluation_episodes=2, run=str(tmp_path / "run"))
    needs = build.needs(made, build.env_spec(made))
    others = needs.memory - needs.replay
    machine = preflight.Machine(others + 10**6, descriptors=1000, descriptor_limit=1024, cores=2)
    monkeypatch.setattr(preflight.Machine, "here", lambda: machine)
    api.train(made, quiet=True)
    capacity = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["loss"]["replay_capacity"]
    column = needs.replay // 10**6
    assert 0.9e6 - column < capacity * column <= 0.9e6
    start = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[0])
    (line,) = (line for line in start["decisions"] if "--replay-capacity" in line)
    takes = preflight.size_of(needs.replay)
    assert line.startswith(f"--replay-capacity lowered to {capacity:,} unrolls (") and f"1,000,000 take {takes}" in line
    assert records_of(tmp_path / "run")[-2]["replay/size"] > 5


def test_what_does_not_fit_beside_a_batch_is_refused(monkeypatch):
    machine = preflight.Machine(10**6, descriptors=1000, descriptor_limit=1024, cores=2)
    monkeypatch.setattr(preflight.Machine, "here", lambda: machine)
    with pytest.raises(UserError, match=r"the run needs about 5\d MB of memory .* 1\.0 MB are available"):
        api.train(replaying(replay_capacity=10**6, run="unused"), quiet=True)
