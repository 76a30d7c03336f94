"""``bench``: the arithmetic against hand numbers, parts of known cost, and the command as its user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import repeat
from pathlib import Path

import pytest

from pronghorn import build
from pronghorn.__main__ import main
from pronghorn.config import RunConfig, override
from pronghorn.presets.resolve import resolve
from pronghorn.processes.launch import available_cores
from pronghorn.tools import bench, parts
from pronghorn.tools.bench import Costs, Part, Trial
from pronghorn.types import UserError

KEYS = {
    *("env", "inference", "learn", "loop", "bound", "bound_lockstep", "efficiency", "bottleneck", "layout", "preset"),
    *("machine", "compile_seconds"),
}

SLEEPY = """
import time
import numpy as np
from gymnasium import spaces

class Sleepy:
    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(0.03)
        return np.zeros(1, np.float32), 0.0, False, False, {}
"""


def test_bounds_by_hand() -> None:
    # 2 cores: 4 + 1 + 3 core-ms a step; learning takes 2 ms by the clock where it is fastest.
    costs = Costs(env=0.004, inference=0.001, learn=0.003, learn_fastest=0.002)
    assert costs.bound(2) == pytest.approx(2 / 0.008)
    assert costs.bound_lockstep(2) == pytest.approx(1 / (0.0025 + 0.002))
    assert costs.bound(1) == pytest.approx(125) and costs.bound_lockstep(1) == pytest.approx(1 / 0.007)


def test_bounds_with_a_gpu_by_hand() -> None:
    both = Costs(env=0.004, inference=0.001, learn=0.0005, learn_fastest=0.0005, on_device=("learn", "inference"))
    assert both.bound(2) == pytest.approx(500)  # the cores' 2 ms against the device's 1.5 ms
    assert both.bound(8) == pytest.approx(1 / 0.0015)
    assert both.bound_lockstep(2) == pytest.approx(1 / (0.002 + 0.001 + 0.0005))
    learning = Costs(env=0.004, inference=0.001, learn=0.0005, learn_fastest=0.0005, on_device=("learn",))
    assert learning.bound(2) == pytest.approx(1 / 0.0025)
    assert learning.bound_lockstep(2) == pytest.approx(1 / (0.0025 + 0.0005))


def test_a_part_counts_in_its_most_economical_way() -> None:
    part = Part("learn", (Trial("1 thread", 1, 3.0, 3.0), Trial("2 threads", 2, 4.0, 2.0)), chosen="1 thread")
    assert (part.economical.threads, part.fastest.threads, part.used.threads) == (1, 2, 1)


def parts_of(config: RunConfig, env: tuple[float, float], inference: float, learn: tuple[float, float]) -> dict:
    """By hand: seconds of a step in (serial, two workers), of a forward pass, of learning with (one, two) threads."""
    serial, pool = env
    ways = Trial("serial", 1, serial, serial), Trial("pool, 2 workers", 2, 2 * pool, pool)
    one, two = learn
    learning = Trial("1 thread", 1, one, one), Trial("2 threads", 2, 2 * two, two)
    return {
        "env": Part("env", ways, "serial" if config.vec.layout == "serial" else "pool, 2 workers"),
        "inference": Part("inference", (Trial("1 thread", 1, inference, inference),), "1 thread"),
        "learn": Part("learn", learning, "1 thread"),
    }


ACTORS = {"layout": "serial", "runner": "async"}
LIGHTER = "fewer --epochs or fewer --minibatches or a smaller network or another --device"


@pytest.mark.parametrize(
    ("options", "env", "inference", "learn", "loop", "part", "advice"),
    [
        ({"layout": "serial"}, (6.0, 4.0), 1.0, (1.0, 1.0), 0.2, "env", "--layout pool --workers 2"),
        ({"layout": "pool"}, (6.0, 4.0), 1.0, (4.0, 4.0), 0.1, "learn", LIGHTER),
        ({"layout": "pool"}, (6.0, 4.0), 1.0, (9.0, 5.0), 0.1, "learn", "--threads 2"),
        ({"layout": "pool"}, (1.0, 1.0), 6.0, (1.0, 1.0), 0.2, "inference", "--num-envs 32"),
        ({"layout": "pool"}, (1.0, 1.0), 1.0, (1.0, 1.0), 0.1, "overhead", "--runner async"),
        ({"layout": "pool", "episodes_per_update": 5}, (1.0, 1.0), 1.0, (1.0, 1.0), 0.1, "overhead", "--groups 2"),
        ({"layout": "pool", "groups": 2}, (1.0, 1.0), 1.0, (1.0, 1.0), 0.1, "overhead", "--num-envs 32"),
        ({"layout": "pool", "groups": 2}, (6.0, 6.0), 1.0, (1.0, 1.0), 0.2, "env", "more cores"),
        (ACTORS | {"actors": 1}, (6.0, 6.0), 1.0, (1.0, 1.0), 0.25, "env", "more cores"),
        (ACTORS | {"actors": 3}, (1.0, 1.0), 1.0, (1.0, 1.0), 0.1, "overhead", "more --num-envs or more cores"),
        (ACTORS | {"actors": 1}, (1.0, 1.0), 1.0, (1.0, 1.0), 0.1, "overhead", "more --actors"),
    ],
)
def test_the_part_to_blame(options, env, inference, learn, loop, part, advice) -> None:
    config = override(resolve("HalfCheetah-v5")[1], **options)
    found = parts_of(config, env, inference, learn)
    costs = Costs(min(env[0], 2 * env[1]), inference, found["learn"].economical.cost, found["learn"].fastest.seconds)
    verdict = bench.judge(config, costs, found, loop, cores=2)
    assert verdict.part == part
    assert advice in verdict.advice


def test_the_share_of_the_part_to_blame() -> None:
    config = override(resolve("HalfCheetah-v5")[1], layout="pool")
    costs = Costs(env=4.0, inference=1.0, learn=1.5, learn_fastest=1.5)
    found = parts_of(config, (4.0, 2.5), 1.0, (1.5, 1.5))
    assert bench.judge(config, costs, found, 0.2, cores=2).share == pytest.approx(2.0 / 5.0)


def test_the_steady_rate_is_a_median_after_the_warm_up() -> None:
    def record(seconds: float, rate: float) -> dict[str, float]:
        return {"seconds": seconds, "steps_per_second": rate}

    assert bench.steady_rate([]) is None
    assert bench.steady_rate([record(9, 7)]) is None
    records = [record(1, 1), record(2, 2), record(3, 10), record(4, 30), record(5, 20), record(8, 40)]
    assert bench.steady_rate(records) == 25  # without the two of the first quarter


def test_reports_are_complete_lines_about_updates(tmp_path: Path) -> None:
    assert bench.reports(tmp_path) == []
    lines = ['{"steps_per_second": 5, "seconds": 1}', '{"eval/return": 3, "seconds": 2}', '{"steps_per_second": 6, "se']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert bench.reports(tmp_path) == [{"steps_per_second": 5, "seconds": 1}]


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])])
def test_thread_counts(most: int, counts: list[int]) -> None:
    assert bench.thread_counts(most) == counts
    assert bench.thread_counts(most, 3) == sorted({*counts, 3})


def test_work_is_timed_after_a_warm_up_and_closed() -> None:
    closed = []

    def batches() -> parts.Batches:
        try:
            time.sleep(0.1)  # begins slowly
            yield 1000
            for steps in repeat(10):
                time.sleep(0.01)
                yield steps
        finally:
            closed.append(True)

    spent = parts.timed(batches(), 0.2)
    assert closed == [True]
    assert spent.wall >= 0.2 and spent.steps % 10 == 0 and 0 < spent.steps <= 200
    assert spent.processor < spent.wall / 2 and spent.waits >= spent.steps / 10


def test_an_env_that_sleeps_costs_what_it_sleeps(tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    _, config = resolve(f"{tmp_path / 'sleepy.py'}:Sleepy")
    config = override(config, num_envs=2, layout="pool", workers=2)
    part = parts.env_part(config, 1.0)
    serial = next(trial for trial in part.trials if trial.way == "serial")
    pool = next(trial for trial in part.trials if trial.way == "pool, 2 workers")
    assert 0.03 <= part.economical.cost < 0.05
    assert 0.03 <= serial.seconds < 0.05
    assert 0.015 <= pool.seconds < 0.8 * serial.seconds  # both sleep at the same time
    assert part.used is pool and part.others == ()


def test_batches_are_those_of_the_run() -> None:
    """Of fewer unrolls than envs, and with replay; of whole episodes; for a core that remembers."""
    impala = resolve("CartPole-v1", "impala")[1]
    lagging = override(impala, runner="async", layout="serial", workers=1, actors=1, batch_size=6, num_envs=9)
    remembering = override(lagging, core="lstm", core_size=8, last_action_and_reward=True, unroll_length=7)
    replaying = override(remembering, replay_share=0.5, replay_capacity=50)
    _, episodic = resolve("CartPole-v1", "batchppo")
    episodic = override(episodic, layout="serial", workers=1, episodes_per_update=4, epochs=2, num_envs=6)
    for config, columns, fresh in ((replaying, 12, 6), (episodic, 4, 4)):
        spec = build.env_spec(config)
        acting, batch = parts.played(config, learner := build.learner(config, spec))
        assert batch.reward.shape[1] == columns and int((~batch.replayed).sum()) == fresh
        before = {name: value.clone() for name, value in learner.weights().items() if "moment" not in name}
        updates = parts.learning(learner, batch)
        assert next(updates) == int(batch.fresh.sum()) == next(updates)
        assert learner.version == 2
        assert all(bool((before[name] == value).all()) for name, value in learner.agent.named_parameters())
        choosing = parts.choosing(acting, batch, 20)
        assert next(choosing) == next(choosing) == 20


TINY = ["--seconds", "0.2", "--compile", "false", "--unroll-length", "8"]


def test_the_command_prints_one_object(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "CartPole-v1", *TINY, "--json", "--num-envs", "4"]) == 0
    out, progress = capfd.readouterr()
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found.keys() >= KEYS
    assert found["preset"] == "ppo-cartpole" and found["compile_seconds"] == 0
    assert found["machine"]["cores"] == len(available_cores())
    costs, cores = found["core_seconds_per_step"], len(available_cores())
    assert found["bound"] == pytest.approx(cores / (costs["env"] + costs["inference"] + costs["learn"]))
    assert found["env"] == pytest.approx(cores / costs["env"])
    assert found["efficiency"] == pytest.approx(found["loop"] / found["bound_lockstep"])
    assert found["layout"]["chosen"] in found["layout"]["steps_per_second"]
    assert "serial" in found["layout"]["steps_per_second"]
    assert [line.split()[0] for line in progress.splitlines()[-5:]] == ["layout", "env", "inference", "learn", "loop"]


def test_the_command_with_actors_replay_and_memory(capfd: pytest.CaptureFixture[str]) -> None:
    asynchronous = ["--algorithm", "impala", "--runner", "async", "--core", "gru", "--core-size", "8"]
    replay = ["--replay-share", "0.5", "--replay-capacity", "100", "--num-envs", "4"]
    assert main(["bench", "CartPole-v1", *TINY, *asynchronous, *replay, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["efficiency"] == pytest.approx(found["loop"] / found["bound"])
    assert found["layout"]["actors"] >= 1 and found["layout"]["chosen"] == "serial"


def test_the_command_with_whole_episodes(capfd: pytest.CaptureFixture[str]) -> None:
    episodes = ["--algorithm", "batchppo", "--episodes-per-update", "4", "--num-envs", "4", "--epochs", "2"]
    assert main(["bench", "CartPole-v1", "--seconds", "0.2", "--compile", "false", *episodes]) == 0
    out = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[1:]] == [
        *("layout", "env", "inference", "learn", "loop", "bounds", "efficiency", "bottleneck:"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench", "bench needs an environment: pronghorn bench ENV; 'pronghorn list' shows some"),
        ("bench CartPole-v1 --seconds 0", "--seconds must be positive, not 0"),
        ("bench CartPole-v1 --secnds 3", "unknown option --secnds; did you mean --seconds?"),
        (
            "bench CartPole-v1 --rho-bar 2",
            "--rho-bar is an option of --algorithm impala or a2c; see 'pronghorn bench --help'",
        ),
        ("bench CartPole-v1 --num-envs 0", "--num-envs must be positive, not 0"),
        ("bnech CartPole-v1", "unknown command 'bnech'; did you mean bench?"),
    ],
)
def test_mistakes_are_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"pronghorn: {message}\n")


def test_an_unknown_env_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "CartPoll-v1", "--quiet"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("pronghorn: ") and err.count("\n") == 1 and "CartPole-v1" in err


def test_a_run_without_an_update_says_so() -> None:
    _, config = resolve("CartPole-v1")
    config = override(config, layout="serial", compile=False, steps=8)
    with pytest.raises(UserError, match=r"^--steps 8 end before the first update; use more$"):
        bench._loop(config, 0.1, 1e6)


def processes(marker: str) -> list[str]:
    """Numbers of the processes whose environment has ``marker``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_ctrl_c_ends_it_at_once() -> None:
    marker = f"BENCH_TEST_{os.getpid()}"
    command = [sys.executable, "-m", "pronghorn", "bench", "CartPole-v1", "--layout", "pool", "--workers", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {marker: "1"}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("CartPole-v1, ppo-cartpole")
        assert process.stdout.readline().startswith("layout")
        assert len(processes(marker)) > 1
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=20)
        assert process.returncode == 130 and complaints == ""
        assert time.monotonic() - asked < 5
        deadline = time.monotonic() + 5
        while processes(marker) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes(marker) == []
    finally:
        process.kill()
        process.wait()
