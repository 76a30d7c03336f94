import dataclasses
import functools
import sys

import numpy as np
import pytest
from envs.one_env import OneEnv

from pronghorn import seeding
from pronghorn.envs.base import ContractError
from pronghorn.envs.probes import CountingEnv, FaultyEnv, MaskedBanditEnv
from pronghorn.envs.wrappers import conformer
from pronghorn.processes.supervise import PHASES
from pronghorn.seeding import Domain, episode_seed
from pronghorn.types import Leaf, UserError
from pronghorn.vec.base import EnvError

LENGTHS = (3, 5, 1, 7, 4)


def episode_env(factory=CountingEnv, index=2, **arguments):
    return OneEnv(factory, 5, Domain.TRAINING_ENV, index, **arguments)


def test_rows_of_three_episodes():
    env = episode_env(index=4)
    row = env.begin(0)
    for episode in range(3):
        seed = episode_seed(5, Domain.TRAINING_ENV, 4, episode)
        length = LENGTHS[seed % 5]
        assert row.observation.tolist() == [seed, 0, 0]
        assert row[1:] == (0.0, False, False, False, True, False, episode)
        for t in range(1, length + 1):
            row = env.step(np.int64(t % 5))
            assert row.observation.tolist() == [seed, t, sum(k % 5 for k in range(t + 1))]
            assert row.reward == t
            over = t == length
            assert (row.terminated, row.truncated) == (over and seed % 2 == 0, over and seed % 2 == 1)
            assert (row.valid, row.first, row.over, row.episode) == (True, False, over, episode)
        row = env.step(np.int64(1))


def test_both_flags_stay_both():
    env = episode_env(functools.partial(CountingEnv, (1,), "both"))
    env.begin(0)
    row = env.step(0)
    assert row.terminated and row.truncated


def test_begin_replays_history_and_keeps_the_reset_pending():
    env = episode_env(functools.partial(CountingEnv, (4,)))
    row = env.begin(6, [1, 2, 3])
    seed = episode_seed(5, Domain.TRAINING_ENV, 2, 6)
    assert row.observation.tolist() == [seed, 3, 6]
    assert row[1:] == (0.0, False, False, False, False, False, 6)
    assert env.step(4).reward == 4

    row = env.begin(6, [1, 2, 3, 4])
    assert row.observation.tolist() == [seed, 4, 10]
    assert not row.first
    row = env.step(0)
    assert (row.first, row.valid, row.episode, row.reward) == (True, False, 7, 0)
    assert row.observation[1] == 0


@pytest.mark.parametrize("phase", ["construct", "reset", "step"])
def test_blame(phase):
    notes = []
    with pytest.raises(EnvError, match=f"env 2: RuntimeError in {phase}.*out of order") as caught:
        env = episode_env(
            functools.partial(FaultyEnv, "raise", phase, 1 if phase != "construct" else 0), note=notes.append
        )
        env.begin(3)
        env.step(0)
        env.begin(4)
        env.step(0)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert PHASES[notes[-1]] == phase
    if phase == "reset":
        assert "episode 4, after 0 steps" in str(caught.value)


class Answers:
    """Answers ``step`` and ``reset`` with whatever it is told to."""

    def __init__(self, step=None, reset=None):
        self.spec = CountingEnv().spec
        self.step = lambda action: step
        self._reset = (np.zeros(3), {}) if reset is None else reset

    def reset(self, *, seed=None, options=None):
        return self._reset


GOOD = np.zeros(3)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ((GOOD, 1.0, False, {}), "as Gym did before 0.26"),
        ((GOOD, 1.0, False), "step must return"),
        ((np.zeros(2), 1.0, False, False, {}), r"shape \(2,\), its space says \(3,\)"),
        (({"x": 1}, 1.0, False, False, {}), "shape"),
        (([[1], [1, 2], 3], 1.0, False, False, {}), "observation is not an array"),
        ((np.array([None, 1, 2]), 1.0, False, False, {}), "observation is object, its space says float64"),
        ((np.array(["1", "2", "3"]), 1.0, False, False, {}), "observation is <U1, its space says float64"),
        ((None, 1.0, False, False, {}), r"shape \(\), its space says \(3,\)"),
        (None, "step must return"),
        ((GOOD, None, False, False, {}), "reward must be a real number"),
        ((GOOD, np.zeros(1), False, False, {}), "reward must be a real number"),
        ((GOOD, 1j, False, False, {}), "reward must be a real number"),
        ((GOOD, 1.0, 1, False, {}), "terminated must be a bool"),
        ((GOOD, 1.0, False, None, {}), "truncated must be a bool"),
    ],
)
def test_answers_that_break_the_contract(step, message):
    env = episode_env(lambda: Answers(step))
    env.begin(0)
    with pytest.raises(UserError, match=f"env 2 in .*{message}"):
        env.step(0)


@pytest.mark.parametrize(
    ("step", "what"),
    [((np.array([0, np.nan, 0]), 1.0, False, False, {}), "observation"), ((GOOD, np.inf, False, False, {}), "reward")],
)
def test_what_is_not_finite_is_refused(step, what):
    env = episode_env(lambda: Answers(step))
    env.begin(3)
    with pytest.raises(UserError, match=rf"env 2 in step \(episode 3, after 0 steps\): {what} is not finite"):
        env.advance()


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"room": 4, "doors": [[5, 1]]}, "observation 'room' is 4, outside its space, discrete"),
        ({"room": -1, "doors": [[5, 1]]}, "observation 'room' is -1, outside its space"),
        ({"room": 3, "doors": [[5, 2]]}, r"observation 'doors' is \[\[5, 2\]\], outside its space, multi_discrete"),
        ({"room": 0, "doors": [[4, 0]]}, r"observation 'doors' is \[\[4, 0\]\], outside its space"),
    ],
)
def test_a_choice_outside_its_space_is_refused(observation, message):
    class Rooms(CountingEnv):
        def __init__(self):
            super().__init__((9,))
            room = Leaf("discrete", (), np.dtype(np.int64), categories=(4,))
            doors = Leaf("multi_discrete", (1, 2), np.dtype(np.int8), categories=(3, 2), start=np.array([[5, 0]]))
            self.spec = dataclasses.replace(self.spec, observation={"room": room, "doors": doors})

        def _observation(self):
            return {"room": 3, "doors": [[7, 1]]} if self._step < 2 else observation

    env = episode_env(Rooms)
    env.begin(3)
    env.advance()
    with pytest.raises(UserError, match=rf"env 2 in step \(episode 3, after 1 steps\): {message}"):
        env.advance()


def test_a_lost_life_is_an_end_but_not_over():
    env = episode_env(functools.partial(CountingEnv, (6,), "truncated", life=2))
    env.begin(0)
    ends = [env.step(0)[2:] for _ in range(7)]
    alive, lost = (False, False, False, False, True, 0), (True, False, False, False, True, 0)
    assert ends == [alive, lost, alive, lost, alive, (False, True, True, False, True, 0), (*alive[:3], True, False, 1)]


@pytest.mark.parametrize("reset", [np.zeros(3), (np.zeros(3), 0), (np.zeros(3), {}, {})])
def test_reset_that_breaks_the_contract(reset):
    with pytest.raises(UserError, match=r"env 2 in reset.*reset must return"):
        episode_env(lambda: Answers(reset=reset)).begin(0)


def test_accepts_numpy_scalars():
    env = episode_env(lambda: Answers((np.ones(3, np.float32), np.float32(2), np.bool_(True), np.array(False), {})))
    env.begin(0)
    row = env.step(0)
    assert row.observation.dtype == np.float64
    assert (row.reward, row.terminated, row.truncated) == (2.0, True, False)


@pytest.mark.parametrize("reward", [np.float16(2), np.int32(2), np.array(2), np.array(2.0), 2, np.uint8(2)])
def test_rewards_of_every_kind(reward):
    env = episode_env(lambda: Answers((GOOD, reward, False, False, None)))
    env.begin(0)
    assert env.step(0).reward == 2.0


def test_a_reward_of_truth():
    env = episode_env(lambda: Answers((GOOD, np.bool_(True), False, np.bool_(True), None)))
    env.begin(0)
    row = env.step(0)
    assert (row.reward, row.truncated, row.over) == (1.0, True, True)


def test_an_env_that_exits_is_blamed():
    with pytest.raises(EnvError, match="env 2: SystemExit in construct: 3"):
        episode_env(lambda: sys.exit(3))


def test_user_errors_pass():
    def mistaken():
        raise UserError("no such thing")

    with pytest.raises(UserError, match=r"^no such thing$"):
        episode_env(mistaken)


def test_conformer():
    image = Leaf("box", (2,), np.dtype(np.uint8), low=np.zeros(2), high=np.full(2, 255.0))
    vector = Leaf("box", (1,), np.dtype(np.float32), low=np.zeros(1), high=np.ones(1))
    conform = conformer({"a": image, "b": (vector,)})
    done = conform({"b": [[0.5]], "a": np.array([3, 255]), "extra": 1})
    assert done["a"].dtype == np.uint8 and done["a"].tolist() == [3, 255]
    assert isinstance(done["b"], tuple) and done["b"][0].dtype == np.float32
    for wrong, message in [
        ({"a": np.array([3, 256]), "b": ([0.5],)}, "observation 'a' is int64, its space says uint8"),
        ({"a": np.array([3.5, 2]), "b": ([0.5],)}, "observation 'a' is float64"),
        ({"a": np.array([3, 2])}, "observation has no 'b', its space has"),
        ({"a": np.array([3, 2]), "b": ()}, "not nested"),
    ]:
        with pytest.raises(ValueError, match=message):
            conform(wrong)
    small = Leaf("box", (1,), np.dtype(np.int8), low=np.full(1, -9.0), high=np.full(1, 9.0))
    assert conformer(small)(np.array([-3])).tolist() == [-3]
    with pytest.raises(ContractError, match="observation is int64, its space says int8"):
        conformer(small)(np.array([300]))  # not 44, which is what int8 would make of it
    with pytest.raises(ContractError, match=r"observation has shape \(2,\)"):
        conformer(vector)([0.5, 0.5])


def test_masked_bandit_refuses_the_illegal():
    env = episode_env(MaskedBanditEnv)
    row = env.begin(0)
    mask = row.observation["action_mask"]
    assert mask.sum() == 3 and mask[row.observation["context"].argmax()] == 1
    assert env.step(int(row.observation["context"].argmax())).reward == 1
    with pytest.raises(EnvError, match="is illegal"):
        env.begin(0)
        env.step(int(np.flatnonzero(mask == 0)[0]))


def test_runs_with_neighbouring_seeds_share_no_stream():
    streams = [
        {episode_seed(run, domain, env, episode) for env in range(64) for episode in range(16)}
        for run in (0, 1)
        for domain in (seeding.Domain.TRAINING_ENV, seeding.Domain.EVALUATION_ENV)
    ]
    assert all(len(stream) == 64 * 16 for stream in streams)
    assert len(set.union(*streams)) == 4 * 64 * 16
