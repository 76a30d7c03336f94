"""The contract of ``BatchedEnv``, for any layout: ``make(factories, **options)`` builds one."""

import functools

import numpy as np

from pronghorn.envs.probes import CountingEnv
from pronghorn.seeding import Domain, episode_seed

LENGTHS = (3, 5, 1, 7, 4)
RUN_SEED = 11
FIRST_INDEX = 20


def counting(count, **arguments):
    return [functools.partial(CountingEnv, LENGTHS, **arguments)] * count


def seed_of(env, episode):
    return episode_seed(RUN_SEED, Domain.TRAINING_ENV, FIRST_INDEX + env, episode)


class Oracle:
    """What a counting env must answer, worked out without one."""

    def __init__(self, env, episode):
        self.env, self.episode, self.step, self.total, self.over = env, episode, 0, 0, False

    def answer(self, action):
        """[seed, step, total, reward, terminated, truncated, valid, first, episode]; None answers a reset."""
        if self.over:
            self.__init__(self.env, self.episode + 1)
            action = None
        seed = seed_of(self.env, self.episode)
        if action is not None:
            self.step += 1
            self.total += action
            self.over = self.step == LENGTHS[seed % 5]
        ends = [self.over and seed % 2 == parity for parity in (0, 1)]
        valid = action is not None
        return [seed, self.step, self.total, self.step if valid else 0, *ends, valid, not valid, self.episode]


def as_rows(step):
    columns = (step.reward, step.terminated, step.truncated, step.valid, step.first, step.episode)
    return np.column_stack([step.observation, *columns]).astype(np.int64).tolist()


def check_contract(make, num_envs, groups):
    """Groups sent round and round, then shuffled subsets, then resets with and without histories."""
    vec = make(counting(num_envs), groups=groups)
    assert vec.num_envs == num_envs
    random = np.random.default_rng(0)
    parts = np.array_split(np.arange(num_envs), groups)

    def check(step, oracles, actions):
        expected = [oracles[env].answer(action) for env, action in zip(step.envs.tolist(), actions, strict=True)]
        assert as_rows(step) == expected

    try:
        vec.reset(np.zeros(num_envs, np.int64))
        oracles = [Oracle(env, 0) for env in range(num_envs)]
        flying = [(part, [None] * len(part)) for part in parts]
        for _ in range(40):
            envs, actions = flying.pop(0)
            step = vec.recv()
            assert step.envs.tolist() == envs.tolist()
            check(step, oracles, actions)
            sent = random.integers(0, 5, len(envs))
            vec.send(sent, step.envs)
            step.envs[:] = -1  # the receiver's own
            flying.append((envs, sent.tolist()))
        for _, actions in flying:
            check(vec.recv(), oracles, actions)

        for _ in range(10):  # any subset, in any order, several in flight
            pieces = np.array_split(random.permutation(num_envs), min(3, num_envs))
            sent = [random.integers(0, 5, len(piece)) for piece in pieces]
            for piece, actions in zip(pieces, sent, strict=True):
                vec.send(actions, piece)
            for piece, actions in zip(pieces, sent, strict=True):
                step = vec.recv()
                assert step.envs.tolist() == piece.tolist()
                check(step, oracles, actions.tolist())

        vec.send(np.zeros(1, np.int64), np.array([0]))
        try:
            vec.send(np.zeros(1, np.int64), np.array([0]))
        except ValueError as error:
            assert "in flight" in str(error)
        else:
            raise AssertionError("sent twice")

        episodes = 100 + np.arange(num_envs)  # with one still in flight
        oracles = [Oracle(env, episode) for env, episode in enumerate(episodes.tolist())]
        histories = []
        for env, oracle in enumerate(oracles):
            length = LENGTHS[seed_of(env, oracle.episode) % 5]
            history = random.integers(0, 5, env % (length + 1))
            histories.append(history)
            for action in history.tolist():
                oracle.answer(action)
        vec.reset(episodes, histories)
        for _ in parts:
            step = vec.recv()
            for env, row in zip(step.envs.tolist(), as_rows(step), strict=True):
                oracle = oracles[env]
                empty = len(histories[env]) == 0
                seed = seed_of(env, oracle.episode)
                assert row == [seed, oracle.step, oracle.total, 0, 0, 0, 0, empty, oracle.episode]
        for _ in range(12):
            actions = random.integers(0, 5, num_envs)
            vec.send(actions, np.arange(num_envs))
            check(vec.recv(), oracles, actions.tolist())
    finally:
        vec.close()
    vec.close()
