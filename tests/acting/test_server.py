"""Inference for all actors in one place: who is answered when, that nobody hangs, and that the answers are the same."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rig
from runners.test_asynchronous import asynchronous, publish, remote

from pronghorn import api, build, tree
from pronghorn.acting.actor import Actor
from pronghorn.acting.inference import Choice, Inference, Place
from pronghorn.acting.server import Client, Desk, InferenceServer, desk_layout, due
from pronghorn.envs.probes import CountingEnv
from pronghorn.memory.rollout import RolloutMemory, allocate
from pronghorn.seeding import Domain
from pronghorn.transport.shared import SharedWeights, weights_layout
from pronghorn.types import column_slots

SHARES = [range(2), range(2, 5)]


@pytest.mark.parametrize(
    ("sizes", "waited", "minimum", "maximum", "count"),
    [
        ([], 9.0, 1, 9, 0),
        ([2], 0.0, 1, 9, 1),
        ([2, 3], 0.0, 6, 9, 0),  # too few
        ([2, 3], 0.09, 6, 9, 0),
        ([2, 3], 0.1, 6, 9, 2),  # but long enough
        ([2, 3, 1], 0.0, 6, 9, 3),
        ([2, 3, 4], 0.0, 6, 5, 2),  # as many as fit
        ([2, 3, 4], 0.0, 6, 4, 1),
        ([4, 3, 1], 0.0, 1, 5, 1),  # nobody overtakes
        ([7, 1], 0.0, 1, 5, 1),  # larger than the maximum: alone
        ([5, 7], 0.0, 1, 5, 1),
    ],
)
def test_due(sizes, waited, minimum, maximum, count):
    assert due(sizes, waited, minimum, maximum, timeout=0.1) == count


class Recorder:
    """In the place of an ``Inference``: answers with the observation's last number, and keeps what it was asked."""

    def __init__(self, error=None):
        self.mode, self.version, self.passes, self._error = "sample", -1, [], error
        self.own_stream = ExitStack

    def load(self, state, version):
        self.version = version

    def __call__(self, observation, first, core_state, noise, place=None):
        if self._error is not None:
            raise self._error
        self.passes.append(observation[:, 0].astype(int).tolist())
        return Choice(observation[:, 0].astype(np.int64), np.zeros((len(first), 5), np.float32), core_state + 1, 0)


@contextmanager
def table(inference=None, shares=SHARES, minimum=1, maximum=1024, timeout=60.0, **options):
    """(server, a client for each of ``shares``, weights, storage): not started; version 0 is published."""
    made = rig.config(**{"core": "counting", **options})
    spec = CountingEnv().spec
    agent = build.agent(made, spec)
    state = tree.map(lambda tensor: tensor.numpy()[0], agent.initial_state(1))
    slots = column_slots(spec, 7, agent.distribution.parameter_size, state)
    num_envs = shares[-1].stop
    storage = allocate(slots, num_envs)
    storage.arrays["observation"][...] = np.arange(num_envs)[:, None, None] * 10 + np.arange(8)[:, None]
    weights = SharedWeights(weights_layout(agent.state_dict()))
    weights.publish(agent.state_dict(), 0)
    with closing(weights), closing(Desk(desk_layout(agent, num_envs, len(shares)))) as desk:
        server = InferenceServer(
            desk,
            shares,
            storage.arrays["observation"],
            inference or Inference(agent),
            weights,
            minimum,
            maximum,
            timeout,
        )
        clients = [Client(desk, actor, share, Inference(agent)) for actor, share in enumerate(shares)]
        try:
            yield server, clients, weights, (slots, storage, made)
        finally:
            if server._thread.ident is not None:
                server.close()
                assert not server._thread.is_alive()


def ask(client, columns, row=0):
    """All envs of a client's own: each has the column of its number."""
    count = len(columns)
    place = Place(np.arange(count), np.array(columns), np.full(count, row))
    return client(
        np.zeros((count, 3)), np.zeros(count, bool), 100 * np.array(columns), np.zeros((count, 5), "f4"), place
    )


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as executor:
        yield executor


def asked(server):
    return sum(len(request.envs) for request in server._waiting())


def test_a_pass_waits_for_the_minimum(pool):
    recorder = Recorder()
    with table(recorder, minimum=5) as (server, clients, *_):
        server.start()
        one = pool.submit(ask, clients[0], [0, 1], 3)
        wait_until(lambda: asked(server) == 2)
        time.sleep(0.1)
        assert not recorder.passes and not one.done()
        two = ask(clients[1], [2, 3, 4])
        assert recorder.passes == [[3, 13, 20, 30, 40]]  # what lies in those columns and rows
        assert one.result(20).action.tolist() == [3, 13] and two.action.tolist() == [20, 30, 40]
        assert one.result().core_state.tolist() == [1, 101] and two.core_state.tolist() == [201, 301, 401]
        assert server.metrics()["inference/batch"] == 5
        assert set(server.metrics()) == {"time/inference"}  # no pass since


def test_or_for_the_time_out():
    recorder = Recorder()
    with table(recorder, minimum=5, timeout=0.3) as (server, clients, *_):
        server.start()
        begun = time.monotonic()
        ask(clients[1], [2, 3, 4])
        assert time.monotonic() - begun >= 0.3 and recorder.passes == [[20, 30, 40]]


def test_in_order_of_arrival_and_no_more_than_the_maximum(pool):
    recorder = Recorder()
    with table(recorder, shares=[range(2), range(2, 5), range(5, 9)], maximum=6) as (server, clients, *_):
        answers = []
        for actor, columns in ((2, [5, 6, 7, 8]), (0, [0, 1]), (1, [2, 3, 4])):
            before = asked(server)
            answers.append(pool.submit(ask, clients[actor], columns))
            wait_until(lambda before=before: asked(server) > before)
        server.start()
        assert [answer.result(20).action[0] for answer in answers] == [50, 0, 20]
    assert recorder.passes == [[50, 60, 70, 80, 0, 10], [20, 30, 40]]


def test_an_error_reaches_all(pool):
    with table(Recorder(ValueError("out of memory")), minimum=5) as (server, clients, *_):
        server.start()
        answers = [pool.submit(ask, clients[0], [0, 1]), pool.submit(ask, clients[1], [2, 3, 4])]
        for answer in answers:
            with pytest.raises(BrokenPipeError):
                answer.result(20)
        with pytest.raises(RuntimeError, match="inference for the actors has failed") as caught:
            server.check()
        assert str(caught.value.__cause__) == "out of memory"
        with pytest.raises(BrokenPipeError):
            ask(clients[0], [0, 1])


def test_closing_wakes_who_waits(pool):
    with table(minimum=5) as (server, clients, *_):
        server.start()
        answer = pool.submit(ask, clients[0], [0, 1])
        wait_until(lambda: asked(server) == 2)
        server.close()
        with pytest.raises(BrokenPipeError):
            answer.result(20)
        server.check()


def test_the_dead_are_forgotten_and_their_successors_answered(pool):
    recorder = Recorder()
    with table(recorder) as (server, clients, _, (_, _, made)):
        pool.submit(ask, clients[0], [0, 1])
        wait_until(lambda: asked(server) == 2)
        server.forget(0)
        assert asked(server) == 0
        server.start()
        assert ask(clients[1], [2, 3, 4]).action.tolist() == [20, 30, 40]
        successor = Client(server._desk, 0, SHARES[0], Inference(build.agent(made, CountingEnv().spec)))
        assert ask(successor, [1], 2).action.tolist() == [12]
    assert recorder.passes == [[20, 30, 40], [12]]


def test_the_newest_weights_answer():
    with table() as (server, clients, weights, (_, _, made)):
        server.start()
        assert ask(clients[0], [0, 1]).version == 0
        agent = build.agent(dataclasses.replace(made, seed=9), CountingEnv().spec)
        weights.publish(agent.state_dict(), 7)
        found = ask(clients[0], [0, 1], 4)
        inference = Inference(agent)
        inference.load(agent.state_dict(), 7)
        observation = np.array([[4.0] * 3, [14.0] * 3])
        wanted = inference(observation, np.zeros(2, bool), np.array([0, 100]), np.zeros((2, 5), np.float32))
        assert found.version == wanted.version == 7
        assert np.array_equal(found.action, wanted.action) and np.array_equal(found.core_state, wanted.core_state)
        assert np.allclose(found.behaviour, wanted.behaviour, atol=1e-6)


def served(number, **options):
    """``number`` batches of the counting envs, the first of random actions, by two actors that are served."""
    with table(**options) as (server, _, _, (slots, storage, made)):

        def play(actor, share):
            inference = Inference(build.agent(made, CountingEnv().spec))
            memory = RolloutMemory(slots, share, len(share), sort_by_env=True, storage=storage)
            with closing(build.vec(made, Domain.TRAINING_ENV, len(share), first_index=share.start)) as envs:
                client = Client(server._desk, actor, share, inference)
                acting = Actor(envs, memory, inference, made.seed, first_index=share.start, choose=client)
                acting.start()
                return collected(acting, number)

        server.start()
        with ThreadPoolExecutor(2) as executor:
            parts = list(executor.map(play, range(2), SHARES))
        assert server.metrics()["inference/batch"] > 2
    return [{name: joined(name, one[name], other[name]) for name in one} for one, other in zip(*parts, strict=True)]


def collected(actor, number):
    batches = []
    actor.inference.mode, actor.inference.version = "random", -1
    for _ in range(number):
        batches.append(vars(actor.collect()))
        actor.inference.mode, actor.inference.version = "sample", 0
    return batches


def joined(name, one, other):
    once = name in ("core_state", "last_action", "last_reward", "env", "task", "replayed")
    return tree.map(lambda a, b: np.concatenate([a, b], axis=0 if once else 1), one, other)


@pytest.mark.parametrize("options", [{"core": "counting"}, {"core": "none"}, {"core": "lstm", "core_size": 6}])
@pytest.mark.parametrize("told", [False, True])
def test_rows_are_those_of_actors_with_weights_of_their_own(options, told):
    options = {**options, "last_action_and_reward": told}
    found = served(6, **options)
    with rig.parts(rig.config(**options)) as (actor, _):
        wanted = collected(actor, 6)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.keys() == other.keys()
        for name in one:
            for a, b in zip(tree.leaves(one[name]), tree.leaves(other[name]), strict=True):
                # Batches of other sizes take other kernels, whose last bits differ; all else is equal to the bit.
                assert np.array_equal(a, b) if a.dtype.kind != "f" else np.allclose(a, b, atol=1e-5), (number, name)


def test_every_row_and_what_was_carried_into_it():
    oracles = [rig.Oracle(3, env) for env in range(5)]
    last = [(0, 0.0)] * 5
    for number, values in enumerate(served(6, core="counting", last_action_and_reward=True)):
        batch = SimpleNamespace(**values)
        assert batch.env.tolist() == [0, 1, 2, 3, 4]
        assert (batch.policy_version == (0 if number else -1)).all()
        for env, oracle in enumerate(oracles):
            rig.check_carried(batch, env, oracle, last[env])
            for row in range(7):
                rig.check_row(batch, env, row, oracle)
            last[env] = int(batch.action[6, env]), float(batch.reward[6, env])
    assert min(oracle.episode for oracle in oracles) >= 4


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_a_run_needs_counts_the_desk():
    one, other = (asynchronous(inference=where) for where in ("learner", "actor"))
    spec = build.env_spec(one)
    before = descriptors()
    with closing(Desk(desk_layout(build.agent(one, spec), 5, 2))):
        opened = descriptors() - before
    needed, less = build.needs(one, spec), build.needs(other, spec)
    assert needed.descriptors - less.descriptors == opened and needed.shared > less.shared


def test_an_actor_killed_while_it_waits_leaves_the_others_going():
    options = {"inference": "learner", "core": "counting", "max_policy_lag": 1000}
    made = asynchronous(inference_minimum=5, inference_timeout=1.0, **options)
    with remote(made) as (actors, learner, weights):
        server, (one, other) = actors._server, [remote.child for remote in actors._remotes]
        actors.collect()
        publish(weights, actors, learner)
        actors.collect()
        os.kill(other.process.pid, signal.SIGSTOP)
        wait_until(lambda: [request.actor for request in server._waiting()] == [0])  # alone, for a second
        one.kill()
        os.kill(other.process.pid, signal.SIGCONT)
        lives = set()
        while len(lives) < 2:  # the replacement's rows too
            batch = actors.collect()
            for column, env in enumerate(batch.env.tolist()):
                assert batch.core_state[column] == batch.observation[0, column, 1]
                if env < 3 and actors._remotes[0].life:
                    lives.add("new")
                elif env >= 3:
                    lives.add("other")
        assert [remote.life for remote in actors._remotes] == [1, 0]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_whole_run(core, tmp_path):
    before = rig.memory_files()
    options = {"core": core, "core_size": 8, "num_envs": 4, "unroll_length": 16, "steps": 1500, "algorithm": "impala"}
    made = asynchronous(inference="learner", run=str(tmp_path / "run"), **options)
    made = dataclasses.replace(made, env="CartPole-v1")
    assert api.train(made, quiet=True).exit_code == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    reports = [record for record in records if "time/inference" in record]
    assert reports and 1 <= reports[0]["inference/batch"] <= 4 and 0 < reports[0]["time/inference"] < 1
    assert records[-1]["eval/episodes"] > 0
    assert not rig.children() and rig.memory_files() == before
    assert not any(thread.name == "inference" for thread in threading.enumerate())
