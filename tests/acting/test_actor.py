"""Every row of every column, as whole numbers, whatever the layout, the groups, and the order of arrival."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from contextlib import closing

import numpy as np
import pytest
import rig
import torch

from pronghorn import build
from pronghorn.acting.actor import ActionLog, Actor
from pronghorn.acting.inference import Inference
from pronghorn.envs.probes import CountingEnv, MaskedBanditEnv, TwoLengthEnv
from pronghorn.memory.rollout import RolloutMemory
from pronghorn.seeding import Domain, episode_seed, generator
from pronghorn.types import ACTION_MASK, Leaf, Step, column_slots
from pronghorn.vec.base import EnvError
from pronghorn.vec.serial import SerialVec

LAYOUTS = [("serial", 1), ("pool", 1), ("pool", 2)]


class StandIn:
    """Counting envs of which ``at_once`` answer at a time, in an order of their own.

    ``crashes[env]`` are the calls (from 0) of an env that are answered by a restart: an invalid row without an end.
    """

    pausable = True

    def __init__(self, num_envs, crashes=None, at_once=None, run_seed=3):
        self.num_envs, self.spec = num_envs, CountingEnv().spec
        self._crashes, self._at_once, self._run_seed = crashes or {}, at_once or num_envs, run_seed
        self._random = np.random.default_rng(0)

    def reset(self, episodes, histories=None):
        assert histories is None and not episodes.any()
        self._oracles = [rig.Oracle(self._run_seed, env, self._crashes.get(env, ())) for env in range(self.num_envs)]
        self._waiting = dict.fromkeys(range(self.num_envs))

    def send(self, actions, envs):
        assert not set(envs.tolist()) & set(self._waiting)
        self._waiting |= dict(zip(envs.tolist(), actions.tolist(), strict=True))

    def recv(self):
        answering = self._random.permutation(sorted(self._waiting))[: self._at_once]
        rows = []
        for env in answering.tolist():
            action, oracle = self._waiting.pop(env), self._oracles[env]
            row = oracle.act(action) if action is not None else dict.fromkeys(("terminated", "truncated", "valid"), 0)
            rows.append({"reward": 0.0, **row, "first": oracle.first, "over": oracle.over, "episode": oracle.episode})

        def column(name, dtype):
            return np.array([row[name] for row in rows], dtype)

        flags = {name: column(name, bool) for name in ("first", "terminated", "truncated", "valid", "over")}
        return Step(
            envs=answering,
            observation=np.array([self._oracles[env].observation for env in answering]),
            reward=column("reward", np.float64),
            episode=column("episode", np.int64),
            **flags,
        )

    def close(self):
        pass


def make_actor(vec, *, rows=7, columns=None, batch_size=None, whole=False, made=None):
    agent = build.agent(made or rig.config(core="counting"), vec.spec)
    slots = column_slots(vec.spec, rows, agent.distribution.parameter_size, np.zeros((), np.int64))
    batch_size = batch_size or vec.num_envs
    columns = columns or (2 * vec.num_envs + batch_size if whole else vec.num_envs)
    memory = RolloutMemory(slots, range(columns), batch_size, sort_by_env=not whole)
    actor = Actor(vec, memory, Inference(agent), 3, whole_episodes=whole)
    actor.start()
    return actor


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("layout", "workers"), LAYOUTS)
def test_every_row_of_unrolls(layout, workers, groups):
    made = rig.config(core="counting", layout=layout, workers=workers, groups=groups)
    oracles = [rig.Oracle(made.seed, env) for env in range(5)]
    last = [(0, 0.0)] * 5
    before = None
    with rig.parts(made) as (actor, _):
        for number in range(6):
            actor.inference.version = number * number
            batch = actor.collect()
            assert batch.env.tolist() == [0, 1, 2, 3, 4] and not batch.task.any()
            assert batch.observation.shape == (8, 5, 3) and batch.observation.dtype == np.float64
            assert (batch.policy_version == number * number).all()
            for env, oracle in enumerate(oracles):
                rig.check_carried(batch, env, oracle, last[env])
                for row in range(7):
                    rig.check_row(batch, env, row, oracle)
                last[env] = int(batch.action[6, env]), float(batch.reward[6, env])
                assert np.array_equal(batch.observation[7, env], oracle.observation)
                assert batch.first[7, env] == oracle.first
            if before is not None:
                assert np.array_equal(batch.observation[0], before.observation[7])
                assert np.array_equal(batch.first[0], before.first[7])
            before = batch
            ended = batch.terminated | batch.truncated
            assert not (batch.terminated & batch.truncated).any() and ended.any()
            assert not batch.valid[1:][ended[:-1]].any()  # the row after an end shows the final observation
            assert np.array_equal(batch.observation[1:][ended][:, 1], batch.episode_length[ended])
    assert min(oracle.episode for oracle in oracles) >= 4


def test_actions_are_those_that_weights_and_noise_determine():
    made = rig.config(core="counting", groups=2)
    with rig.parts(made) as (actor, learner):
        for number in range(3):
            batch = actor.collect()
            tensors = batch.map(torch.from_numpy)
            output = learner.agent(tensors.observation, tensors.first, tensors.core_state)
            np.testing.assert_allclose(batch.behaviour, output.parameters[:7].numpy(), atol=1e-6)
            for env in range(5):
                noise = learner.agent.distribution.draw_noise(
                    generator(made.seed, Domain.ACTION_NOISE, env, number), (7,)
                )
                assert np.array_equal(batch.action[:, env], (batch.behaviour[:, env] + noise).argmax(-1))
            log_probs = torch.log_softmax(tensors.behaviour, -1).gather(-1, tensors.action[..., None])[..., 0]
            np.testing.assert_allclose(batch.behaviour_log_prob, log_probs.numpy(), atol=1e-6)


def test_mode_and_random_actions():
    with rig.parts(rig.config(core="counting")) as (actor, _):
        actor.inference.mode = "mode"
        batch = actor.collect()
        assert np.array_equal(batch.action, batch.behaviour.argmax(-1))
        assert len(np.unique(batch.action)) < 5  # of a fresh agent, whose preferences hardly vary
        actor.inference.mode = "random"
        batch = actor.collect()
        assert not batch.behaviour.any() and set(batch.action.ravel()) == set(range(5))
        np.testing.assert_allclose(batch.behaviour_log_prob, -np.log(5), atol=1e-6)


def expected_columns(num_envs, rows, count):
    """(env, episode, first row, length) of whole-episode columns in the order in which they are finished, if every
    env steps once a round."""
    finished = []
    for env in range(num_envs):
        clock = 0
        for episode in range(count):
            length = (3, 5, 1, 7, 6)[episode_seed(3, Domain.TRAINING_ENV, env, episode) % 5]
            for start in range(0, length, rows):
                part = min(rows, length - start)
                clock += part
                finished.append((clock, env, episode, start, part))
            clock += 1  # the action that is answered by the next episode
    return [item[1:] for item in sorted(finished)[:count]]


def check_whole(batch, column, oracle, last):
    """A column holds one episode (or what fitted, closed as truncated); returns (episode, first row, length, last)."""
    episode, start = oracle.episode, oracle.steps
    rig.check_carried(batch, column, oracle, last)
    rows = batch.reward.shape[0]
    for row in range(rows):
        assert batch.valid[row, column] and batch.first[row, column] == (row == 0 and start == 0)
        action, reward = int(batch.action[row, column]), float(batch.reward[row, column])
        observed = batch.observation[row, column].copy()
        assert np.array_equal(observed, oracle.observation)
        outcome = oracle.act(action)
        ended = outcome["terminated"] or outcome["truncated"]
        closed = row == 5 and not ended
        for name, value in outcome.items():
            wanted = True if name == "truncated" and closed else value
            assert getattr(batch, name)[row, column] == wanted
        if ended or closed:
            break
    length = row + 1
    assert np.array_equal(batch.observation[length, column], oracle.observation)
    assert not batch.first[length, column]
    for name in ("valid", "terminated", "truncated", "reward", "action", "behaviour", "episode_return"):
        assert not getattr(batch, name)[length:, column].any()
    assert not batch.observation[length + 1 :, column].any() and not batch.first[length + 1 :, column].any()
    if ended:
        oracle.act(0)
    return episode, start, length, (action, reward)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("layout", "workers"), LAYOUTS)
def test_whole_episodes_in_order_of_finishing(layout, workers, groups):
    lengths = (3, 5, 1, 7, 6)  # 7 does not fit into six rows, 6 just does
    made = rig.config(
        core="counting",
        layout=layout,
        workers=workers,
        groups=groups,
        num_envs=3,
        unroll_length=6,
        episodes_per_update=4,
        env_args={"lengths": list(lengths)},
    )
    oracles = [rig.Oracle(made.seed, env, lengths=lengths) for env in range(3)]
    last = [(0, 0.0)] * 3
    found = []
    with rig.parts(made) as (actor, _):
        for _ in range(15):
            batch = actor.collect()
            assert batch.reward.shape[1] == 4
            assert batch.reward.shape[0] in (2, 4, 6) and (batch.valid.sum(0) > batch.reward.shape[0] - 2).any()
            for column, env in enumerate(batch.env.tolist()):
                *what, last[env] = check_whole(batch, column, oracles[env], last[env])
                found.append((env, *what))
            assert actor.dropped == 0
    assert {length for *_, length in found} == {3, 5, 1, 6} and (6 in {start for _, _, start, _ in found})
    if groups == 1:
        assert found == expected_columns(3, 6, 60)


@pytest.mark.parametrize("at_once", [5, 2, 1])
@pytest.mark.parametrize("crashes", [{}, {0: (0, 1, 9), 3: (4, 5, 6, 30, 43, 44)}])
@pytest.mark.parametrize("columns", [5, 12])
def test_unrolls_of_envs_that_crash_and_answer_when_they_like(crashes, at_once, columns):
    actor = make_actor(StandIn(5, crashes, at_once), columns=columns)
    oracles = [rig.Oracle(3, env, crashes.get(env, ())) for env in range(5)]
    last = [(0, 0.0)] * 5
    crashed = 0
    for _ in range(12):
        batch = actor.collect()
        assert batch.env.tolist() == (list(range(5)) if columns == 5 else sorted(batch.env))
        for column, env in enumerate(batch.env.tolist()):
            rig.check_carried(batch, column, oracles[env], last[env])
            for row in range(7):
                rig.check_row(batch, column, row, oracles[env])
            last[env] = int(batch.action[6, column]), float(batch.reward[6, column])
            assert np.array_equal(batch.observation[7, column], oracles[env].observation)
        ended = batch.terminated | batch.truncated
        previous = np.concatenate([np.zeros((1, 5), bool), ended[:-1]])
        crashed += int((~batch.valid & batch.first[1:] & ~previous)[1:].sum())
    assert crashed >= 4 if crashes else crashed == 0


@pytest.mark.parametrize("at_once", [3, 2])
def test_whole_episodes_of_envs_that_crash_are_dropped(at_once):
    crashes = {1: (1, 4, 5, *range(6, 40, 4))}  # so that some hit the void action after an end
    actor = make_actor(StandIn(3, crashes, at_once), rows=6, batch_size=4, whole=True)
    by_env = defaultdict(list)
    for _ in range(10):
        batch = actor.collect()
        for column, env in enumerate(batch.env.tolist()):
            length = int(batch.valid[:, column].sum())
            assert batch.valid[:length, column].all()
            seeds = np.unique(batch.observation[: length + 1, column, 0])
            assert len(seeds) == 1  # of one episode
            by_env[env].append((seeds[0], int(batch.observation[0, column, 1]), length))
    for env, columns in by_env.items():
        # Replays the env without regard for actions: which columns come out whole, and how many steps do not?
        oracle, expected, run, dropped, begun = rig.Oracle(3, env, crashes.get(env, ())), [], 0, 0, 0
        while len(expected) < len(columns):
            seed = oracle.observation[0]
            outcome = oracle.act(0)
            if outcome["valid"]:
                run += 1
                if outcome["terminated"] or outcome["truncated"] or run == 6:
                    expected.append((seed, begun, run))
                    begun, run = (0 if outcome["terminated"] or outcome["truncated"] else begun + run), 0
            else:
                dropped, run, begun = dropped + run, 0, 0
        assert columns == expected
        if env == 1:
            assert dropped > 0 and actor.dropped == dropped


def test_first_finished_do_not_favour_short_episodes():
    # As TwoLengthEnv, but with 1 or 30 steps and no simulator, so that 200 batches of 30 take seconds.
    class Quick:
        num_envs, spec, pausable = 30, TwoLengthEnv().spec, True

        def reset(self, episodes, histories=None):
            self._random = np.random.default_rng(5)
            self._length, self._step = np.zeros(30, np.int64), np.zeros(30, np.int64)
            self._over = np.ones(30, bool)

        def send(self, actions, envs):
            pass

        def recv(self):
            first = self._over
            self._length = np.where(first, self._random.choice((1, 30), 30), self._length)
            self._step = np.where(first, 0, self._step + 1)
            self._over = ~first & (self._step >= self._length)
            observation = np.zeros((30, 2), np.float32)
            return Step(
                np.arange(30),
                observation,
                first,
                np.ones(30),
                self._over,
                np.zeros(30, bool),
                ~first,
                self._over,
                self._step,
            )

    actor = make_actor(Quick(), rows=30, batch_size=30, whole=True, made=rig.config(core="counting", layers=(), seed=1))
    short = sum((actor.collect().valid.sum(0) == 1).mean() for _ in range(200)) / 200
    assert abs(short - 0.5) < 0.03


@pytest.mark.learning
def test_first_finished_do_not_favour_short_episodes_of_two_length():
    made = rig.config("TwoLengthEnv", num_envs=30, episodes_per_update=30, unroll_length=1000, layers=())
    with rig.parts(made) as (actor, _):
        short = sum((actor.collect().valid.sum(0) == 20).mean() for _ in range(200)) / 200
    assert abs(short - 0.5) < 0.03


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"groups": 3}], ids=["1", "2", "3"])
@pytest.mark.parametrize("whole", [{}, {"episodes_per_update": 4, "unroll_length": 6}], ids=["unrolls", "episodes"])
def test_stopping_anywhere_goes_on_where_it_was(whole, options, restart):
    made = rig.config(core="counting", **options, **whole)

    def act(actor, batches, stop=lambda: False):
        # The version is what an update would change: no action may be chosen on the other side of it.
        while len(batches) < (4 if whole else 2):
            actor.inference.version = len(batches)
            batch = actor.collect(stop)
            if batch is None:
                return
            batches.append(batch)

    with rig.parts(made) as (actor, _):
        act(actor, straight := [])
    for after in range(24 if whole else 12):
        found = []
        with rig.parts(made) as (actor, _):
            act(actor, found, rig.StopAfter(after))
            if restart:
                arrays, numbers = actor.state()
                arrays, numbers = (
                    {name: array.copy() for name, array in arrays.items()},
                    json.loads(json.dumps(numbers)),
                )
            else:
                act(actor, found)
        if restart:
            with rig.parts(made) as (actor, _):
                assert actor.restore(arrays, numbers)
                act(actor, found)
        for one, other in zip(straight, found, strict=True):
            for name, wanted in vars(one).items():
                assert np.array_equal(wanted, getattr(other, name)), (after, name)


def test_too_small_a_memory_is_an_error_not_a_hang():
    actor = make_actor(StandIn(3), columns=2, batch_size=3)
    with pytest.raises(RuntimeError, match="memory is too small"):
        actor.collect()


def test_seeds_share_no_stream_between_runs_envs_and_episodes():
    seen = {}
    for seed in (0, 1):
        with rig.parts(rig.config(core="counting", seed=seed)) as (actor, _):
            batches = [actor.collect() for _ in range(4)]
            seen[seed] = np.concatenate([batch.observation[..., 0][batch.first] for batch in batches])
        # The first row of an unroll repeats the last of the one before.
        assert len(np.unique(seen[seed])) >= 5 * 4
    assert not set(seen[0]) & set(seen[1])


def test_a_mask_without_a_legal_action_is_named():
    class Blocked(MaskedBanditEnv):
        def _draw(self):
            observation = super()._draw()
            if self._step == 2:
                observation[ACTION_MASK][:] = 0
            return observation

    made = rig.config("MaskedBanditEnv")
    with closing(SerialVec([MaskedBanditEnv, Blocked], 0, Domain.TRAINING_ENV)) as vec:
        actor = build.actor(made, vec, None)
        actor.start()
        with pytest.raises(EnvError, match="env 1 allows no action: its 'action_mask' is all false"):
            actor.collect()


def test_a_mask_without_a_legal_action_for_one_of_two_choices_is_named():
    class Blocked(CountingEnv):
        def __init__(self):
            super().__init__((9,))
            mask = Leaf("multi_binary", (5,), np.dtype(np.int8), categories=(2,) * 5)
            action = Leaf("multi_discrete", (2,), np.dtype(np.int64), categories=(2, 3))
            self.spec = dataclasses.replace(self.spec, observation={ACTION_MASK: mask, "room": action}, action=action)

        def step(self, action):
            assert action.tolist() == [1, 0]
            return super().step(0)

        def _observation(self):
            return {ACTION_MASK: np.array([0, 1, self._step != 2, 0, 0], np.int8), "room": np.zeros(2, np.int64)}

    with closing(SerialVec([Blocked], 0, Domain.TRAINING_ENV)) as vec:
        actor = build.actor(rig.config("MaskedBanditEnv"), vec, None)
        actor.start()
        with pytest.raises(EnvError, match=r"env 0 allows no action: .* is all false for choice 1 \(from 0\)"):
            actor.collect()


def test_the_action_log_keeps_what_fits_and_says_when_it_did_not():
    log = ActionLog(np.zeros((3, 2), np.float32), limit=24 * 200)
    everyone = np.arange(3)
    for row in range(150):
        log.append(everyone, np.full((3, 2), row, np.float32) + everyone[:, None])
    log.clear(np.array([1]))
    log.append(np.array([1]), np.full((1, 2), -1, np.float32))
    assert log.complete
    histories = log.actions()
    assert [len(history) for history in histories] == [150, 1, 150]
    assert np.array_equal(histories[2][:, 0], np.arange(150) + 2) and histories[1].tolist() == [[-1, -1]]
    other = ActionLog(np.zeros((3, 2), np.float32), limit=24 * 200)
    other.restore({name: array.copy() for name, array in log.state().items()})
    assert all(np.array_equal(one, two) for one, two in zip(histories, other.actions(), strict=True))
    other = ActionLog(np.zeros((3, 2), np.float32), limit=24 * 200)
    other.fill(histories)
    for row in range(150, 201):
        other.append(everyone, np.zeros((3, 2), np.float32))
        assert other.complete == (row < 200)
    other.clear(everyone)
    assert other.complete


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_the_end_of_an_episode_may_allow_nothing(algorithm):
    made = rig.config("tools.ailing:NothingLegalAtTheEnd", algorithm, unroll_length=30)
    with rig.parts(made) as (actor, learner):
        for _ in range(3):
            batch = actor.collect()
            learner.update(batch, 0.0)
            rig.hand_over(learner, actor)
        over = batch.truncated | batch.terminated
        masks = batch.observation["action_mask"]
        assert over.any() and masks[1:][over].all() and (masks[:-1][batch.valid] == [1, 0]).all()
    assert all(torch.isfinite(value).all() for value in learner.weights().values())
