"""Which episodes are played, how often, and with which actions."""

from __future__ import annotations

from contextlib import closing, contextmanager

import numpy as np
import pytest
import rig

from pronghorn import build
from pronghorn import evaluation as evaluation_module
from pronghorn.evaluation import Evaluation
from pronghorn.seeding import Domain, episode_seed
from pronghorn.transport.local import LocalWeights


@contextmanager
def make(episodes, num_envs=2, sample=False, weights_seed=3, **options):
    """(evaluator, batches it will have seen)."""
    made = rig.config(**{"core": "counting", **options})
    with closing(build.vec(made, Domain.EVALUATION_ENV, num_envs)) as envs:
        weights = LocalWeights()
        agent = build.agent(rig.config(**{"core": "counting", **options, "seed": weights_seed}), envs.spec)
        weights.publish(agent.state_dict(), 6)
        evaluator = build.evaluator(made, envs, weights, episodes, sample)
        memory, batches = evaluator._actor.memory, []
        take = memory.take

        def watched():
            batches.append(take())
            return batches[-1]

        memory.take = watched
        yield evaluator, batches


def held_out(num_envs, allotted):
    """Lengths of the first episodes of each env, in evaluation's own seeds."""
    return [
        rig.LENGTHS[episode_seed(3, Domain.EVALUATION_ENV, env, episode) % 5]
        for env in range(num_envs)
        for episode in range(allotted[env])
    ]


@pytest.mark.parametrize(
    ("episodes", "num_envs", "allotted"), [(7, 3, (3, 2, 2)), (8, 3, (3, 3, 2)), (4, 2, (2, 2)), (1, 1, (1,))]
)
def test_each_env_plays_the_first_of_its_held_out_episodes(episodes, num_envs, allotted):
    with make(episodes, num_envs) as (evaluator, batches):
        for _ in range(2):  # the same every time
            found = evaluator.run()
            lengths = held_out(num_envs, allotted)
            assert found.lengths == lengths and found.capped == 0
            assert found.returns == [length * (length + 1) / 2 for length in lengths]
            assert found.steps == sum(int(batch.valid.sum()) for batch in batches)
            batches.clear()


def test_many_short_episodes_do_not_crowd_out_long_ones():
    # As many episodes as asked from each env, though env 0 could have played them all meanwhile.
    with make(60, num_envs=4) as (evaluator, _):
        found = evaluator.run()
    assert found.lengths == held_out(4, (15, 15, 15, 15))


def test_mode_or_samples():
    with make(4) as (evaluator, batches):
        evaluator.run()
        evaluator.run()
    for batch in batches:
        assert np.array_equal(batch.action, batch.behaviour.argmax(-1)) and (batch.policy_version == 6).all()
    with make(4, sample=True) as (evaluator, sampled):
        evaluator.run()
        evaluator.run()
    assert not np.array_equal(sampled[0].action, sampled[0].behaviour.argmax(-1))
    assert np.array_equal(sampled[0].action, sampled[len(sampled) // 2].action)  # with the same noise again
    with make(4, sample=True, weights_seed=9) as (evaluator, others):
        evaluator.run()
    assert not np.array_equal(sampled[0].behaviour, others[0].behaviour)


@pytest.mark.parametrize("episodes", [1, 3])
def test_an_episode_without_end_is_capped(monkeypatch, episodes):
    monkeypatch.setattr(evaluation_module, "MOST_STEPS", 100)
    with make(episodes, env_args={"lengths": [10**9]}) as (evaluator, _):
        found = evaluator.run()
    assert found.capped == episodes and found.returns == found.lengths == []
    most = 100 * -(-episodes // 2) * 2
    assert most <= found.steps <= most + 2 * build.EVALUATION_UNROLL
    assert found.report() == {"episodes": 0, "capped": episodes} and found.quartiles() == []


def test_the_limit_of_the_env_decides_the_cap(monkeypatch):
    with make(2, env_args={"lengths": [10**9]}) as (evaluator, _):
        evaluator._actor.vec.spec = rig.dataclasses.replace(evaluator._actor.vec.spec, max_episode_steps=30)
        assert evaluator.run().steps == 2 * build.EVALUATION_UNROLL
        evaluator._actor.vec.spec = rig.dataclasses.replace(evaluator._actor.vec.spec, max_episode_steps=100)
        assert evaluator.run().steps == 4 * build.EVALUATION_UNROLL


def test_an_episode_of_the_longest_allowed_length_is_not_capped(monkeypatch):
    monkeypatch.setattr(evaluation_module, "MOST_STEPS", 64)
    with make(6, env_args={"lengths": [64]}) as (evaluator, _):
        found = evaluator.run()
    assert found.lengths == [64] * 6 and found.capped == 0


def test_what_takes_too_long_is_capped(monkeypatch):
    monkeypatch.setattr(evaluation_module, "MOST_SECONDS", 0.05)
    with make(2, env_args={"lengths": [10**9]}) as (evaluator, _):
        assert evaluator.run().capped == 2
        most = 4 * build.EVALUATION_UNROLL  # steps: so it was not this that ended it
        assert evaluator.run(most_steps=most, most_seconds=600.0).steps == most


def test_a_stop_leaves_nothing_for_the_next():
    with make(7, 3) as (evaluator, _):
        calls = iter(range(1000))
        assert evaluator.run(lambda: next(calls) >= 5) is None
        assert evaluator.run().lengths == held_out(3, (3, 2, 2))


def test_the_report():
    found = Evaluation([1.0, 2.0, 6.0], [3, 4, 5], capped=1, steps=20)
    assert found.report() == {
        "episodes": 3,
        "capped": 1,
        "return_mean": 3.0,
        "return_std": pytest.approx(np.std([1, 2, 6])),
        "length_mean": 4.0,
    }
    assert found.quartiles() == [1.5, 2.0, 4.0]
