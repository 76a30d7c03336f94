import functools
import time

import numpy as np
import pytest
from gymnasium import spaces

from pronghorn.envs.gymnasium import env_factory
from pronghorn.envs.probes import CountingEnv, FaultyEnv, MaskedBanditEnv
from pronghorn.envs.spaces import leaf_of_space
from pronghorn.seeding import Domain
from pronghorn.types import EnvSpec
from pronghorn.vec.base import EnvError
from pronghorn.vec.layout import choose, make_vec, random_actions
from pronghorn.vec.pool import PoolVec
from pronghorn.vec.serial import SerialVec


class Slow(CountingEnv):
    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


def test_choice_follows_the_step_time():
    layout, workers, reason = choose(Slow, 16, 4)
    assert (layout, workers) == ("pool", 4)
    assert "16 environments" in reason and "4 workers" in reason and "\n" not in reason
    assert choose(Slow, 3, 4)[:2] == ("pool", 3)
    assert choose(CountingEnv, 2, 4)[:2] == ("serial", 1)


@pytest.mark.parametrize(("num_envs", "cores"), [(16, 1), (1, 4)])
def test_nothing_to_share(num_envs, cores):
    assert choose(functools.partial(FaultyEnv, "raise", "construct"), num_envs, cores)[:2] == ("serial", 1)


def test_random_actions_are_legal():
    assert choose(MaskedBanditEnv, 16, 2)[0] in ("serial", "pool")
    assert choose(env_factory("Pendulum-v1", {}), 64, 2)[2]


def test_random_actions_are_legal_in_every_part_of_an_action():
    rng = np.random.default_rng(0)
    action = spaces.Dict(
        a=spaces.Tuple((spaces.MultiDiscrete([[2, 3], [4, 2]]), spaces.Box(0, 1))), b=spaces.Discrete(5)
    )
    spec = EnvSpec("e", {}, leaf_of_space(action, "a"))
    mask = rng.random((200, 16)) < 0.4
    starts = [0, 2, 5, 9, 11]
    mask[np.arange(200)[:, None], starts] |= ~np.logical_or.reduceat(mask, starts, axis=1)
    drawn = random_actions(spec, {"action_mask": mask.astype(np.int8)}, 200, rng)
    chosen = np.concatenate([drawn["a"][0].reshape(200, 4), drawn["b"][:, None]], 1) + starts
    assert drawn["a"][0].shape == (200, 2, 2) and mask[np.arange(200)[:, None], chosen].all()
    assert len(np.unique(chosen)) == 16  # all of them, sooner or later


def test_failures_pass():
    with pytest.raises(EnvError, match="out of order"):
        choose(functools.partial(FaultyEnv, "raise", "step", 3), 16, 2)


@pytest.mark.parametrize(("layout", "kind"), [("serial", SerialVec), ("pool", PoolVec)])
def test_make_vec(layout, kind):
    vec = make_vec([CountingEnv] * 3, layout, 2, 0, Domain.EVALUATION_ENV, groups=3, first_index=5)
    assert isinstance(vec, kind)
    vec.reset(np.zeros(3, np.int64))
    assert [vec.recv().envs.tolist() for _ in range(3)] == [[0], [1], [2]]
    vec.close()
