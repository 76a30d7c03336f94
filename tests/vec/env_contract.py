"""What every adapter must keep, held against real simulators: ``check_env_contract(make_vec)``."""

import hashlib

import numpy as np

from pronghorn import tree
from pronghorn.types import ACTION_MASK


def check_env_contract(make_vec, rounds=120, num_envs=3, fair=True):
    """``make_vec(num_envs, run_seed)`` makes a ``BatchedEnv``; every env must end an episode within ``rounds``.

    Not ``fair``: some envs may hardly get their turn, as nobody waits for them; most must end an episode.
    """
    rows, again, others = (play(make_vec, num_envs, seed, rounds, fair) for seed in (3, 3, 4))
    for env in range(num_envs):
        length = min(len(rows[env]), len(again[env]))
        assert rows[env][:length] == again[env][:length], f"env {env}: same seed, other rows"
    assert rows != others, "another seed, same rows"


def play(make_vec, num_envs, run_seed, rounds, fair):
    """Each env's rows as digests. Every env gets the same actions in every run."""
    vec = make_vec(num_envs, run_seed)
    try:
        return _rows(vec, num_envs, rounds, fair)
    finally:
        vec.close()
        vec.close()


def _rows(vec, num_envs, rounds, fair):
    spec = vec.spec
    assert vec.num_envs == num_envs
    generators = [np.random.default_rng(env) for env in range(num_envs)]
    played = [[] for _ in range(num_envs)]
    episode, length, over = np.full(num_envs, 5), np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)
    begun, ends = np.zeros(num_envs, bool), np.zeros(num_envs, np.int64)
    vec.reset(np.full(num_envs, 5))
    for _ in range(rounds):
        step = vec.recv()
        envs = step.envs
        count = len(envs)
        assert len(set(envs.tolist())) == count > 0 and envs.dtype == np.int64
        _check_leaves(spec, step.observation, count)
        assert step.reward.shape == (count,) and step.reward.dtype == np.float64 and np.isfinite(step.reward).all()
        for flag in (step.first, step.terminated, step.truncated, step.valid, step.over):
            assert flag.shape == (count,) and flag.dtype == np.bool_
        # A row begins an episode where the last one was over, and at the start; nothing else is invalid.
        assert (step.first == (over[envs] | ~begun[envs])).all() and (step.valid == ~step.first).all()
        assert not step.reward[step.first].any() and not (step.ended | step.over)[step.first].any()
        assert not (step.over & ~step.ended).any() and not (step.truncated & ~step.over).any()
        episode[envs] += over[envs]
        assert (step.episode == episode[envs]).all()
        length[envs] = np.where(step.first, 0, length[envs] + 1)
        if spec.max_episode_steps is not None:
            at_limit = length[envs] == spec.max_episode_steps
            assert (length[envs] <= spec.max_episode_steps).all() and step.over[at_limit].all()
            assert at_limit[step.truncated].all()
        over[envs], begun[envs], ends[envs] = step.over, True, ends[envs] + step.over
        for row, env in enumerate(envs.tolist()):
            played[env].append(_digest(step, row))
        vec.send(_actions(spec, step.observation, [generators[env] for env in envs]), envs)
    assert np.sum(ends > 0) >= (num_envs if fair else num_envs / 2), f"episodes ended per env: {ends.tolist()}"
    return played


def _check_leaves(spec, observation, count):
    names = tree.named(spec.observation)
    found = tree.named(observation)
    assert names.keys() == found.keys()
    for name, leaf in names.items():
        array = found[name]
        assert array.shape == (count, *leaf.shape) and array.dtype == leaf.dtype, name
        if leaf.kind == "box":
            assert np.isfinite(array).all() and (array >= leaf.low).all() and (array <= leaf.high).all(), name


def _digest(step, row):
    observation = b"".join(np.ascontiguousarray(array[row]).tobytes() for array in tree.leaves(step.observation))
    rest = (step.reward[row], step.terminated[row], step.truncated[row], step.first[row], step.episode[row])
    return hashlib.sha256(observation).hexdigest(), *(value.item() for value in rest)


def _actions(spec, observation, generators):
    assert not (isinstance(observation, dict) and ACTION_MASK in observation), "masks are not respected here"

    def draw(leaf):
        if leaf.kind == "box":
            return np.stack([g.uniform(-1, 1, leaf.shape) for g in generators]).astype(np.float32)
        return np.stack([g.integers(0, np.reshape(leaf.categories, leaf.shape)) for g in generators])

    return tree.map(draw, spec.action)
