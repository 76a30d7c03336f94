import dataclasses
import functools

import numpy as np
import pytest
from vec.vec_contract import FIRST_INDEX, RUN_SEED, check_contract, counting

from pronghorn.envs.probes import BanditEnv, CountingEnv, FaultyEnv
from pronghorn.processes.supervise import Supervisor
from pronghorn.seeding import Domain
from pronghorn.types import Leaf, UserError
from pronghorn.vec.base import EnvError
from pronghorn.vec.serial import SerialVec


def make(factories, **options):
    return SerialVec(factories, RUN_SEED, Domain.TRAINING_ENV, first_index=FIRST_INDEX, **options)


@pytest.mark.parametrize(("num_envs", "groups"), [(1, 1), (5, 1), (6, 2)])
def test_contract(num_envs, groups):
    check_contract(make, num_envs, groups)


def test_failures_name_the_env():
    faulty = functools.partial(FaultyEnv, "raise")
    with pytest.raises(EnvError, match="env 22: RuntimeError in construct: out of order"):
        make([*counting(2), functools.partial(faulty, "construct")], supervisor=Supervisor("fail"))
    vec = make([*counting(1), functools.partial(faulty, "step", 1, (9,))], supervisor=Supervisor("fail"))
    vec.reset(np.zeros(2, np.int64))
    vec.recv()
    vec.send(np.zeros(2, np.int64), np.arange(2))
    vec.recv()
    vec.send(np.zeros(2, np.int64), np.arange(2))
    with pytest.raises(EnvError, match=r"env 21: RuntimeError in step \(episode 0, after 1 steps\)"):
        vec.recv()
    vec.close()


@pytest.mark.parametrize("phase", ["reset", "step"])
def test_what_is_not_finite_is_named(phase):
    vec = make([*counting(2), functools.partial(FaultyEnv, "nan", phase), *counting(1)])
    vec.reset(np.zeros(4, np.int64))
    with pytest.raises(
        UserError, match=rf"^env 22 in {phase} \(episode 0, after 0 steps\): observation is not finite$"
    ):
        for _ in range(2):
            vec.send(np.zeros(4, np.int64), vec.recv().envs)
    vec.close()


def test_an_env_may_keep_its_actions():
    kept = []

    class Keeping(CountingEnv):
        def __init__(self):
            super().__init__((9,))
            bounds = {"low": np.full(2, -1.0), "high": np.ones(2)}
            self.spec = dataclasses.replace(self.spec, action=Leaf("box", (2,), np.dtype(np.float32), **bounds))

        def step(self, action):
            kept.append((action, action.tolist()))
            return super().step(0)

    vec = make([Keeping] * 2)
    vec.reset(np.zeros(2, np.int64))
    for count in range(4):
        vec.send(np.full((2, 2), count / 4, np.float32), vec.recv().envs)
    vec.recv()
    assert [values for _, values in kept] == [[count / 4] * 2 for count in range(4) for _ in range(2)]
    assert [action.tolist() for action, _ in kept] == [values for _, values in kept]
    vec.close()


def test_what_fails_again_while_it_is_built_anew_is_told(tmp_path):
    closed, incidents = [], []

    class Broken(FaultyEnv):
        def __init__(self):
            if (tmp_path / "once").exists() and len(incidents) < 3:
                raise ValueError("not yet")
            super().__init__("raise", "step", 1, (9,), str(tmp_path / "once"))

        def close(self):
            closed.append(self)
            raise SystemExit

    vec = make([*counting(1), Broken], supervisor=Supervisor(report=incidents.append))
    vec.reset(np.zeros(2, np.int64))
    for _ in range(3):
        vec.send(np.zeros(2, np.int64), vec.recv().envs)
    causes = [(incident.phase, incident.cause.rpartition(": ")[2]) for incident in incidents]
    assert causes == [("step", "out of order"), ("construct", "not yet"), ("construct", "not yet")]
    assert closed
    vec.close()
    assert incidents[-1].phase == "close" and incidents[-1].lost == ()


def test_different_specs_are_refused():
    with pytest.raises(EnvError, match=r"env 21 differs from env 20 in .*: "):
        make([*counting(1), BanditEnv])


def test_user_error_closes_what_was_made():
    closed = []

    def closing():
        env = counting(1)[0]()
        env.close = lambda: closed.append(1)
        return env

    def mistaken():
        raise UserError("no")

    with pytest.raises(UserError):
        make([closing, closing, mistaken])
    assert closed == [1, 1]
