"""What a run says it needs is what it takes; and it takes no more as it goes on."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import mmap
import resource
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rig

from pronghorn import api, build, tree
from pronghorn.envs.gymnasium import env_factory
from pronghorn.envs.probes import CountingEnv, ImageBanditEnv
from pronghorn.processes import preflight
from pronghorn.processes.signals import StopRequest
from pronghorn.seeding import Domain
from pronghorn.session import Session
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.transport.local import LocalWeights
from pronghorn.types import UserError
from pronghorn.vec.base import BatchedEnv
from pronghorn.vec.pool import PoolVec, footprint
from pronghorn.vec.serial import SerialVec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) - 1


def mapped(pid: int | str = "self") -> int:
    """Bytes of our shared memory in a process."""
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:pronghorn" in line:
            start, end = (int(address, 16) for address in line.split()[0].split("-"))
            total += end - start
    return total


def resident(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


ENVS = {
    "counting": (CountingEnv, 3),
    "cheetah": (env_factory("HalfCheetah-v5", {}), 16),
    "images": (functools.partial(ImageBanditEnv, 4, 84), 32),
}


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_pool_takes_what_it_says(name: str, workers: int) -> None:
    factory, num_envs = ENVS[name]
    gc.collect()
    fds, memory = descriptors(), mapped()
    with closing(PoolVec([factory] * num_envs, 0, Domain.TRAINING_ENV, workers=workers)) as vec:
        vec.reset(np.zeros(num_envs, np.int64))
        vec.recv()
        bytes_said, fds_said = footprint(vec.spec, num_envs, workers)
        assert mapped() - memory == bytes_said
        assert descriptors() - fds == fds_said
    if name == "images":
        assert 32 * 84 * 84 * 4 < bytes_said < 1.05 * 32 * 84 * 84 * 4


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("pronghorn.envs.probes:CountingEnv", {"layout": "serial"}),
        ("pronghorn.envs.probes:CountingEnv", {"workers": 3, "evaluation_episodes": 2}),
        ("HalfCheetah-v5", {"workers": 2, "num_envs": 16}),
        (
            "pronghorn.envs.probes:ImageBanditEnv",
            {"workers": 2, "num_envs": 32, "env_args": {"channels": 4, "side": 84}},
        ),
    ],
)
def test_a_session_takes_what_it_says(env: str, options: dict[str, Any], tmp_path: Path) -> None:
    """With the envs of training and of evaluation."""
    made = dataclasses.replace(rig.config(run=str(tmp_path / "run"), **{"layout": "pool", **options}), env=env)
    (tmp_path / "run").mkdir()
    gc.collect()
    fds, memory = descriptors(), mapped()
    with Session(tmp_path / "run", made, True, None, StopRequest()) as session:
        needs = build.needs(made, session.spec)
        session.runner.start()
        assert mapped() - memory == needs.shared
        assert abs(descriptors() - fds - needs.descriptors) <= 2
        assert needs.processes == len(rig.children())
        assert needs.workers == options.get("workers", 0)


@pytest.mark.parametrize(
    "options",
    [{}, {"core": "counting"}, {"episodes_per_update": 4}, {"evaluation_episodes": 2}, {"env": "InstructionEnv"}],
)
def test_rollouts_take_what_is_said(options: dict[str, Any]) -> None:
    """The columns of training and of evaluation, and a batch of each."""
    made = rig.config(**options)
    few = min(made.evaluation_episodes, made.vec.num_envs)
    with (
        closing(build.vec(made, Domain.TRAINING_ENV)) as envs,
        closing(build.vec(made, Domain.EVALUATION_ENV, few)) as others,
    ):
        memory = build.actor(made, envs, PhaseTimers()).memory
        played = build.evaluator(made, others, LocalWeights(), made.evaluation_episodes)._actor.memory
        taken = 0
        for each in (memory, played):
            for column in range(each.batch_size):
                each.finish(each.begin(column), each.rows)
            taken += each.nbytes + sum(array.nbytes for array in tree.leaves(list(vars(each.take()).values())))
        assert build.needs(made, envs.spec).rollouts == taken


def test_the_compilers_example_is_counted() -> None:
    made = rig.config()
    with closing(env_factory(made.env, made.env_args)()) as env:
        example = build.example_batch(made, env.spec, made.columns_per_update)
        plain, compiled = (build.needs(dataclasses.replace(made, compile=flag), env.spec) for flag in (False, True))
    assert compiled.rollouts - plain.rollouts == sum(
        array.nbytes for array in tree.leaves(list(vars(example).values()))
    )
    assert compiled.own > plain.own


def play(vec: BatchedEnv, episodes: int) -> int:
    """``episodes`` of one step in all envs together: each is an action, and an ignored one that begins the next.
    Returns how many have ended so far."""
    actions, envs = np.zeros(vec.num_envs, np.int64), np.arange(vec.num_envs)
    for _ in range(2 * episodes // vec.num_envs):
        vec.send(actions, envs)
        step = vec.recv()
    return int(step.episode.sum())


@pytest.mark.parametrize("layout", ["serial", "pool"])
def test_nothing_grows_over_100000_episodes(layout: str) -> None:
    factories = [functools.partial(CountingEnv, (1,))] * 128
    begun = time.monotonic()
    vec: BatchedEnv
    if layout == "pool":
        vec = PoolVec(factories, 0, Domain.TRAINING_ENV, workers=2)
        processes: list[int | str] = ["self", *(worker.child.process.pid for worker in vec._workers)]
    else:
        vec, processes = SerialVec(factories, 0, Domain.TRAINING_ENV), ["self"]
    with closing(vec):
        vec.reset(np.zeros(128, np.int64))
        vec.recv()
        play(vec, 10_000)
        gc.collect()
        before = [resident(process) for process in processes], [mapped(process) for process in processes], descriptors()
        assert play(vec, 100_000) >= 109_000
        gc.collect()
        after = [resident(process) for process in processes], [mapped(process) for process in processes], descriptors()
    print(f"{layout}: {time.monotonic() - begun:.1f} s, resident {np.subtract(after[0], before[0]) / 1e6} MB")
    assert max(np.subtract(after[0], before[0])) < 2_000_000
    assert after[1:] == before[1:]


def test_what_cannot_fit_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """A limit on its memory sees to it that the machine survives should it start."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pronghorn", "train", "CartPole-v1", "--num-envs", "100000000", "--layout", "serial"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30)),
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("pronghorn: the run needs about ")
    assert "GB are available; use --num-envs " in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert time.monotonic() - begun < 30


def test_too_few_descriptors_are_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pronghorn", "train", "CartPole-v1", "--layout", "pool", "--workers", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)),
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("pronghorn: the run needs 54 file descriptors (32 of them to spare), but ")
    assert list(tmp_path.iterdir()) == []


SCANT = preflight.Machine(memory=10**6, descriptors=1000, descriptor_limit=1024, cores=2)


def test_so_is_what_cannot_fit_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig.config(run=str(tmp_path / "run"), steps=200, evaluation_episodes=2)
    api.train(dataclasses.replace(made, steps=100), quiet=True)
    monkeypatch.setattr(preflight.Machine, "here", lambda: SCANT)
    with pytest.raises(UserError, match=r"1\.0 MB are available"):
        api.resume(tmp_path / "run", steps=200, quiet=True)


def test_the_start_says_what_a_run_needs(tmp_path: Path) -> None:
    api.train(rig.config(run=str(tmp_path / "run"), steps=70, evaluation_episodes=2), quiet=True)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (line,) = (line for line in events[0]["decisions"] if line.startswith("memory: about "))
    assert "of rollouts" in line and line.endswith("; 2 file descriptors")
