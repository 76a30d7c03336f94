"""Whole runs: equal whatever the layout, equal whether stopped and resumed or not, undisturbed by evaluation."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest
import rig
import torch

from pronghorn import build
from pronghorn.runners import sync
from pronghorn.runners.sync import SyncRunner
from pronghorn.seeding import Domain
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.transport.local import LocalWeights

BATCHPPO = {
    "clip_ratio": None,
    "kl_penalty": 1.0,
    "minibatches": 1,
    "normalise_advantages": "batch",
    "recompute_advantages": False,
    "episodes_per_update": 4,
    "unroll_length": 6,
}
KINDS = {
    "unrolls": {"core": "counting", "groups": 2},
    "episodes": {**BATCHPPO, "groups": 2},
    "episodes of CartPole": {**BATCHPPO, "env": "gymnasium:CartPole-v1", "unroll_length": 30, "evaluation_episodes": 2},
    "memory": {"core": "lstm", "core_size": 6, "last_action_and_reward": True, "groups": 2},
    "images": {"env": "rig:CameraBanditEnv", "image_encoder": "shallow", "epochs": 1},
    "texts": {"env": "InstructionEnv", "groups": 2, "epochs": 1},
    "normal actions": {"env": "gymnasium:Pendulum-v1", "reward_scaling": "rewards", "evaluation_episodes": 1},
    "impala": {"algorithm": "impala", "core": "counting", "optimiser_name": "rmsprop"},
}


@dataclass
class Outcome:
    """What a run leaves behind: all records and events, and its newest checkpoint as the disk would return it."""

    records: list = field(default_factory=list)
    events: list = field(default_factory=list)
    tensors: dict = field(default_factory=dict)
    state: dict = field(default_factory=dict)
    exact: bool | None = None
    asked: int = 0

    def record(self, record, longest_running):
        self.records.append(record)

    def event(self, event, step, **details):
        self.events.append((event, step, details))

    def save(self, step, tensors, state):
        self.tensors = {name: torch.as_tensor(value).clone() for name, value in tensors.items()}
        self.state = json.loads(json.dumps(state))

    def weights(self):
        return {name: value for name, value in self.tensors.items() if name.startswith(("agent/", "optimiser/"))}

    def lines(self):
        return rig.lasting(self.records)

    def counters(self):
        return {key: value for key, value in self.state["counters"].items() if key != "seconds"}


def run(made, resumed=None, stop_after=10**9, evaluate_every=200, checkpoint_every=150):
    found = Outcome()
    timers, weights, stop = PhaseTimers(), LocalWeights(), rig.StopAfter(stop_after)
    few = min(made.evaluation_episodes, made.vec.num_envs)
    with (
        closing(build.vec(made, Domain.TRAINING_ENV)) as envs,
        closing(build.vec(made, Domain.EVALUATION_ENV, few)) as evaluation_envs,
    ):
        runner = SyncRunner(
            actor=build.replaying(made, envs.spec, build.actor(made, envs, timers)),
            learner=build.learner(made, envs.spec),
            weights=weights,
            evaluator=build.evaluator(made, evaluation_envs, weights, made.evaluation_episodes),
            report=found,
            save=found.save,
            timers=timers,
            steps=made.steps,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
        )
        if resumed is None:
            runner.start()
        else:
            step = resumed.state["counters"]["step"]
            found.records = [record for record in resumed.records if record["step"] <= step]
            numbers = {
                name: value if name.startswith(("agent/", "optimiser/")) else value.numpy()
                for name, value in resumed.tensors.items()
            }
            found.exact = runner.restore(numbers, resumed.state)
        runner.run(stop)
    found.asked = stop_after - stop.calls
    return found


def assert_equal(one, other, lines=True):
    assert one.weights().keys() == other.weights().keys()
    for name, value in one.weights().items():
        assert torch.equal(value, other.weights()[name]), name
    assert one.state["learner"] == other.state["learner"]
    if lines:
        assert one.lines() == other.lines()
        assert one.state["episodes"] == other.state["episodes"]
        assert {**one.counters(), "saved_at": 0} == {**other.counters(), "saved_at": 0}


def made_of(kind, **options):
    return rig.config(**{"steps": 500, "evaluation_episodes": 3, **KINDS[kind], **options})


@pytest.mark.parametrize("kind", ["unrolls", "episodes", "normal actions", "texts"])
def test_layouts_and_repeats_give_the_same_weights(kind):
    straight = run(made_of(kind))
    assert straight.state["learner"]["version"] >= 5 and len(straight.records) >= 7
    assert_equal(straight, run(made_of(kind)))
    for workers in (1, 2):
        assert_equal(straight, run(made_of(kind, layout="pool", workers=workers)))
    other = run(made_of(kind, seed=4))
    assert not any(
        torch.equal(value, other.tensors[name])
        for name, value in straight.weights().items()
        if name.startswith("agent/") and name.endswith("weight")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_stopping_and_resuming_is_as_if_it_had_run_on(kind):
    made = made_of(kind)
    straight = run(made)
    assert straight.state["learner"]["version"] >= 5 and any("eval/return" in line for line in straight.lines())
    assert straight.state["counters"]["step"] >= 500
    for stop_after in [0, 1, 4, *range(9, straight.asked + 7, max(7, straight.asked // 5))]:
        stopped = run(made, stop_after=stop_after)
        resumed = run(made, resumed=stopped)
        assert resumed.exact
        assert_equal(straight, resumed)


def test_a_run_may_be_stopped_again_and_again():
    made = made_of("episodes")
    straight = run(made, evaluate_every=10**6)
    found, resumes = run(made, stop_after=5, evaluate_every=10**6), 0
    while found.state["counters"]["evaluated_at"] < made.steps:
        # In the end long enough for an evaluation, which begins anew.
        patience = 13 if found.state["counters"]["step"] < made.steps else 200
        found, resumes = run(made, resumed=found, stop_after=patience, evaluate_every=10**6), resumes + 1
        assert found.exact and resumes < 50
    assert resumes > 10
    assert_equal(straight, found)


def test_stops_come_in_the_middle_of_unrolls_and_evaluations():
    made = made_of("unrolls")
    rows, evaluating = set(), 0
    for stop_after in range(5, 180, 7):
        stopped = run(made, stop_after=stop_after)
        rows |= set(stopped.tensors["actor/carry/row"].tolist())
        evaluating += stopped.state["counters"]["evaluated_at"] < 200 <= stopped.state["counters"]["step"] < 200 + 35
    assert rows >= {1, 3, 5} and evaluating


def test_a_resumed_layout_may_differ():
    straight = run(made_of("episodes"))
    stopped = run(made_of("episodes", layout="pool", workers=2), stop_after=40)
    resumed = run(made_of("episodes"), resumed=stopped)
    assert resumed.exact
    assert_equal(straight, resumed)


@pytest.mark.parametrize("env", ["rig:UnseedableEnv", "rig:ForgetfulEnv"])
@pytest.mark.parametrize("whole", [{}, BATCHPPO], ids=["unrolls", "episodes"])
def test_envs_that_take_no_seed_begin_new_episodes_and_two_resumes_are_equal(env, whole):
    made = rig.config(env, core="counting", steps=500, evaluation_episodes=2, **whole)
    stopped = run(made, stop_after=33)
    episodes = stopped.tensors["actor/carry/episode"]
    begun = run(made, resumed=stopped, stop_after=0)  # the next ones: nothing is played twice
    assert torch.equal(begun.tensors["actor/carry/episode"], episodes + 1) and begun.tensors["actor/carry/first"].all()
    one, other = run(made, resumed=stopped), run(made, resumed=stopped)
    assert one.exact is other.exact is False
    assert_equal(one, other)
    assert one.state["counters"]["step"] >= 500


@pytest.mark.parametrize("kind", ["unrolls", "episodes"])
def test_evaluation_and_checkpoints_leave_no_trace_in_training(kind):
    often = run(made_of(kind), evaluate_every=60, checkpoint_every=50)
    seldom = run(made_of(kind, evaluation_episodes=5), evaluate_every=10**6, checkpoint_every=10**6)
    by_share = run(made_of(kind), evaluate_every=None)
    assert len([line for line in often.records if "eval/return" in line]) > 5
    assert len([line for line in seldom.records if "eval/return" in line]) == 1
    for found in (seldom, by_share):
        assert_equal(often, found, lines=False)


def test_evaluation_takes_its_share_of_the_steps():
    found = run(made_of("unrolls", steps=3000), evaluate_every=None)
    counters = found.state["counters"]
    evaluations = [record["step"] for record in found.records if "eval/return" in record]
    assert len(evaluations) > 1 and evaluations[-1] == counters["step"] == counters["evaluated_at"]
    # Foreseen from the lengths of earlier episodes, so not to the step.
    assert counters["evaluation_steps"] <= 0.11 * counters["step"]


def test_evaluating_endless_episodes_ends():
    made = made_of("unrolls", env_args={"lengths": [10**9]}, steps=300)
    found = run(made, evaluate_every=None)
    counters = found.state["counters"]
    assert counters["evaluated_at"] == counters["step"] and not any("eval/return" in record for record in found.records)
    one_unroll = build.EVALUATION_UNROLL * min(made.evaluation_episodes, made.vec.num_envs)
    assert counters["evaluation_steps"] <= 0.1 * made.steps + one_unroll
    assert any(event == "warning" for event, *_ in found.events)


def test_steps_are_valid_rows_and_every_episode_is_counted_once():
    made = made_of("unrolls", steps=400)
    batches = []
    with rig.parts(made) as (actor, _):
        while sum(int(batch.valid.sum()) for batch in batches) < 400:
            batches.append(actor.collect())
    found = run(made, evaluate_every=10**6)
    # The lengths of episodes do not depend on actions here, so neither do these counts.
    assert found.state["counters"]["step"] == sum(int(batch.valid.sum()) for batch in batches)
    assert found.state["counters"]["updates"] == len(batches) - 1  # the first gave the statistics of version 0
    lengths = np.concatenate([batch.episode_length[batch.episode_length > 0] for batch in batches])
    last = found.records[-2]  # before the evaluation at the end
    assert last["episodes"] == len(lengths)
    assert last["length/mean"] == pytest.approx(lengths[-100:].mean())
    assert last["return/mean"] == pytest.approx((lengths * (lengths + 1) / 2)[-100:].mean())
    assert last["lag/mean"] == last["lag/max"] == 0


def test_checkpoints_come_as_often_as_asked_and_at_the_end():
    found = run(made_of("unrolls"), checkpoint_every=100)
    steps = [step for event, step, _ in found.events if event == "checkpoint"]
    assert [step // 100 for step in steps] == [1, 2, 3, 4, 5] and steps[-1] == found.state["counters"]["step"]


def test_a_checkpoint_never_gets_old(monkeypatch):
    monkeypatch.setattr(sync, "CHECKPOINT_SECONDS", -1.0)
    found = run(made_of("unrolls", steps=200), checkpoint_every=10**9)
    assert sum(event == "checkpoint" for event, *_ in found.events) == found.state["counters"]["updates"] + 1


def test_rows_of_random_actions_are_of_no_version():
    # In episode mode they stay in columns that later updates learn from; nothing may take them for version 0's.
    first = run(made_of("episodes")).records[0]
    assert first["lag/max"] == 1 and 0 < first["lag/mean"] < 1
    assert run(made_of("unrolls")).records[0]["lag/max"] == 0


@pytest.mark.parametrize("force_lag", [0, 1, 4])
def test_lag_can_be_forced(force_lag):
    made = rig.config("CountingEnv", "impala", steps=35 * 9)
    batches = []
    with rig.parts(made) as (actor, learner):
        collect = actor.collect
        actor.collect = lambda *data: batches.append(collect(*data)) or batches[-1]
        with closing(build.vec(made, Domain.EVALUATION_ENV, 1)) as evaluation_envs:
            weights, report = LocalWeights(), Outcome()
            runner = SyncRunner(
                actor=actor,
                learner=learner,
                weights=weights,
                evaluator=build.evaluator(made, evaluation_envs, weights, 1),
                report=report,
                save=report.save,
                timers=PhaseTimers(),
                steps=made.steps,
                evaluate_every=10**9,
                checkpoint_every=10**9,
                force_lag=force_lag,
            )
            runner.start()
            runner.run(lambda: False)
    versions = [set(batch.policy_version[batch.valid].tolist()) for batch in batches]
    assert versions == [{-1}, *({max(0, version - force_lag)} for version in range(len(batches) - 1))]
    assert [record["lag/max"] for record in report.records if "lag/max" in record][-1] == force_lag


def test_values_that_do_not_exist_are_absent():
    found = run(made_of("unrolls", env_args={"lengths": [600]}, steps=200, evaluation_episodes=1), evaluate_every=10**6)
    first = found.records[0]
    assert "return/mean" not in first and first["episodes"] == 0
    assert all(np.isfinite(value) for record in found.records for value in record.values())
