"""Callbacks and sinks in a whole run: what they are told, and that they can end it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rig

import pronghorn
from pronghorn import api, checkpoint, cli, session
from pronghorn.config import RunConfig
from pronghorn.telemetry import sinks
from pronghorn.types import UserError


def config(path, **options):
    small = {"core": "counting", "steps": 300, "evaluation_episodes": 2, "evaluate_every": 120, "checkpoint_every": 100}
    return rig.config(run=str(path), **{**small, **options})


def lines(run, name="metrics.jsonl"):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


class Recorder:
    """Keeps what it is told; ``answer(event, record)`` is what it says."""

    def __init__(self, answer=lambda event, record: None):
        self.heard, self.closed, self._answer = [], 0, answer

    def __call__(self, event, record):
        self.heard.append((event, record))
        return self._answer(event, record)

    def write(self, record):
        self("write", record)

    def close(self):
        self.closed += 1

    def told(self, *events):
        return [record for event, record in self.heard if event in events]


def test_callbacks_and_sinks_hear_what_the_files_say(tmp_path):
    run, callback, sink = tmp_path / "run", Recorder(), Recorder()
    api.train(config(run), quiet=True, callbacks=[callback], sinks=[sink])
    assert [record for _, record in sink.heard] == lines(run) and sink.closed
    told = [{key: value for key, value in record.items() if key != "run"} for _, record in callback.heard]
    assert [record for record in told if "event" not in record and "seconds" in record] == lines(run)
    events = [(event, record["step"]) for event, record in callback.heard if event not in ("report", "evaluation")]
    assert events == [(event["event"], event["step"]) for event in lines(run, "events.jsonl")]
    assert {record["run"] for _, record in callback.heard} == {run}
    assert callback.heard[0][0] == "start" and callback.heard[-1][0] == "stop"
    assert callback.told("stop")[0]["exit_code"] == 0
    for record in callback.told("evaluation"):
        assert "eval/return" in record
    assert not any("eval/return" in record for record in callback.told("report"))


def test_what_is_evaluated_is_saved_before_it_is_told(tmp_path):
    run, found = tmp_path / "run", []

    def look(event, record):
        if event == "evaluation":
            found.append((record["step"], checkpoint.load_latest(record["run"]).step))

    api.train(config(run, checkpoint_every=10**6), quiet=True, callbacks=[look])
    assert len(found) >= 3 and all(step == saved for step, saved in found)
    plain = tmp_path / "plain"
    api.train(config(plain, checkpoint_every=10**6), quiet=True)
    assert rig.lasting(lines(run)) == rig.lasting(lines(plain))  # listening changes nothing


@pytest.mark.parametrize("runner", ["sync", "async"])
def test_a_callback_ends_the_run(tmp_path, runner):
    run = tmp_path / "run"
    options = {"runner": "async", "actors": 1} if runner == "async" else {}
    late = Recorder(lambda event, record: "far enough" if event == "report" and record["step"] >= 150 else None)
    result = api.train(config(run, steps=3000, **options), quiet=True, callbacks=[late])
    stopped = late.told("stop")[0]["step"]
    assert result.exit_code == 0 and 150 <= stopped < 400
    assert result.summary == f"stopped at step {stopped}: far enough; continue with `pronghorn resume {run}`"
    assert checkpoint.load_latest(run).step == stopped == lines(run)[-1]["step"]
    stop = lines(run, "events.jsonl")[-1]
    assert (stop["event"], stop["exit_code"], stop["reason"]) == ("stop", 0, "far enough")


def test_a_run_that_was_ended_goes_on(tmp_path):
    run, again = tmp_path / "run", Recorder()
    api.train(config(run), quiet=True, callbacks=[lambda event, record: "so far" if event == "report" else None])
    result = pronghorn.resume(run, quiet=True, callbacks=[again])
    assert again.heard[0][0] == "resume" and "done: " in result.summary and again.told("report")
    straight = tmp_path / "straight"
    api.train(config(straight), quiet=True)
    assert rig.lasting(lines(run)) == rig.lasting(lines(straight))


@pytest.mark.parametrize("event", ["start", "evaluation", "checkpoint"])
def test_a_run_can_end_at_any_event(tmp_path, event):
    run = tmp_path / "run"
    told = Recorder(lambda heard, record: "now" if heard == event else None)
    result = api.train(config(run), quiet=True, callbacks=[told])
    assert result.exit_code == 0 and "now" in result.summary
    step = checkpoint.load_latest(run).step
    assert step == told.told("stop")[0]["step"] and (step == 0) == (event == "start") and step < 300


def test_a_reason_at_the_end_is_no_stop(tmp_path):
    last = Recorder(lambda event, record: "late" if event == "evaluation" and record["step"] >= 300 else None)
    assert "done: " in api.train(config(tmp_path / "run"), quiet=True, callbacks=[last]).summary


@pytest.mark.parametrize("event", ["start", "report", "evaluation", "checkpoint", "stop"])
def test_a_callback_that_raises_ends_the_run_saved(tmp_path, event):
    run, other = tmp_path / "run", Recorder()

    def broken(heard, record):
        if heard == event:
            raise LookupError("nobody there")

    with pytest.raises(LookupError, match="nobody there") as caught:
        api.train(config(run), quiet=True, callbacks=[broken, other])
    note = f"raised by the callback broken at {event!r}; the run is saved: `pronghorn resume {run}` continues it"
    assert caught.value.__notes__ == [note]
    assert caught.traceback[-1].name == "broken"
    stop = lines(run, "events.jsonl")[-1]
    assert stop["event"] == "stop" and stop["step"] == checkpoint.load_latest(run).step
    if event != "stop":
        assert stop["exit_code"] == 1 and "callback broken" in stop["reason"] and stop["step"] < 300
        assert other.told("stop")[0]["exit_code"] == 1
    assert api.resume(run, steps=400, quiet=True).exit_code == 0


def test_a_sink_that_raises_ends_the_run_saved(tmp_path):
    run, other = tmp_path / "run", Recorder()

    def full(event, record):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        api.train(config(run), quiet=True, sinks=[Recorder(full), other])
    assert len(other.heard) == 1 and checkpoint.load_latest(run).step == lines(run)[-1]["step"]


def test_a_table_of_a_resumed_run_has_every_record_once(tmp_path, monkeypatch):
    run, straight = tmp_path / "run", tmp_path / "straight"
    api.train(config(straight, sinks=("csv",)), quiet=True)
    monkeypatch.setattr(session, "StopRequest", lambda: rig.StopAfter(30))
    api.train(config(run, sinks=("csv",)), quiet=True)
    monkeypatch.undo()
    (run / "metrics.csv").write_text((run / "metrics.csv").read_text() + "999,1\n1000")
    api.resume(run, quiet=True)
    assert [row.split(",")[0] for row in (run / "metrics.csv").read_text().splitlines()[1:]] == [
        str(line["step"]) for line in lines(straight)
    ]
    assert not (run / "tensorboard").exists()


MINE = """
import pronghorn

class Enough:
    def __call__(self, event, record):
        return "enough" if event == "report" and record["step"] >= 64 else None

class Steps:
    def __init__(self, run, config, resumed_at):
        self.file = (run / "steps.txt").open("a")
        print(config["seed"], resumed_at, file=self.file)

    def write(self, record):
        print(record["step"], file=self.file)

    def close(self):
        self.file.close()

pronghorn.register_callback("enough", Enough)
pronghorn.register_sink("steps", Steps)
"""
OPTIONS = "--num-envs 4 --unroll-length 8 --threads 1 --compile false --layout serial --evaluation-episodes 1 --quiet"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file that registers one of each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "registers_mine.py").write_text(MINE)
    with rig.parts_forgotten():
        yield "./registers_mine.py"


def test_both_by_name_on_the_command_line_and_in_a_resumed_run(mine, tmp_path, capsys):
    train = f"CartPole-v1 --import {mine} --callbacks enough --sinks csv,steps --steps 160 --seed 6 --run run {OPTIONS}"
    assert cli.train(train.split()) == 0
    said = re.search(r"stopped at step (\d+): enough; continue with `pronghorn resume run`", capsys.readouterr().out)
    resumed = subprocess.run(
        [sys.executable, "-m", "pronghorn", "resume", "run", "--quiet"], capture_output=True, text=True, timeout=60
    )
    assert (resumed.returncode, resumed.stderr) == (0, "")
    again = re.search(r"stopped at step (\d+): enough", resumed.stdout)
    written = Path("run/steps.txt").read_text().splitlines()
    begun = [written.pop(0), written.pop(written.index(f"6 {said[1]}"))]
    assert begun[0] == "6 None" and written == [str(line["step"]) for line in lines(Path("run"))]
    assert written[-1] == again[1] and int(again[1]) > int(said[1])
    assert Path("run/metrics.csv").exists() and not Path("run/tensorboard").exists()


def test_both_by_name_from_python_beside_objects(mine, tmp_path):
    recorder, options = Recorder(), {"num_envs": 4, "unroll_length": 8, "layout": "serial", "evaluation_episodes": 1}
    result = pronghorn.train(
        "CartPole-v1",
        imports=[mine],
        callbacks=["enough", recorder],
        sinks=["steps", recorder],
        steps=160,
        compile=False,
        quiet=True,
        run="r",
        **options,
    )
    assert "enough" in result.summary and recorder.told("write", "start", "stop") and recorder.closed
    written = api.load_config(Path("r"))
    assert (written.callbacks, written.sinks) == (("enough",), ("steps",))


def test_sinks_on_the_command_line(mine):
    def chosen(text):
        return cli.train_config(["CartPole-v1", *text.split()])[0].sinks

    assert chosen("") == ("tensorboard",) == RunConfig("e").sinks
    assert chosen("--sinks csv,wandb") == ("csv", "wandb") and chosen("--sinks none") == ()
    with pytest.raises(UserError, match="unknown sink 'cvs' in --sinks; did you mean csv"):
        chosen("--sinks tensorboard,cvs")
    with pytest.raises(UserError, match="unknown sink 'cvs' in --sinks"):
        pronghorn.train("CartPole-v1", sinks="cvs")
    with pytest.raises(UserError, match="unknown callback 'enugh' in --callbacks; did you mean enough"):
        cli.train_config(["CartPole-v1", "--import", mine, "--callbacks", "enugh"])


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="--sinks wandb needs a package"):
        api.train(config(tmp_path / "run", sinks=("wandb",)), quiet=True)
    assert not (tmp_path / "run").exists()
