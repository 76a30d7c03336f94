"""The actor over engines with habits of their own, and over envs that lose lives or are mended: nothing is lost or told
twice, in the order of each env."""

import functools
from contextlib import closing

import numpy as np
import pytest
import rig
from vec.engine_stand_ins import LENGTHS, CountingVector, FirstReadyEngine

from pronghorn import build
from pronghorn.envs.probes import CountingEnv, FaultyEnv
from pronghorn.seeding import Domain
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.vec.gymnasium_vector import VectorEngine
from pronghorn.vec.layout import make_vec
from pronghorn.vec.native import NativeVec

NUM_ENVS = 6


def engine(mode):
    return lambda: NativeVec(
        lambda count, batch: VectorEngine("counting", functools.partial(CountingVector, mode=mode), count),
        NUM_ENVS,
        3,
        Domain.TRAINING_ENV,
    )


def first_ready():
    return NativeVec(FirstReadyEngine, NUM_ENVS, 3, Domain.TRAINING_ENV, ready=2)


def ready(layout):
    return lambda: make_vec([CountingEnv] * NUM_ENVS, layout, 2, 3, Domain.TRAINING_ENV, ready=2)


class Rows:
    """The rows of one env as they come, column by column; checks that each follows from the one before."""

    def __init__(self, life=0):
        self.life, self.expected, self.total, self.ends = life, None, 0.0, 0

    def add(self, batch, column, length):
        if self.expected is not None:  # the last observation of a column is the first of the next
            assert (batch.observation[0, column].tolist(), bool(batch.first[0, column])) == self.expected
        for row in range(length):
            seed, step, total = batch.observation[row, column].astype(int).tolist()
            successor = batch.observation[row + 1, column].astype(int).tolist()
            over = step == LENGTHS[seed % 5]
            ended = bool(batch.terminated[row, column] | batch.truncated[row, column])
            assert batch.first[row, column] == (step == 0)
            assert batch.valid[row, column] == (not over)
            assert batch.first[row + 1, column] == over
            if over:
                assert successor[1:] == [0, 0] and batch.reward[row, column] == 0 and not ended
                continue
            step += 1
            assert successor == [seed, step, total + int(batch.action[row, column])]
            assert batch.reward[row, column] == step
            self.total = step if step == 1 else self.total + step
            last = step == LENGTHS[seed % 5]
            lost = not last and self.life > 0 and step % self.life == 0
            assert ended == (last or lost)
            assert batch.episode_length[row, column] == (step if last else 0)
            assert batch.episode_return[row, column] == (self.total if last else 0)
            self.ends += last
        self.expected = batch.observation[length, column].tolist(), bool(batch.first[length, column])


@pytest.mark.parametrize("whole", [False, True], ids=["unrolls", "episodes"])
@pytest.mark.parametrize(
    "make",
    [engine("NextStep"), engine("SameStep"), engine("Disabled"), first_ready, ready("serial"), ready("pool")],
    ids=["next step", "same step", "disabled", "first ready", "ready serial", "ready pool"],
)
def test_every_row_of_every_engine(make, whole):
    made = rig.config(num_envs=NUM_ENVS, **({"episodes_per_update": 6, "unroll_length": 8} if whole else {}))
    rows = [Rows() for _ in range(NUM_ENVS)]
    with closing(make()) as envs:
        actor, learner = build.actor(made, envs, PhaseTimers()), build.learner(made, envs.spec)
        rig.hand_over(learner, actor)
        actor.start()
        for _ in range(30):
            batch = actor.collect()
            for column, env in enumerate(batch.env.tolist()):
                if not whole:
                    rows[env].add(batch, column, 7)
                    continue
                length = int(batch.episode_length[:, column].max())
                rows[env].expected = None
                rows[env].add(batch, column, length)
        # Anew, with actions in flight.
        actor.start()
        assert actor.collect().valid.any()
    assert sum(row.ends for row in rows) > 100


def test_every_row_of_envs_that_lose_lives():
    made = rig.config("CountingEnv", env_args={"life": 2}, num_envs=4)
    rows = [Rows(life=2) for _ in range(4)]
    with rig.parts(made) as (actor, _):
        for _ in range(10):
            batch = actor.collect()
            for column, env in enumerate(batch.env.tolist()):
                rows[env].add(batch, column, 7)
            lost = (batch.terminated | batch.truncated) & (batch.episode_length == 0)
            assert lost.any() and batch.valid[1:][lost[:-1]].all()  # the game goes on
    assert all(row.ends > 3 for row in rows)


@pytest.mark.parametrize("layout", ["serial", "pool"])
def test_a_mended_env_leaves_an_invalid_row_without_an_end(layout, tmp_path):
    once = str(tmp_path / "once")
    factories = [CountingEnv, functools.partial(FaultyEnv, "raise", "step", 9, LENGTHS, once)]
    made = rig.config(num_envs=2, core="counting")
    crashed = 0
    with closing(make_vec(factories, layout, 2, 3, Domain.TRAINING_ENV)) as envs:
        actor, learner = build.actor(made, envs, PhaseTimers()), build.learner(made, envs.spec)
        rig.hand_over(learner, actor)
        actor.start()
        for _ in range(6):
            batch = actor.collect()
            over = batch.observation[:-1, :, 1] == np.take(LENGTHS, batch.observation[:-1, :, 0].astype(int) % 5)
            lost = ~batch.valid & ~over
            crashed += int(lost.sum())
            assert not lost[:, 0].any()
            assert not (batch.terminated | batch.truncated)[lost].any() and batch.first[1:][lost].all()
            assert not batch.reward[lost].any() and not batch.episode_length[lost].any()
    assert crashed == 1
