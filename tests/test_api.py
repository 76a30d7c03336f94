"""Train, stop, resume, evaluate and load, through the files of a run."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import rig
import torch

import pronghorn
from pronghorn import api, build, checkpoint
from pronghorn.config import override
from pronghorn.envs.text import word_numbers
from pronghorn.networks.encoders import Inputs
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
    monkeypatch.setattr(api, "StopRequest", lambda: rig.StopAfter(30))
    api.train(config(tmp_path / "run", env), quiet=True)
    monkeypatch.undo()
    api.resume(tmp_path / "run", quiet=True)
    resumed = next(event for event in lines(tmp_path / "run", "events.jsonl") if event["event"] == "resume")
    assert resumed["envs"] == "envs began new episodes"


@pytest.mark.parametrize("calls", [1, -3])
def test_a_stop_at_either_end_of_the_run(tmp_path, monkeypatch, calls):
    asked = rig.StopAfter(10**6)
    monkeypatch.setattr(api, "StopRequest", lambda: asked)
    api.train(config(tmp_path / "straight"), quiet=True)
    if calls < 0:  # from the end
        calls += 10**6 - asked.calls
    monkeypatch.setattr(api, "StopRequest", lambda: rig.StopAfter(calls))
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
    monkeypatch.setattr(api, "available_cores", lambda: {0, 1})
    monkeypatch.setattr(api, "COMPILING_PAYS_FROM", 0)
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

    monkeypatch.setattr(api, "_end_of_hang", end)
    monkeypatch.setattr(api.build, "timeouts", lambda made: Timeouts(close=0.3))
    monkeypatch.setattr(api, "StopRequest", lambda: rig.StopAfter(30))
    monkeypatch.setattr(rig.CountingEnv, "close", lambda env: rig.wait_for(tmp_path / "let-go"))
    (tmp_path / "let-go").touch()
    monkeypatch.setattr(api.build, "evaluator", wrapped(api.build.evaluator, (tmp_path / "let-go").unlink))
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
    for attempt in (lambda: api.resume(run, 900, quiet=True), lambda: api.evaluate(run), lambda: api.Policy(run)):
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


@pytest.mark.parametrize("env", ["gymnasium:Pendulum-v1", "MaskedBanditEnv", "CountingEnv"])
def test_a_loaded_policy_acts_as_the_agent_does(tmp_path, env):
    run = tmp_path / "run"
    made = config(run, env, steps=120, evaluate_every=1000)
    api.train(made, quiet=True)
    policy, sampling = pronghorn.load(run), pronghorn.load(run, sample=True)
    envs = build.env_factory(made.env, made.env_args)()
    agent = build.agent(made, envs.spec)
    agent.load_state_dict(api._agent_state(checkpoint.load_latest(run)))
    sampled = []
    for _ in range(2):
        policy.reset()
        observation, _ = envs.reset(seed=4)
        state, first = agent.initial_state(1), True
        for count in range(4):
            batch = api.tree.map(lambda array: torch.as_tensor(np.asarray(array))[None], observation)
            with torch.no_grad():
                parameters, state = agent.step(batch, torch.tensor([first]), state)
            mode = agent.distribution.mode(parameters)[0].numpy()
            action = policy.act(observation)
            first = False
            if env == "gymnasium:Pendulum-v1":  # torques within ±2, the agent's own unit is 1
                np.testing.assert_allclose(action, 2 * np.clip(mode, -1, 1), rtol=1e-6)
            else:
                assert action == mode
            assert policy._core_state == state == count + 1
            sampled.append(sampling.act(observation))
            observation, *_ = envs.step(action)
    assert len({str(action) for action in sampled}) > 1


def test_a_loaded_policy_is_told_its_last_step(tmp_path):
    made = config(tmp_path / "run", core="gru", core_size=6, last_action_and_reward=True, torso=(5,), steps=60)
    api.train(made, quiet=True)
    policy = pronghorn.load(tmp_path / "run")
    agent = build.agent(made, policy.spec)
    agent.load_state_dict(api._agent_state(checkpoint.load_latest(tmp_path / "run")))
    rewards = [0.25, -0.5, 0.75]
    for _ in range(2):
        policy.reset()
        state, action = agent.initial_state(1), 3  # at the start neither counts
        for count, reward in enumerate(rewards):
            seen = torch.full((1, 3), float(count))
            inputs = Inputs(seen, torch.tensor([action]), torch.tensor([reward]))
            with torch.no_grad():
                parameters, state = agent.step(inputs, torch.tensor([not count]), state)
            action = policy.act(seen[0].numpy(), reward)
            assert action == int(agent.distribution.mode(parameters))
            np.testing.assert_allclose(policy._core_state[0], state[0], atol=1e-6)


def test_an_unrolled_core_is_compiled_only_on_request(tmp_path):
    made = config(tmp_path / "run", core="lstm", core_size=4, compile=None, steps=10**8)
    chosen, reasons = api.decide(made)
    assert chosen.compile is False and "update not compiled: an LSTM or a GRU takes minutes to compile" in reasons


def test_what_reads_is_compiled_only_on_request(tmp_path):
    chosen, reasons = api.decide(config(tmp_path / "run", "InstructionEnv", compile=None, steps=10**8))
    assert chosen.compile is False and "update not compiled: an LSTM or a GRU takes minutes to compile" in reasons


def test_a_loaded_policy_reads_what_the_env_says(tmp_path):
    made = config(tmp_path / "run", "InstructionEnv", steps=60)
    api.train(made, quiet=True)
    policy = pronghorn.load(tmp_path / "run")
    agent = build.agent(made, policy.spec)
    agent.load_state_dict(api._agent_state(checkpoint.load_latest(tmp_path / "run")))
    seen = []
    policy.inference.agent.step = lambda observation, *rest: seen.append(observation) or agent.step(observation, *rest)
    for text in ("not left", "", "left"):
        assert policy.act({"instruction": text}) in (0, 1)
        assert seen[-1]["instruction"].tolist() == [word_numbers(text).tolist()]


def test_a_loaded_policy_stacks_what_it_is_shown(tmp_path):
    api.train(config(tmp_path / "run", frame_stack=3, steps=60), quiet=True)
    policy = pronghorn.load(tmp_path / "run")
    seen, step = [], policy._inference.agent.step
    policy._inference.agent.step = lambda observation, *rest: (
        seen.append(observation.tolist()) or step(observation, *rest)
    )
    for episode in (4, 5):
        policy.reset()
        for count in range(4):
            policy.act([episode, count, 0])
    assert all(shown[0][::3] == [4 + number // 4] * 3 for number, shown in enumerate(seen))
    assert [shown[0][1::3] for shown in seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]] * 2


def test_an_engine_that_is_chosen_by_rule_must_be_able_to_do_what_is_asked(tmp_path):
    made = dataclasses.replace(config(tmp_path / "run", layout="auto", frame_stack=2), env="ALE/Pong-v5")
    with pytest.raises(UserError, match="--frame-stack 2 is for envs that are stepped one by one"):
        api.train(made, quiet=True)


def test_training_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = pronghorn.train("CartPole-v1", steps=400, quiet=True, layout="serial", evaluation_episodes=1)
    assert result.exit_code == 0 and result.run.as_posix() == "runs/CartPole-v1-ppo-seed0"
    action = pronghorn.load(result.run).act(np.zeros(4))
    assert action in (0, 1)
    with pytest.raises(UserError, match="did you mean num_envs"):
        pronghorn.train("CartPole-v1", num_env=4)


def test_a_run_names_its_bottleneck_at_its_end(tmp_path, capsys):
    api.train(config(tmp_path / "run"))
    *_, last = capsys.readouterr().out.splitlines()
    found = re.fullmatch(r"bottleneck: [\w ]+, (\d+)% of the time: .*--[a-z-]+.*", last)
    assert 0 < int(found[1]) <= 100
    api.train(config(tmp_path / "quiet"), quiet=True)
    assert capsys.readouterr().out == ""
