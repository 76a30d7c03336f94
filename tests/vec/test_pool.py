import functools
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from vec.vec_contract import FIRST_INDEX, LENGTHS, RUN_SEED, Oracle, as_rows, check_contract, counting, seed_of

from pronghorn.envs.base import Env
from pronghorn.envs.gymnasium import env_factory
from pronghorn.envs.probes import BanditEnv, CountingEnv, FaultyEnv
from pronghorn.processes.supervise import Supervisor
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


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("phase", ["construct", "reset", "step"])
@pytest.mark.parametrize("fault", ["raise", "kill", "hang"])
def test_failures_are_mended(fault, phase, groups, tmp_path):
    """Every row as an integer, before and after: what failed answers with the first observation of another episode."""
    seconds = {"construct": 10.0, "reset": 10.0, "step": 10.0} | ({phase: 0.4} if phase != "construct" else {})
    if (fault, phase) == ("hang", "construct"):
        seconds["construct"] = 1.5
    once = tmp_path / "once"
    at = {"construct": 0, "reset": 1, "step": 3}[phase]
    faulty = functools.partial(FaultyEnv, fault, phase, at, LENGTHS, str(once))
    incidents = []
    supervisor = Supervisor(report=lambda incident: incidents.append((time.monotonic(), incident)))
    start = time.monotonic()
    vec = make([*counting(3), faulty, *counting(2)], groups=groups, timeouts=Timeouts(**seconds), supervisor=supervisor)
    noticed = []
    oracles = [Oracle(env, 0) for env in range(6)]
    actions: dict[int, list[int | None]] = {env: [None] for env in range(6)}
    try:
        vec.reset(np.zeros(6, np.int64))
        random = np.random.default_rng(0)
        for _ in range(60 * groups):
            step = vec.recv()
            for env, found in zip(step.envs.tolist(), as_rows(step), strict=True):
                oracle, action = oracles[env], actions[env].pop()
                wanted = oracle.answer(action)
                if found != wanted:  # only once for every env that was lost, and then as a reset without an end
                    noticed.append(env)
                    oracle.over = True
                    oracle.episode = found[-1] - 1
                    assert found == oracle.answer(0)
                actions[env].append(int(random.integers(0, 5)))
            vec.send(np.array([actions[env][0] for env in step.envs.tolist()]), step.envs)
    finally:
        vec.close()
    assert once.exists() and len(incidents) == 1
    at, incident = incidents[0]
    assert at - start < 5 and (incident.env, incident.phase) == (FIRST_INDEX + 3, phase)
    assert ("out of order" in incident.cause) == (fault == "raise") == ("_fail" in incident.trace)
    assert ("signal 9" in incident.cause) == (fault == "kill")
    assert ("gave no answer for" in incident.cause) == (fault == "hang")
    with_it = {FIRST_INDEX + 3} if fault == "raise" else set(incident.lost)
    assert set(incident.lost) == with_it and (fault == "raise" or len(with_it) == 3)
    if phase == "step":  # every env that is named has lost an episode, and no other
        assert sorted(FIRST_INDEX + env for env in noticed) == sorted(incident.lost)


def test_a_worker_killed_between_two_steps_takes_all_its_episodes():
    incidents = []
    vec = make(counting(4), supervisor=Supervisor(report=incidents.append))
    vec.reset(np.zeros(4, np.int64))
    vec.recv()
    os.kill(vec._workers[1].child.process.pid, signal.SIGKILL)
    vec.send(np.zeros(4, np.int64), np.arange(4))
    step = vec.recv()
    assert step.first.tolist() == [False, False, True, True] and step.valid.tolist() == [True, True, False, False]
    assert step.episode.tolist() == [0, 0, 1, 1] and not step.ended[2:].any() and not step.reward[2:].any()
    assert step.observation[2:, 0].tolist() == [seed_of(2, 1), seed_of(3, 1)]
    assert incidents[0].lost == (22, 23) and incidents[0].env == -1
    vec.close()


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_beyond_the_budget_it_ends_loudly(fault):
    incidents = []
    supervisor = Supervisor(restarts=2, report=incidents.append)
    vec = make([*counting(1), functools.partial(FaultyEnv, fault, "step", 1, (9,))], supervisor=supervisor)
    with pytest.raises(EnvError, match=r"env 21: .*\(after 2 restarts within an hour; --env-restarts allows 2\)"):
        drive(vec, 20)
    assert len(incidents) == 2
    vec.close()


def test_the_first_to_be_ready_come_first():
    class Uneven(CountingEnv):
        def __init__(self, seconds):
            super().__init__(LENGTHS)
            self.seconds = seconds

        def step(self, action):
            time.sleep(self.seconds)
            return super().step(action)

    vec = make([functools.partial(Uneven, 0.3 if env == 2 else 0.001) for env in range(6)], ready=2, workers=2)
    oracles = [Oracle(env, 0) for env in range(6)]
    actions: dict[int, int | None] = dict.fromkeys(range(6))
    counts = np.zeros(6, np.int64)
    vec.reset(np.zeros(6, np.int64))
    random = np.random.default_rng(0)
    for _ in range(60):
        step = vec.recv()
        assert len(step.envs) == 2
        assert as_rows(step) == [oracles[env].answer(actions[env]) for env in step.envs.tolist()]
        counts[step.envs] += 1
        sent = random.integers(0, 5, 2)
        actions |= zip(step.envs.tolist(), sent.tolist(), strict=True)
        vec.send(sent, step.envs)
    assert counts[2] < counts[3] and counts.sum() == 120
    vec.close()


@pytest.mark.parametrize("phase", ["construct", "reset", "step"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"env 23: RuntimeError in {phase}.*: out of order \(--env-errors.*\)\n(.|\n)*Traceback(.|\n)*_fail"),
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
            vec = make(factories, timeouts=Timeouts(**seconds), supervisor=Supervisor("fail"))
            drive(vec)
        assert re.match(message.format(phase=phase), str(caught.value)), str(caught.value)
        assert time.monotonic() - start < 5
    finally:
        if vec:
            vec.close()


def test_killed_worker():
    vec = make(counting(4), supervisor=Supervisor("fail"))
    drive(vec, 3)
    vec.recv()  # so that it is between two steps
    pid = vec._workers[1].child.process.pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvError, match=r"envs 22, 23: their worker died with signal 9 \(out of memory\?\) between"):
        drive(vec, 3)
    vec.close()


def test_a_stopped_worker_is_noticed():
    vec = make(counting(4), timeouts=Timeouts(step=0.5), supervisor=Supervisor("fail"))
    drive(vec, 3)
    vec.recv()
    os.kill(vec._workers[0].child.process.pid, signal.SIGSTOP)
    vec.send(np.zeros(4, np.int64), np.arange(4))
    start = time.monotonic()
    with pytest.raises(EnvError, match=r"envs 20, 21: their worker gave no answer for 0\.5 s"):
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


def test_hung_close_is_killed():
    class Clinging(CountingEnv):
        def close(self):
            time.sleep(600)

    incidents = []
    vec = make([Clinging] * 2, timeouts=Timeouts(close=0.3), supervisor=Supervisor(report=incidents.append))
    start = time.monotonic()
    vec.close()
    assert time.monotonic() - start < 3
    assert [(incident.env, incident.phase) for incident in incidents] == [(20, "close"), (21, "close")]
    assert incidents[0].cause == "env 20: its worker gave no answer for 0.3 s and was killed"


def test_a_close_that_raises_is_told():
    incidents = []
    factories = [*counting(1), functools.partial(FaultyEnv, "raise", "close"), *counting(1)]
    make(factories, supervisor=Supervisor(report=incidents.append)).close()
    assert [incident.cause for incident in incidents] == ["env 21: RuntimeError in close: out of order"]
    assert "_fail" in incidents[0].trace


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
