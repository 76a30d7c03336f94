"""Engines whose every answer is a whole number known beforehand, and the oracle that knows it."""

from collections import deque

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from pronghorn import tree
from pronghorn.envs.probes import CountingEnv
from pronghorn.seeding import Domain, episode_seed
from pronghorn.vec.native import Answer

LENGTHS = (3, 5, 1, 7, 4)
RUN_SEED = 11
FIRST_INDEX = 20


def seed_of(env, episode):
    return episode_seed(RUN_SEED, Domain.TRAINING_ENV, FIRST_INDEX + env, episode)


class Oracle:
    """What a counting env must answer: episode e+1 is seeded with the seed of episode e plus one.

    ``knows_final``: whether the engine hands out final observations.
    """

    def __init__(self, env, episode, knows_final=True):
        self._seed, self._episode, self._knows_final = seed_of(env, episode), episode, knows_final
        self._step, self._total, self.over = 0, 0, False

    def answer(self, action):
        """[seed, step, total, reward, terminated, truncated, valid, first, over, episode]; None answers a reset."""
        if self.over:
            self._seed, self._episode = self._seed + 1, self._episode + 1
            self._step, self._total, self.over, action = 0, 0, False, None
        if action is None:
            return [self._seed, 0, 0, 0, 0, 0, 0, 1, 0, self._episode]
        self._step, self._total = self._step + 1, self._total + action
        self.over = self._step == LENGTHS[self._seed % 5]
        ends = [self.over and self._seed % 2 == parity for parity in (0, 1)]
        seen = [self._seed, self._step, self._total]
        if self.over and not self._knows_final:
            seen, ends = [self._seed + 1, 0, 0], [1, 0]
        return [*seen, self._step, *ends, 1, 0, self.over, self._episode]


def as_rows(step):
    columns = (step.reward, step.terminated, step.truncated, step.valid, step.first, step.over, step.episode)
    observation = tree.leaves(step.observation)[0]
    return np.column_stack([observation, *columns]).astype(np.int64).tolist()


class CountingVector(gymnasium.vector.VectorEnv):
    """Counting envs in one of the three autoreset modes. ``nested``: observations are a Dict with a Tuple in it.

    ``final``: whether SAME_STEP tells final observations. ``fault``: what is wrong with env 1's second step.
    """

    def __init__(self, num_envs, mode="NextStep", nested=False, final=True, fault=None, declares=True):
        self.num_envs, self.mode, self._nested, self._final, self._fault = num_envs, mode, nested, final, fault
        self.metadata = {"autoreset_mode": AutoresetMode(mode)} if declares else {}
        flat = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        both = spaces.Dict({"a": flat, "b": spaces.Tuple((spaces.Discrete(9), spaces.Box(-9, 9, (2,), np.float32)))})
        self.single_observation_space = both if nested else flat
        self.single_action_space = spaces.Discrete(5)
        self._envs = [CountingEnv(LENGTHS) for _ in range(num_envs)]
        self._newest = np.zeros((num_envs, 3))
        self._ended = np.zeros(num_envs, bool)
        self._steps = 0
        self.closed_times = 0

    def reset(self, *, seed=None, options=None):
        mask = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        for env in np.flatnonzero(mask):
            assert options is None or self._ended[env], "reset although it has not ended"
            self._begin(env, None if seed is None else seed[env])
        self._ended[mask] = False
        return self._observation() if self._fault == "reset" else (self._observation(), {})

    def step(self, actions):
        assert self.mode != "Disabled" or not self._ended.any(), "stepped after its end"
        assert actions.shape == (self.num_envs,) and actions.dtype == np.int64
        self._steps += 1
        reward, terminated, truncated = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), bool)
        infos = {}
        for env, action in enumerate(actions.tolist()):
            if self._ended[env] and self.mode == "NextStep":
                self._begin(env, None)
                continue
            answer = self._envs[env].step(action)
            self._newest[env], reward[env], terminated[env], truncated[env] = answer[:4]
        if self._steps == 2 and self._fault == "reward":
            reward[1] = np.inf
        self._ended = terminated | truncated
        if self.mode == "SameStep":
            if self._final:
                final = self._observation()
                infos = {"final_obs": np.full(self.num_envs, None, object), "_final_obs": self._ended.copy()}
                for env in np.flatnonzero(self._ended):
                    infos["final_obs"][env] = tree.map(lambda array, env=env: array[env], final)
            for env in np.flatnonzero(self._ended):
                self._begin(env, None)
        answer = self._observation(), reward, terminated, truncated, infos
        if self._steps == 2 and self._fault == "four":
            return self._observation(), reward, terminated | truncated, infos
        if self._steps == 2 and self._fault == "flags":
            return self._observation(), reward, np.full(self.num_envs, None), truncated, infos
        if self._steps == 2 and self._fault == "kind":
            return self._observation().astype(str), *answer[1:]
        return answer

    def close(self):
        self.closed_times += 1

    def _begin(self, env, seed):
        self._newest[env] = self._envs[env].reset(seed=seed)[0]

    def _observation(self):
        observation = self._newest.copy()
        if self._steps == 2 and self._fault == "nan":
            observation[1, 2] = np.nan
        if self._steps == 2 and self._fault == "shape":
            observation = observation[:, :2]
        if not self._nested:
            return observation
        steps = observation[:, 1]
        return {"a": observation, "b": (steps.astype(np.int64), np.stack([steps, -steps], 1).astype(np.float32))}


class FirstReadyEngine:
    """``Engine`` that answers ``batch`` of the envs in flight, in a shuffled order."""

    def __init__(self, num_envs, batch):
        inner = CountingVector(num_envs)
        self.spec, self._batch, self.pausable = CountingEnv().spec, batch, batch == num_envs
        self._envs = [inner._envs[env] for env in range(num_envs)]
        self._waiting = deque()
        self._over = np.zeros(num_envs, bool)
        self._random = np.random.default_rng(5)

    def reset(self, seeds):
        self._over[:] = False
        self._waiting = deque((env, ("reset", int(seed))) for env, seed in enumerate(seeds))

    def send(self, actions, envs):
        assert not {env for env, _ in self._waiting} & set(envs.tolist())
        self._waiting.extend(zip(envs.tolist(), actions.tolist(), strict=True))

    @property
    def able(self):
        return len(self._waiting) >= self._batch

    def recv(self):
        self._random.shuffle(self._waiting)
        rows = [self._answer(*self._waiting.popleft()) for _ in range(self._batch)]
        envs, observation, reward, terminated, truncated, first = map(np.array, zip(*rows, strict=True))
        self._over[envs] = terminated | truncated
        return Answer(envs, observation, reward, terminated, truncated, terminated | truncated, first)

    def close(self):
        pass

    def _answer(self, env, action):
        if isinstance(action, tuple) or self._over[env]:
            observation, _ = self._envs[env].reset(seed=action[1] if isinstance(action, tuple) else None)
            return env, observation, 99.0, False, False, True  # the reward of a reset is nobody's
        return env, *self._envs[env].step(action)[:4], False
