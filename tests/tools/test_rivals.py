"""``bench --peers``: the work that peers are given, what is refused, the loop that is always there, and the command."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pronghorn.__main__ import main
from pronghorn.config import RunConfig, from_json, override
from pronghorn.presets.resolve import resolve
from pronghorn.tools import contest, rivals
from pronghorn.tools.peers.work import Clock, Enough, Work

ONE_STEP = """
import numpy as np
from gymnasium import spaces

class Own:
    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}
"""


def test_the_work_is_that_of_the_config() -> None:
    config = override(resolve("CartPole-v1", "ppo")[1], seed=3, num_envs=6, unroll_length=10, minibatches=7)
    asked = rivals.work(config, 2.5)
    assert (asked.env, asked.seconds, asked.seed) == ("CartPole-v1", 2.5, 3)
    assert (asked.batch, asked.minibatch, asked.epochs, asked.layers) == (60, 9, 20, (64, 64))
    assert (asked.discount, asked.gae_lambda, asked.learning_rate) == (0.98, 0.8, 1e-3)
    assert asked.normalise_rewards and asked.normalise_observations and not asked.images
    (argument,) = rivals.contestants(asked, [sys.executable])[0].arguments
    assert from_json(RunConfig, Work(**json.loads(argument)).config) == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "CartPole-v1 --algorithm impala --peers",
            "--peers compares PPO, not impala; benchmarks/pong_impala.py compar",
        ),
        ("CartPole-v1 --algorithm batchppo --peers", "--peers compares PPO, not batchppo; benchmarks/pong_impala.py"),
        ("CartPole-v1 --core lstm --peers", "--peers compares what all can do, which --core lstm is not; leave it out"),
        ("CartPole-v1 --runner async --peers", "--peers compares what all can do, which --runner async is not; leave"),
        ("CartPole-v1 --torso 8 --peers", "--peers compares what all can do, which --torso (8,) is not; leave it out"),
        ("CartPole-v1 --clip-ratio none --kl-penalty 1 --peers", "which --kl-penalty 1.0 is not; leave it out"),
        ("FrozenLake-v1 --peers", "environments with one vector to see, or Atari's; FrozenLake-v1 has neither"),
        ("dm_control/cheetah-run --peers", "Gymnasium's own environments, which dm_control/cheetah-run is not"),
        ("ALE/Pong-v5 --env-arg stack=2 --peers", "--peers plays Atari as all see it, without --env-arg; leave it out"),
        ("CartPole-v1 --peers no/such/python", "--peers no/such/python: no such program; name a Python in which peers"),
        ("CartPole-v1 --peers --rounds 0", "--rounds must be positive, not 0"),
        ("CartPole-v1 --peers --seconds 0", "--seconds must be positive, not 0"),
    ],
)
def test_what_cannot_be_compared_is_one_line(arguments: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments.split()]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("pronghorn: --") and err.count("\n") == 1 and message in err


def test_an_own_class_cannot_be_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(ONE_STEP)
    assert main(["bench", f"{tmp_path / 'own.py'}:Own", "--peers"]) == 2
    assert "compares Gymnasium's own environments" in capfd.readouterr().err


def test_the_clock_leaves_the_warm_up_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([1.0, 3.0, 4.0, 8.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = Clock(5.0)
    update = clock.after(lambda: "learnt", 10)
    assert [update(), update(), update()] == ["learnt"] * 3
    with pytest.raises(Enough):
        update()
    clock.answer()  # from the end of the second update to the end of the fourth
    assert json.loads(capsys.readouterr().out) == {"steps": 20, "seconds": 5.0}


def test_the_clock_has_no_answer_within_the_warm_up() -> None:
    clock = Clock(0.0)
    assert not clock.lap(1, 10) and not clock.lap(2, 20)
    with pytest.raises(SystemExit, match=r"^it ended within the warm-up of 2 updates$"):
        clock.answer()


@pytest.fixture
def clean_ppo(monkeypatch: pytest.MonkeyPatch):
    """The loop, imported as its own interpreter would."""
    monkeypatch.syspath_prepend(contest.PEERS)
    for name in ("work", "clean_ppo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("clean_ppo")
    for name in ("work", "clean_ppo"):
        sys.modules.pop(name)


def small(env: str, **options: Any) -> Work:
    return rivals.work(override(resolve(env, "ppo")[1], **options), 0.1)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_loop_learns_from_valid_rows(clean_ppo, env: str) -> None:
    seen = []

    def after_update(updates: int, steps: int) -> bool:
        seen.append((updates, steps))
        return updates == 3

    clean_ppo.learn(small(env, num_envs=2, unroll_length=210, epochs=2, minibatches=3), after_update)
    assert [updates for updates, _ in seen] == [1, 2, 3]
    counts = np.diff([0, *(steps for _, steps in seen)])
    # An episode of Pendulum has 200 steps, so that each env is reset once in a row of the first 210, twice in 420, …
    assert (counts == 420 - 2).all() if env == "Pendulum-v1" else (counts < 420).all()


def test_advantages_of_the_loop_against_a_naive_sum(clean_ppo) -> None:
    asked = small("CartPole-v1")
    rewards, values, last = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, 1.5, -1.0, 2.0]), 7.0
    ended = torch.tensor([0.0, 1.0, 0.0, 0.0])
    following = [1.5, 0.0, 2.0, last]
    errors = [rewards[t].item() + 0.98 * following[t] - values[t].item() for t in range(4)]
    trace = 0.98 * 0.8
    expected = [errors[0] + trace * errors[1], errors[1], errors[2] + trace * errors[3], errors[3]]
    columns = (part.unsqueeze(1) for part in (rewards, values, ended))
    found = clean_ppo.generalised_advantages(asked, *columns, torch.tensor([last]))
    assert found.squeeze(1).tolist() == pytest.approx(expected)


QUICK = ["--num-envs", "4", "--unroll-length", "16", "--epochs", "2", "--compile", "false", "--layout", "serial"]


def test_the_command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "PEERS", (("absent", "absent_ppo.py", "no_such_module_at_all"),))
    assert main(["bench", "CartPole-v1", *QUICK, "--seconds", "0.1", "--rounds", "1", "--json", "--peers"]) == 0
    out, progress = capfd.readouterr()
    found = json.loads(out)
    assert out.count("\n") == 1 and found["preset"] == "ppo-cartpole" and found["rounds"] == 1
    assert found["work"]["num_envs"] == 4 and "config" not in found["work"]
    assert found["peers"]["troubles"] == {"absent": "not installed"}, progress
    medians = {name: spread and spread["median"] for name, spread in found["peers"]["steps_per_second"].items()}
    assert medians.keys() == {"pronghorn", "cleanrl-style", "absent"} and medians["absent"] is None
    ratio = found["peers"]["ratios"]["pronghorn"]["cleanrl-style"]["median"]
    assert ratio == pytest.approx(medians["pronghorn"] / medians["cleanrl-style"])
    lines = [line for line in progress.splitlines() if line.startswith("round")]
    assert [line.split()[2] for line in lines] == ["pronghorn", "cleanrl-style"]


def scripts(marker: str) -> list[str]:
    """Commands of the processes whose environment has ``marker``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_ctrl_c_leaves_no_contestant() -> None:
    marker = f"RIVALS_TEST_{os.getpid()}"
    command = [sys.executable, "-m", "pronghorn", "bench", "CartPole-v1", *QUICK, "--seconds", "100", "--peers"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | {marker: "1"}
    )
    try:
        deadline = time.monotonic() + 60
        while not any("pronghorn_ppo.py" in text for text in scripts(marker)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert any("pronghorn_ppo.py" in text for text in scripts(marker))
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=20)
        assert process.returncode == 130 and complaints == ""
        deadline = time.monotonic() + 5
        while scripts(marker) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert scripts(marker) == []
    finally:
        process.kill()
        process.wait()
