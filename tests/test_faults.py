"""Whole runs with envs that raise, die or hang: they reach their target, and what happened is on record."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rig

from pronghorn import api
from pronghorn.vec.base import EnvError

FLAKY = '''
from pathlib import Path
from pronghorn.envs.probes import FaultyEnv

class Flaky(FaultyEnv):
    """The first to be made, which is only looked at, is sound."""

    def __init__(self, fault, phase, at, once, skip):
        skipped = Path(once + "-skipped")
        sound = phase == "construct" and skip and not skipped.exists()
        if sound:
            skipped.touch()
        super().__init__(fault, "never" if sound else phase, at, (9,), once)
'''


def flaky(tmp_path: Path, fault: str, phase: str, layout: str, **options: object):
    source = tmp_path / f"flaky_{fault}_{phase}_{layout}.py"
    source.write_text(FLAKY)
    at = {"construct": 0, "reset": 1, "step": 30}[phase]
    arguments = {"fault": fault, "phase": phase, "at": at, "once": str(tmp_path / "once"), "skip": True}
    made = rig.config(
        f"{source}:Flaky",
        env_args=arguments,
        layout=layout,
        workers=2,
        steps=600,
        num_envs=4,
        run=str(tmp_path / "run"),
        evaluation_episodes=2,
        **options,
    )
    return made


def events(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


CELLS = [
    ("serial", "raise", "construct"),
    ("serial", "raise", "reset"),
    ("serial", "raise", "step"),
    *(("pool", fault, phase) for fault in ("raise", "kill", "hang") for phase in ("construct", "reset", "step")),
]


@pytest.mark.parametrize(("layout", "fault", "phase"), CELLS)
def test_a_run_with_a_fault_reaches_its_target(layout, fault, phase, tmp_path, capsys):
    timeout = {"env_timeout": 2.0} if fault == "hang" else {}
    made = flaky(tmp_path, fault, phase, layout, **timeout)
    before = rig.children(), rig.memory_files()
    start = time.monotonic()
    result = api.train(made)
    seconds = time.monotonic() - start
    assert (tmp_path / "once").exists() and result.exit_code == 0
    found = events(tmp_path / "run")
    restarts = [event for event in found if event["event"] == "restart"]
    assert restarts and restarts[0]["phase"] == phase and restarts[0]["lost"]
    wanted = {"raise": "out of order", "kill": "signal 9", "hang": "gave no answer for 2 s"}[fault]
    assert wanted in restarts[0]["cause"] and ("_fail" in restarts[0].get("trace", "")) == (fault == "raise")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] >= 600 and records[-1]["restarts"] == len(restarts)
    assert "started again: env" in capsys.readouterr().out
    assert seconds < 20
    assert (rig.children(), rig.memory_files()) == before


@pytest.mark.parametrize(("layout", "options"), [("serial", {"env_errors": "fail"}), ("pool", {"env_restarts": 0})])
def test_without_a_budget_it_saves_and_ends(layout, options, tmp_path):
    made = flaky(tmp_path, "raise", "step", layout, **options)
    with pytest.raises(EnvError, match=r"out of order \(.*--env-(restarts allows 0|errors restart).*\)\n.*Traceback"):
        api.train(made)
    found = events(tmp_path / "run")
    assert found[-1]["event"] == "stop" and found[-1]["exit_code"] == 1
    assert "out of order" in found[-2]["message"]
    result = api.resume(tmp_path / "run", quiet=True)  # sound by now
    assert result.exit_code == 0
    assert any(event.get("envs") == "envs began new episodes" for event in events(tmp_path / "run"))


def test_a_hang_in_this_process_saves_and_ends(tmp_path):
    made = flaky(tmp_path, "hang", "step", "serial")
    command = [sys.executable, "-m", "pronghorn", "train", made.env, "--layout", "serial", "--env-timeout", "2"]
    for key, value in made.env_args.items():
        command += ["--env-arg", f"{key}={value}"]
    command += ["--steps", "600", "--num-envs", "4", "--run", made.run, "--unroll-length", "7", "--layers", "8"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert found.stderr.strip().endswith("gave no answer for 2 s in step; --env-timeout sets how long it may take")
    assert "Traceback" not in found.stderr
    last = events(Path(made.run))[-1]
    assert (last["event"], last["exit_code"]) == ("stop", 1)
    assert api.resume(Path(made.run), quiet=True).exit_code == 0


@pytest.mark.parametrize(
    ("layout", "fault", "found"),
    [
        ("serial", "raise", "RuntimeError in construct: out of order"),
        ("auto", "hang", "gave no answer for 1 s in construct; --env-timeout sets how long it may take"),
    ],
)
def test_an_env_that_can_never_be_made_ends_the_run_before_it_begins(layout, fault, found, tmp_path):
    made = flaky(tmp_path, fault, "construct", layout)
    command = [sys.executable, "-m", "pronghorn", "train", made.env, "--layout", layout, "--env-timeout", "1"]
    for key, value in (made.env_args | {"once": "", "skip": False}).items():
        command += ["--env-arg", f"{key}={json.dumps(value)}"]
    start = time.monotonic()
    ended = subprocess.run([*command, "--run", made.run], capture_output=True, text=True, timeout=60)
    assert time.monotonic() - start < 20 and ended.returncode == 1
    *trace, last = ended.stderr.strip().splitlines()
    assert re.fullmatch(f"pronghorn: env 0:? {found}", last), ended.stderr
    assert ("_fail" in "\n".join(trace)) == (fault == "raise")
    assert not Path(made.run).exists()


def test_killed_from_outside_between_and_within_steps(tmp_path):
    made = rig.config(layout="pool", workers=2, steps=4000, num_envs=4, run=str(tmp_path / "run"))
    import threading

    def kill() -> None:
        for _ in range(3):
            time.sleep(0.5)
            pids = rig.children()
            if pids:
                os.kill(pids[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert api.train(made, quiet=True).exit_code == 0
    thread.join()
    assert not rig.children()
