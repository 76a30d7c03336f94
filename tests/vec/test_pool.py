import functools
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from vec.vec_contract import FIRST_INDEX, RUN_SEED, check_contract, counting

from pronghorn.envs.base import Env
from pronghorn.envs.gymnasium import env_factory
from pronghorn.envs.probes import BanditEnv, CountingEnv, FaultyEnv
from pronghorn.seeding import Domain
from pronghorn.types import UserError
from pronghorn.vec.base import EnvError, Timeouts
from pronghorn.vec.pool import PoolVec


def make(factories, workers=2, **options):
    return PoolVec(factories, RUN_SEED, Domain.TRAINING_ENV, first_index=FIRST_INDEX, workers=workers, **options)


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def open_fds():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def nothing_left():
    before = open_fds(), children()
    yield
    assert (open_fds(), children()) == before


def drive(vec, steps=10):
    vec.reset(np.zeros(vec.num_envs, np.int64))
    for _ in range(steps):
        step = vec.recv()
        vec.send(np.zeros(len(step.envs), np.int64), step.envs)


@pytest.mark.parametrize(("num_envs", "workers", "groups"), [(5, 1, 1), (5, 2, 1), (7, 2, 2), (7, 3, 2), (2, 3, 1)])
def test_contract(num_envs, workers, groups):
    check_contract(functools.partial(make, workers=workers), num_envs, groups)


@pytest.mark.parametrize("phase", ["construct", "reset", "step"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"env 23: RuntimeError in {phase}.*: out of order\n(.|\n)*Traceback(.|\n)*_fail"),
        ("die", "env 23: its worker exited with code 7 in {phase}"),
        ("hang", "env 23: its worker gave no answer for 0.4 s and was killed in {phase}"),
    ],
)
def test_failures_are_named_in_time(fault, phase, message):
    seconds = {"construct": 10.0, "reset": 10.0, "step": 10.0} | ({phase: 0.4} if phase != "construct" else {})
    if (fault, phase) == ("hang", "construct"):
        seconds["construct"], message = 1.5, message.replace("0.4", "1.5")
    factories = [*counting(3), functools.partial(FaultyEnv, fault, phase), *counting(2)]
    start = time.monotonic()
    vec = None
    try:
        with pytest.raises(EnvError) as caught:
            vec = make(factories, timeouts=Timeouts(**seconds))
            drive(vec)
        assert re.match(message.format(phase=phase), str(caught.value)), str(caught.value)
        assert time.monotonic() - start < 5
    finally:
        if vec:
            vec.close()


def test_killed_worker():
    vec = make(counting(4))
    drive(vec, 3)
    vec.recv()  # so that it is between two steps
    pid = vec._workers[1].child.process.pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvError, match=r"envs 21, 23: their worker died with signal 9 \(out of memory\?\) between"):
        drive(vec, 3)
    vec.close()


def test_a_stopped_worker_is_noticed():
    vec = make(counting(4), timeouts=Timeouts(step=0.5))
    drive(vec, 3)
    vec.recv()
    os.kill(vec._workers[0].child.process.pid, signal.SIGSTOP)
    vec.send(np.zeros(4, np.int64), np.arange(4))
    start = time.monotonic()
    with pytest.raises(EnvError, match=r"envs 20, 22: their worker gave no answer for 0\.5 s"):
        vec.recv()
    assert time.monotonic() - start < 10  # not the 30 s of the default, however busy the machine
    vec.close()


def test_idleness_is_no_hang():
    vec = make(counting(2), timeouts=Timeouts(reset=0.3, step=0.3))
    drive(vec, 2)
    time.sleep(0.5)
    vec.recv()
    vec.close()


def test_slow_envs_of_one_worker_do_not_add_up_to_a_hang():
    class Slow(CountingEnv):
        def step(self, action):
            time.sleep(0.2)
            return super().step(action)

    vec = make([functools.partial(Slow, (9,))] * 4, workers=1, timeouts=Timeouts(step=0.4))
    drive(vec, 2)
    assert vec.recv().valid.all()
    vec.close()


def test_user_errors_come_as_one_line():
    with pytest.raises(UserError, match=r"^there is no environment 'CartPol-v1'; did you mean CartPole-v1\?$"):
        make([env_factory("CartPol-v1", {})] * 4)


def test_different_specs_are_refused():
    with pytest.raises(EnvError, match="env 22 differs from env 20"):
        make([*counting(2), BanditEnv])


def test_hung_close_is_killed(monkeypatch):
    class Clinging(CountingEnv):
        def close(self):
            time.sleep(600)

    monkeypatch.setattr("pronghorn.vec.pool.CLOSE_TIMEOUT", 0.3)
    vec = make([Clinging] * 2)
    start = time.monotonic()
    vec.close()
    assert time.monotonic() - start < 3


def test_workers_are_light_and_survive_ctrl_c():
    class Modules(CountingEnv):
        def reset(self, *, seed=None, options=None):
            return np.array([name in sys.modules for name in ("torch", "numpy", "tensorboard")], np.float64), {}

    env: Env = Modules()
    assert env.reset()[0].shape == (3,)
    vec = make([Modules] * 3)
    vec.reset(np.zeros(3, np.int64))
    assert vec.recv().observation.tolist() == [[0, 1, 0]] * 3
    for worker in vec._workers:
        assert "libtorch" not in Path(f"/proc/{worker.child.process.pid}/maps").read_text()
        os.kill(worker.child.process.pid, signal.SIGINT)
    vec.send(np.zeros(3, np.int64), np.arange(3))
    assert vec.recv().valid.all()
    vec.close()


def test_descriptors_are_flat():
    before = open_fds()
    for _ in range(20):
        vec = make(counting(1), workers=1)
        drive(vec, 2)
        vec.close()
        vec.close()
        assert open_fds() == before


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_as_many_workers_as_cores_have_one_each():
    cores = sorted(os.sched_getaffinity(0))
    for workers in (len(cores), len(cores) + 1):
        pool = PoolVec(counting(workers), RUN_SEED, Domain.TRAINING_ENV, workers=workers)
        try:
            found = [sorted(os.sched_getaffinity(worker.child.process.pid)) for worker in pool._workers]
        finally:
            pool.close()
        assert found == ([[core] for core in cores] if workers == len(cores) else [cores] * workers)
