"""A disk that is full or may not be written to, a directory that is in use or has moved: one line, nothing lost."""

from __future__ import annotations

import errno
import json
import shutil
import time
from pathlib import Path

import pytest
import rig
from forked import Command, flags, wait_for

from pronghorn import api, checkpoint, session
from pronghorn.processes.claim import claimed
from pronghorn.telemetry.writers import LineFile
from pronghorn.types import UserError

TINY = flags(layout="serial", threads=1, compile="false", num_envs=4, unroll_length=7, layers=8)
COUNTING = "pronghorn.envs.probes:CountingEnv"


def config(run: Path, **options):
    return rig.config(run=str(run), **{"evaluation_episodes": 1, "checkpoint_every": 100, "steps": 300, **options})


def train(run: Path, steps: str) -> list[str]:
    options = flags(steps=steps, checkpoint_every=100, evaluation_episodes=1, run=run)
    return ["train", COUNTING, *TINY, *options, "--quiet"]


def test_a_disk_that_fills_up_is_one_line_and_the_last_checkpoint_stays(tmp_path):
    run = tmp_path / "run"
    command = Command(train(run, "30k"), tmp_path / "said.txt", most_bytes=30_000)
    assert command.ended() == 2
    assert command.said() == (
        f"pronghorn: {run} cannot be written to: File too large; its checkpoints are as they were: mend that, then "
        f"`pronghorn resume {run}`\n"
    )
    loaded = checkpoint.load_latest(run)
    assert loaded.skipped == [] and loaded.step > 0
    command = Command(["resume", str(run), "--steps", str(loaded.step + 100), "--quiet"], tmp_path / "resumed.txt")
    assert command.ended() == 0, command.said()
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] >= loaded.step + 100


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("where", ["fsync", "metrics"])
def test_whatever_refuses_to_be_written(where, number, tmp_path, monkeypatch):
    run = tmp_path / "run"
    api.train(config(run), quiet=True)
    before = checkpoint.load_latest(run).step

    def refuse(*arguments):
        raise OSError(number, "no")

    monkeypatch.setattr(*((checkpoint.os, "fsync") if where == "fsync" else (LineFile, "write")), refuse)
    with pytest.raises(UserError, match=f"{run} cannot be written to: no; its checkpoints are as they were"):
        api.resume(run, 600, quiet=True)
    monkeypatch.undo()
    loaded = checkpoint.load_latest(run)
    assert loaded.step == before and loaded.skipped == []
    assert api.resume(run, 600, quiet=True).exit_code == 0


def test_a_place_where_no_directory_can_be_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be used: Not a directory; choose another"):
        api.train(config(tmp_path / "file" / "run"), quiet=True)


def test_one_process_at_a_time(tmp_path):
    run = tmp_path / "run"
    command = Command(train(run, "10M"), tmp_path / "said.txt")
    try:
        wait_for(lambda: checkpoint.exists(run))
        with pytest.raises(UserError, match="is in use: another process trains in it"):
            api.resume(run, quiet=True)
        with pytest.raises(UserError, match="exists and is not empty; continue it with `pronghorn resume"):
            api.train(config(run), quiet=True)
        assert api.evaluate(run, 1)["episodes"] == 1  # whoever only reads may
    finally:
        command.kill()
    more = checkpoint.load_latest(run).step + 100
    assert api.resume(run, more, quiet=True).exit_code == 0


def test_of_two_that_begin_at_once_one_trains(tmp_path, monkeypatch):
    run = tmp_path / "run"
    decide = api.decide

    def meanwhile(made):
        monkeypatch.setattr(api, "decide", decide)
        api.train(config(run), quiet=True)
        return decide(made)

    monkeypatch.setattr(api, "decide", meanwhile)
    with pytest.raises(UserError, match="exists and is not empty"):
        api.train(config(run), quiet=True)
    with claimed(run), pytest.raises(UserError, match="in use"):
        api.resume(run, 400, quiet=True)
    assert api.resume(run, 400, quiet=True).exit_code == 0


def test_a_moved_or_copied_run_goes_on(tmp_path, monkeypatch):
    run, copy = tmp_path / "run", tmp_path / "elsewhere" / "copy"
    api.train(config(run), quiet=True)
    shutil.copytree(run, copy)
    moved = run.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for place in (Path("copy"), moved):
        assert api.resume(place, 500, quiet=True).exit_code == 0
        assert api.evaluate(place, 1)["episodes"] == 1
    first, second = checkpoint.load_latest(moved), checkpoint.load_latest(copy)
    assert first.step == second.step >= 500 and first.state["run"]["learner"] == second.state["run"]["learner"]
    assert not run.exists()


def test_a_run_that_has_taken_more_steps_is_not_cut(tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr(session, "StopRequest", lambda: rig.StopAfter(60))
    api.train(config(run, steps=10_000), quiet=True)
    monkeypatch.undo()
    step = checkpoint.load_latest(run).step
    with pytest.raises(UserError, match=f"has taken {step} steps already, more than --steps {step - 1}"):
        api.resume(run, step - 1, quiet=True)
    assert api.load_config(run).steps == 10_000


def test_a_finished_run_is_left_as_it_is(tmp_path):
    run = tmp_path / "run"
    api.train(config(run), quiet=True)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")}
    time.sleep(0.02)
    result = api.resume(run, quiet=True)
    assert result.exit_code == 0 and "has finished its 300 steps" in result.summary
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")} == before
