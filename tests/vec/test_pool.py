import contextlib
import dataclasses
import functools
import itertools
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import rig
from vec.vec_contract import FIRST_INDEX, LENGTHS, RUN_SEED, Oracle, as_rows, check_contract, counting, seed_of

from pronghorn.envs.base import Env
from pronghorn.envs.gymnasium import env_factory
from pronghorn.envs.probes import BanditEnv, CountingEnv, FaultyEnv
from pronghorn.processes import launch
from pronghorn.processes.supervise import Supervisor
from pronghorn.seeding import Domain
from pronghorn.types import UserError
from pronghorn.vec.base import EnvError, Timeouts
from pronghorn.vec.pool import PoolVec, _owners


def make(factories, workers=2, **options):
    return PoolVec(factories, RUN_SEED, Domain.TRAINING_ENV, first_index=FIRST_INDEX, workers=workers, **options)


def open_fds():
    return len(list(Path("/proc/self/fd").iterdir()))


def opened():
    """What our descriptors stand for: (number, name), where pipes and memory have names of their own."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this look itself
            found.add((entry.name, str(entry.readlink())))
    return {(number, name) for number, name in found if not name.endswith("/fd")}


@pytest.fixture(autouse=True)
def nothing_left():
    """Whatever is open afterwards was open before, the very same; other tests' may be closed meanwhile."""
    before, children = opened(), rig.children()
    yield
    assert opened() <= before
    assert rig.children() == children


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
    seconds = {"construct": 20.0, "reset": 20.0, "step": 20.0}
    if fault == "hang":  # short only where it is waited for: what is slow for once is no failure
        seconds[phase] = 1.5 if phase == "construct" else 1.0
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
    assert at - start < 10 and (incident.env, incident.phase) == (FIRST_INDEX + 3, phase)
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


def test_time_in_which_nobody_looked_does_not_count():
    """As where all of us were suspended: what was in flight then is given its time again."""
    incidents = []
    vec = make(
        [functools.partial(CountingEnv, (9,))] * 2,
        timeouts=Timeouts(step=0.6),
        supervisor=Supervisor(report=incidents.append),
    )
    drive(vec, 1)
    vec.recv()
    pid = vec._workers[1].child.process.pid
    time.sleep(0.3)
    vec._look()
    os.kill(pid, signal.SIGSTOP)
    vec.send(np.zeros(2, np.int64), np.arange(2))
    time.sleep(1.0)
    timer = threading.Timer(0.4, os.kill, (pid, signal.SIGCONT))
    timer.start()
    assert vec.recv().valid.all() and not incidents
    timer.join()
    vec.close()


def test_a_pause_before_a_restart_is_no_hang(tmp_path):
    class Failing(CountingEnv):
        def step(self, action):
            failed = len(list(tmp_path.iterdir()))
            if failed < 4:
                (tmp_path / str(failed)).touch()
                raise RuntimeError("again")
            return super().step(action)

    incidents = []
    vec = make([*counting(1), Failing], timeouts=Timeouts(step=0.2), supervisor=Supervisor(report=incidents.append))
    drive(vec, 8)  # the pauses are 0.05, 0.1, 0.2 and 0.4 s
    assert ["again" in incident.cause for incident in incidents] == [True] * 4
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
    assert "_fail" in incidents[0].trace and incidents[0].lost == ()


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


def test_every_worker_has_envs_whatever_the_groups():
    for groups, workers in ([2, 2], 4), ([2, 1], 3), ([3, 3, 2], 5), ([1, 1, 1], 2), ([4, 3], 2):
        edges = np.cumsum([0, *groups])
        owners = _owners([np.arange(a, b) for a, b in itertools.pairwise(edges)], workers)
        counts = np.bincount(owners, minlength=workers)
        assert len(counts) == workers and counts.min() >= 1 and counts.max() - counts.min() <= 1
        for a, b in itertools.pairwise(edges):
            assert np.bincount(owners[a:b], minlength=workers).max() <= -(-(b - a) // workers)


def test_a_hang_is_noticed_within_a_second_of_its_time(tmp_path):
    """While other workers answer, which must not put off the next look."""

    class Hanging(CountingEnv):
        def step(self, action):
            if not (tmp_path / "once").exists():
                (tmp_path / "once").write_text(str(time.time()))
                time.sleep(600)
            return super().step(action)

    noticed = []
    supervisor = Supervisor(report=lambda incident: noticed.append(time.time()))
    vec = make([*counting(1), Hanging], timeouts=Timeouts(step=1.5), supervisor=supervisor, groups=2)
    drive(vec, 6)
    begun = float((tmp_path / "once").read_text())
    assert len(noticed) == 1 and 1.5 <= noticed[0] - begun < 2.5
    vec.close()


@pytest.mark.parametrize("fault", ["hang", "kill"])
def test_it_is_noticed_though_others_are_always_ready(fault, tmp_path):
    faulty = functools.partial(FaultyEnv, fault, "step", 0, LENGTHS, str(tmp_path / "once"))
    incidents = []
    options = {"timeouts": Timeouts(step=0.4), "supervisor": Supervisor(report=incidents.append)}
    vec = make([*counting(3), faulty], workers=4, ready=1, **options)
    vec.reset(np.zeros(4, np.int64))
    deadline = time.monotonic() + 10
    while not incidents and time.monotonic() < deadline:
        step = vec.recv()
        vec.send(np.zeros(1, np.int64), step.envs)
        if not (tmp_path / "once").exists():
            continue
        while not vec._landed().size and time.monotonic() < deadline:
            time.sleep(0.001)  # somebody is ready whenever it asks
    assert [(incident.env, incident.phase) for incident in incidents] == [(23, "step")]
    vec.close()


def test_a_dead_worker_whose_child_holds_the_pipe():
    class Forking(CountingEnv):
        def step(self, action):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    vec = make([*counting(1), Forking], supervisor=Supervisor("fail"), timeouts=Timeouts(step=20, close=0.5))
    start = time.monotonic()
    with pytest.raises(EnvError, match="env 21: its worker died with signal 9"):
        drive(vec)
    vec.close()
    assert time.monotonic() - start < 5


def test_a_worker_that_does_not_listen(monkeypatch):
    monkeypatch.setattr(launch, "SEND_TIMEOUT", 1)
    incidents = []
    vec = make(counting(2), supervisor=Supervisor(report=incidents.append))
    os.kill(vec._workers[1].child.process.pid, signal.SIGSTOP)
    histories = [np.zeros(0, np.int64), np.zeros(10**6, np.int64)]
    vec.reset(np.zeros(2, np.int64), histories)
    step = vec.recv()
    assert step.first.all() and step.episode.tolist() == [0, 0]
    assert [incident.lost for incident in incidents] == [(21,)] and "has not listened" in incidents[0].cause
    vec.close()


def test_the_start_of_a_worker_is_not_the_envs_fault():
    incidents = []
    vec = make(counting(2), timeouts=Timeouts(construct=0.1), supervisor=Supervisor(report=incidents.append))
    vec.close()
    assert not incidents


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_an_env_that_comes_back_different(fault, tmp_path):
    class Changing(FaultyEnv):
        def __init__(self):
            super().__init__(fault, "step", 1, (9,), str(tmp_path / "once"))
            if (tmp_path / "once").exists():
                self.spec = dataclasses.replace(self.spec, action=BanditEnv(arms=7).spec.action)

    vec = make([*counting(3), Changing])
    with pytest.raises(UserError, match=r"^env 23 in construct.*: built anew, it differs in action: .*7.* against .*5"):
        drive(vec)
    vec.close()


def test_a_hang_while_a_broken_env_is_closed(tmp_path):
    class Clinging(FaultyEnv):
        def close(self):
            if (tmp_path / "once").exists() and not (tmp_path / "twice").exists():
                (tmp_path / "twice").touch()
                time.sleep(600)

    faulty = functools.partial(Clinging, "raise", "step", 1, (9,), str(tmp_path / "once"))
    incidents = []
    vec = make([*counting(1), faulty], timeouts=Timeouts(close=0.4), supervisor=Supervisor(report=incidents.append))
    start = time.monotonic()
    drive(vec)
    vec.close()
    assert [(incident.env, incident.phase) for incident in incidents] == [(21, "step"), (21, "close")]
    assert time.monotonic() - start < 5


def test_what_was_made_is_closed_when_another_cannot_be(tmp_path):
    class Closing(CountingEnv):
        def close(self):
            (tmp_path / "closed").touch()

    def mistaken():
        while not (tmp_path / "made").exists():
            time.sleep(0.01)
        raise UserError("no")

    def made():
        (tmp_path / "made").touch()
        return Closing()

    with pytest.raises(UserError, match=r"^no$"):
        make([made, mistaken])
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("at", range(6))
def test_two_workers_killed_at_any_moment(at):
    """Both at once, at moments that differ: whatever they were at, each env goes on with an episode of its own."""
    incidents = []
    vec = make(counting(4), supervisor=Supervisor(report=incidents.append), groups=2)
    vec.reset(np.zeros(4, np.int64))
    newest = np.zeros(4, np.int64)
    for count in range(12):
        step = vec.recv()
        assert (step.episode >= newest[step.envs]).all() and (step.first | step.valid).all()
        newest[step.envs] = step.episode
        seeds = [seed_of(env, episode) for env, episode in zip(step.envs.tolist(), step.episode.tolist(), strict=True)]
        assert step.observation[:, 0].tolist() == seeds
        vec.send(np.zeros(len(step.envs), np.int64), step.envs)
        if count == 3:
            time.sleep(at * 5e-5)
            for worker in list(vec._workers):
                os.kill(worker.child.process.pid, signal.SIGKILL)
    assert sorted(incident.lost for incident in incidents) == [(20, 22), (21, 23)]
    vec.close()


def test_a_replacement_is_killed_too():
    incidents = []
    vec = make(counting(2), supervisor=Supervisor(report=incidents.append))
    vec.reset(np.zeros(2, np.int64))
    vec.recv()
    vec.send(np.zeros(2, np.int64), np.arange(2))
    vec.recv()
    os.kill(vec._workers[1].child.process.pid, signal.SIGKILL)
    vec._workers[1].child.process.wait()
    vec._replace(1, "was replaced")
    os.kill(vec._workers[1].child.process.pid, signal.SIGKILL)  # before it has made anything
    vec.reset(np.array([5, 6]))
    step = vec.recv()
    assert step.first.all() and step.episode.tolist() == [5, 6] and len(incidents) == 2
    vec.close()


def test_closed_with_a_replacement_under_way():
    vec = make(counting(2))
    vec.reset(np.zeros(2, np.int64))
    vec.recv()
    vec._workers[0].child.kill()
    vec._replace(0, "was replaced")
    start = time.monotonic()
    vec.close()
    vec.close()
    assert time.monotonic() - start < 5
