"""Train, stop, resume, evaluate and load, through the files of a run."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import rig
import torch

import pronghorn
from pronghorn import api, build, checkpoint, decisions, session
from pronghorn.config import override
from pronghorn.types import UserError
from pronghorn.vec.base import Timeouts

EPISODES = {"episodes_per_update": 4, "unroll_length": 6, "clip_ratio": None, "kl_penalty": 1.0, "minibatches": 1}


def lines(run, name="metrics.jsonl"):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def assert_equal_runs(one, other):
    first, second = checkpoint.load_latest(one), checkpoint.load_latest(other)
    weights = [name for name in first.tensors if name.startswith(("agent/", "optimiser/"))]
    assert weights and first.step == second.step
    for name in weights:
        assert torch.equal(first.tensors[name], second.tensors[name]), name
    assert first.state["run"]["learner"] == second.state["run"]["learner"]
    assert rig.lasting(lines(one)) == rig.lasting(lines(other))


def config(path, env="CountingEnv", **options):
    small = {"core": "counting", "steps": 300, "evaluation_episodes": 2, "evaluate_every": 120, "checkpoint_every": 100}
    return rig.config(env, run=str(path), **{**small, **options})


@pytest.mark.parametrize("options", [{}, EPISODES, {"frame_stack": 3}], ids=["unrolls", "episodes", "stacks"])
def test_interrupted_by_a_signal_and_resumed(tmp_path, options, capfd):
    marker = tmp_path / "marker"
    options = {**options, "env_args": {"marker": str(marker), "at": 25, "lengths": list(rig.LENGTHS)}}
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    result = api.train(config(straight, "rig:SignallingEnv", **options), quiet=True)
    assert (result.run, result.exit_code) == (straight, 0) and result.summary.startswith("return ")

    marker.touch()
    result = api.train(config(stopped, "rig:SignallingEnv", **options), quiet=True)
    assert result.exit_code == 130 and "pronghorn resume" in result.summary and not marker.exists()
    assert "saving a checkpoint" in capfd.readouterr().err
    loaded = checkpoint.load_latest(stopped)
    assert 0 < loaded.step < 300
    rows = loaded.tensors["actor/carry/row"]
    assert 0 < rows.max() < 7  # in the middle of an unroll

    assert api.resume(stopped, quiet=True).exit_code == 0
    assert_equal_runs(straight, stopped)
    events = lines(stopped, "events.jsonl")
    assert [event["event"] for event in events if event["event"] != "checkpoint"] == ["start", "stop", "resume", "stop"]
    resumed = next(event for event in events if event["event"] == "resume")
    assert resumed["envs"] == "envs replayed to where they stood" and resumed["checkpoint"] == loaded.path.name
    assert [event["step"] for event in events if event["event"] == "stop"] == [loaded.step, lines(stopped)[-1]["step"]]
    assert "has finished" in api.resume(stopped, quiet=True).summary


@pytest.mark.parametrize("env", ["rig:UnseedableEnv", "rig:ForgetfulEnv"])
def test_envs_that_cannot_be_brought_back_are_told_of(tmp_path, monkeypatch, env):
    monkeypatch.setattr(session, "StopRequest", lambda: rig.StopAfter(30))
    api.train(config(tmp_path / "run", env), quiet=True)
    monkeypatch.undo()
    api.resume(tmp_path / "run", quiet=True)
    resumed = next(event for event in lines(tmp_path / "run", "events.jsonl") if event["event"] == "resume")
    assert resumed["envs"] == "envs began new episodes"


@pytest.mark.parametrize("calls", [1, -3])
def test_a_stop_at_either_end_of_the_run(tmp_path, monkeypatch, calls):
    asked = rig.StopAfter(10**6)
    monkeypatch.setattr(session, "StopRequest", lambda: asked)
    api.train(config(tmp_path / "straight"), quiet=True)
    if calls < 0:  # from the end
        calls += 10**6 - asked.calls
    monkeypatch.setattr(session, "StopRequest", lambda: rig.StopAfter(calls))
    assert api.train(config(tmp_path / "run"), quiet=True).exit_code == 130
    monkeypatch.undo()
    step = checkpoint.load_latest(tmp_path / "run").step
    assert step == 0 if calls == 1 else step >= 300  # the evaluation at the end is still to come
    api.resume(tmp_path / "run", quiet=True)
    assert_equal_runs(tmp_path / "straight", tmp_path / "run")
    written = lines(tmp_path / "run")
    assert "has finished" in api.resume(tmp_path / "run", quiet=True).summary and lines(tmp_path / "run") == written


def test_killed_before_its_first_checkpoint_it_begins_from_the_start(tmp_path):
    api.train(config(tmp_path / "straight"), quiet=True)
    shutil.copytree(tmp_path / "straight", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert api.resume(tmp_path / "run", quiet=True).exit_code == 0
    assert_equal_runs(tmp_path / "straight", tmp_path / "run")
    resumed = next(event for event in lines(tmp_path / "run", "events.jsonl") if event["event"] == "resume")
    assert resumed["envs"] == "begun from the start" and resumed["step"] == 0


def test_a_finished_run_may_be_extended(tmp_path):
    run = tmp_path / "run"
    api.train(config(run), quiet=True)
    done = lines(run)[-1]["step"]
    api.resume(run, steps=450, quiet=True)
    steps = [line["step"] for line in lines(run)]
    assert steps == sorted(steps) and done in steps and steps[-1] >= 450
    assert api.load_config(run).steps == 450


def test_images_are_learnt_on_all_cores_and_never_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "available_cores", lambda: {0, 1})
    monkeypatch.setattr(decisions, "COMPILING_PAYS_FROM", 0)
    small = {"threads": None, "compile": None, "core": "none", "steps": 100}
    made = config(tmp_path / "run", "ImageBanditEnv", image_encoder="shallow", **small)
    threads = torch.get_num_threads()
    try:
        api.train(made, quiet=True)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert api.evaluate(tmp_path / "run", episodes=2)["episodes"] == 2
        assert torch.get_num_threads() == 2
        api.train(config(tmp_path / "other"), quiet=True)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    written = api.load_config(tmp_path / "run")
    assert (written.threads, written.compile) == (2, False)
    reasons = lines(tmp_path / "run", "events.jsonl")[0]["decisions"]
    assert "update not compiled: convolutions gain nothing from it" in reasons
    policy = pronghorn.load(tmp_path / "run")
    assert policy.act(np.zeros((1, 36, 36), np.uint8)) in range(4)


def test_what_a_run_leaves_behind(tmp_path):
    made = config(tmp_path / "run", keep_checkpoints=2, layout="auto", compile=None, threads=None, env_args={})
    api.train(made, quiet=True)
    run = tmp_path / "run"
    assert {"config.json", "metrics.jsonl", "events.jsonl", "tensorboard", "checkpoints"} <= {
        path.name for path in run.iterdir()
    }
    written = api.load_config(run)
    assert written.vec.layout in ("serial", "pool") and written.vec.workers and written.compile is False
    assert written.threads == 1 and override(written, layout="auto", workers=1, compile=None, threads=None) == made
    assert set(json.loads((run / "config.json").read_text())["versions"]) >= {"torch", "numpy", "pronghorn", "python"}
    assert len(list((run / "checkpoints").iterdir())) == 2
    start = lines(run, "events.jsonl")[0]
    assert start["event"] == "start" and any("not compiled" in reason for reason in start["decisions"])
    for line in lines(run):
        assert {"step", "frames", "seconds", "updates", "episodes"} <= set(line) and line["frames"] == line["step"]
    assert {"eval/return", "eval/return_std", "eval/episodes"} <= set(lines(run)[-1])
    assert {"loss/policy", "policy/kl", "policy/entropy", "value/explained_variance", "time/env", "lag/mean"} <= set(
        lines(run)[0]
    )


def test_an_env_that_cannot_be_closed_spoils_nothing(tmp_path, monkeypatch):
    """A watchdog ends the process; here it lets the env go instead."""
    hung = []

    def end(made, *call):
        hung.append(call)
        (tmp_path / "let-go").touch()

    monkeypatch.setattr(session, "_end_of_hang", end)
    monkeypatch.setattr(build, "timeouts", lambda made: Timeouts(close=0.3))
    monkeypatch.setattr(session, "StopRequest", lambda: rig.StopAfter(30))
    monkeypatch.setattr(rig.CountingEnv, "close", lambda env: rig.wait_for(tmp_path / "let-go"))
    (tmp_path / "let-go").touch()
    monkeypatch.setattr(build, "evaluator", wrapped(build.evaluator, (tmp_path / "let-go").unlink))
    assert api.train(config(tmp_path / "run"), quiet=True).exit_code == 130
    assert hung == [(hung[0][0], "close", 0.3)]
    monkeypatch.undo()
    api.resume(tmp_path / "run", quiet=True)
    resumed = next(event for event in lines(tmp_path / "run", "events.jsonl") if event["event"] == "resume")
    assert resumed["envs"] == "envs replayed to where they stood"


def wrapped(function, before):
    def call(*arguments):
        before()
        return function(*arguments)

    return call


def test_mistakes(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(UserError, match=r"is not a run: it has no config\.json"):
        api.resume(run)
    api.train(config(run), quiet=True)
    with pytest.raises(UserError, match="exists and is not empty; continue it with `pronghorn resume"):
        api.train(config(run), quiet=True)
    with pytest.raises(UserError, match="--device nonsense cannot be used"):
        api.train(config(tmp_path / "other", device="nonsense"), quiet=True)
    assert not (tmp_path / "other").exists()
    with pytest.raises(UserError, match="--episodes must be positive, not 0"):
        api.evaluate(run, 0)
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace("CountingEnv", "TwoLengthEnv"))
    for attempt in (lambda: api.resume(run, 900, quiet=True), lambda: api.evaluate(run), lambda: api.load(run)):
        with pytest.raises(UserError, match=r"made for another env: action was discrete .* of \[5\], is .* of \[2\]"):
            attempt()
    (run / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        api.load_config(run)


def test_evaluating_a_run(tmp_path):
    run = tmp_path / "run"
    api.train(config(run), quiet=True)
    report = api.evaluate(run, 5)
    assert set(report) == {"episodes", "capped", "return_mean", "return_std", "return_quartiles", "length_mean"}
    assert report["episodes"] == 5 and report["capped"] == 0
    assert api.evaluate(run, 5) == report == pronghorn.evaluate(run, 5)
    assert api.evaluate(run, 5, seed=99) != report
    # Training's own evaluation at the end played the first episode of each of two envs.
    assert api.evaluate(run, 2)["return_mean"] == lines(run)[-1]["eval/return"]


def test_a_run_names_its_bottleneck_at_its_end(tmp_path, capsys):
    api.train(config(tmp_path / "run"))
    *_, last = capsys.readouterr().out.splitlines()
    found = re.fullmatch(r"bottleneck: [\w ]+, (\d+)% of the time: .*--[a-z-]+.*", last)
    assert 0 < int(found[1]) <= 100
    api.train(config(tmp_path / "quiet"), quiet=True)
    assert capsys.readouterr().out == ""
