"""A loaded policy, for one env and for several at once."""

from __future__ import annotations

import numpy as np
import pytest
import rig
import torch

import pronghorn
from pronghorn import api, build, checkpoint, tree
from pronghorn.envs.text import word_numbers
from pronghorn.networks.encoders import Inputs
from pronghorn.types import UserError


def run_of(path, env="CountingEnv", **options):
    made = rig.config(env, run=str(path / "run"), **{"steps": 60, "evaluation_episodes": 1, **options})
    api.train(made, quiet=True)
    return path / "run"


def trained_agent(run, spec):
    agent = build.agent(api.load_config(run), spec)
    agent.load_state_dict(tree.below(checkpoint.load_latest(run).tensors, "agent"))
    return agent


@pytest.mark.parametrize("env", ["gymnasium:Pendulum-v1", "MaskedBanditEnv", "CountingEnv"])
def test_a_loaded_policy_acts_as_the_agent_does(tmp_path, env):
    run = run_of(tmp_path, env, core="counting")
    made = api.load_config(run)
    policy, sampling = pronghorn.load(run), pronghorn.load(run, sample=True)
    envs = build.env_factory(made.env, made.env_args)()
    agent = trained_agent(run, envs.spec)
    sampled = []
    for _ in range(2):
        policy.reset()
        observation, _ = envs.reset(seed=4)
        state, first = agent.initial_state(1), True
        for count in range(4):
            batch = tree.map(lambda array: torch.as_tensor(np.asarray(array))[None], observation)
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
    run = run_of(tmp_path, core="gru", core_size=6, last_action_and_reward=True, torso=(5,))
    policy = pronghorn.load(run)
    agent = trained_agent(run, policy.spec)
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


def test_a_loaded_policy_reads_what_the_env_says(tmp_path):
    run = run_of(tmp_path, "InstructionEnv", core="counting")
    policy = pronghorn.load(run)
    agent = trained_agent(run, policy.spec)
    seen = []
    policy.inference.agent.step = lambda observation, *rest: seen.append(observation) or agent.step(observation, *rest)
    for text in ("not left", "", "left"):
        assert policy.act({"instruction": text}) in (0, 1)
        assert seen[-1]["instruction"].tolist() == [word_numbers(text).tolist()]


def test_a_loaded_policy_stacks_what_it_is_shown(tmp_path):
    policy = pronghorn.load(run_of(tmp_path, core="counting", frame_stack=3))
    seen, step = [], policy.inference.agent.step
    policy.inference.agent.step = lambda observation, *rest: (
        seen.append(observation.tolist()) or step(observation, *rest)
    )
    for episode in (4, 5):
        policy.reset()
        for count in range(4):
            policy.act([episode, count, 0])
    assert all(shown[0][::3] == [4 + number // 4] * 3 for number, shown in enumerate(seen))
    assert [shown[0][1::3] for shown in seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]] * 2


@pytest.mark.parametrize(
    "options", [{"core": "gru", "core_size": 5}, {"core": "lstm", "core_size": 5, "last_action_and_reward": True}]
)
def test_each_row_is_an_env_of_its_own(tmp_path, options):
    run = run_of(tmp_path, **options)
    many, singles = pronghorn.load(run), [pronghorn.load(run) for _ in range(3)]
    random = np.random.default_rng(0)
    for _ in range(2):
        many.reset()
        for single in singles:
            single.reset()
        for step in range(6):
            observation, reward = random.normal(size=(3, 3)), random.normal(size=3)
            first = random.random(3) < 0.3 if step else np.zeros(3, bool)
            for single, starts in zip(singles, first, strict=True):
                if starts:
                    single.reset()
            actions = many.act(observation, reward, first)
            assert actions.shape == (3,)
            expected = [single.act(o, r) for single, o, r in zip(singles, observation, reward, strict=True)]
            assert actions.tolist() == expected
            for row, single in enumerate(singles):
                for ours, theirs in zip(many._core_state, single._core_state, strict=True):
                    np.testing.assert_allclose(ours[row], theirs[0], atol=1e-6)


def test_a_core_counts_the_steps_of_each_row(tmp_path):
    policy = pronghorn.load(run_of(tmp_path, core="counting"))
    firsts = [[0, 0], [0, 1], [0, 0], [1, 0]]
    for first, count in zip(firsts, [[1, 1], [2, 1], [3, 2], [1, 3]], strict=True):
        policy.act(np.zeros((2, 3)), first=np.array(first, bool))
        assert policy._core_state.tolist() == count
    policy.act(np.zeros((2, 3)), first=True)
    assert policy._core_state.tolist() == [1, 1]
    policy.reset()
    policy.act(np.zeros((5, 3)))
    policy.act(np.zeros((5, 3)))
    assert policy._core_state.tolist() == [2] * 5


def test_samples_differ_between_rows(tmp_path):
    policy = pronghorn.load(run_of(tmp_path), sample=True)
    assert len(set(policy.act(np.zeros((50, 3))).tolist())) > 1


@pytest.mark.parametrize("env", ["rig:CameraBanditEnv", "rig:MixedEnv", "InstructionEnv", "gymnasium:Pendulum-v1"])
def test_spaces_of_every_kind_are_stacked(tmp_path, env):
    run = run_of(tmp_path, env, image_encoder="shallow")  # it takes small images
    views = [pronghorn.make_env(run) for _ in range(3)]
    observations = [view.reset(seed=seed)[0] for seed, view in enumerate(views)]
    expected = [pronghorn.load(run).act(observation) for observation in observations]
    actions = pronghorn.load(run).act(stack(observations))
    for row, (view, one) in enumerate(zip(views, expected, strict=True)):
        mine = {key: part[row] for key, part in actions.items()} if isinstance(actions, dict) else actions[row]
        assert view.action_space.contains(mine) and view.action_space.contains(one)
        for ours, theirs in zip(tree.leaves(mine), tree.leaves(one), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        view.step(mine)
        view.close()


def stack(parts):
    if isinstance(parts[0], dict):
        return {key: stack([part[key] for part in parts]) for key in parts[0]}
    return parts if isinstance(parts[0], str) else np.stack(parts)


@pytest.fixture(scope="module")
def told_its_last_step(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("policy"), last_action_and_reward=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(4),), r"observation has shape \(4,\); it must be \(3,\), or \(n, \.\.\.\)"),
        ((np.zeros((2, 2, 3)),), r"observation has shape \(2, 2, 3\)"),
        ((np.zeros((0, 3)),), r"observation has shape \(0, 3\)"),
        ((0.0,), r"observation has shape \(\)"),
        (("left",), "this is no observation of counting"),
        ((np.zeros((2, 3)), [1.0, 2.0, 3.0]), r"reward has shape \(3,\) for 2 observations"),
        ((np.zeros((2, 3)), 0.0, [True]), r"first has shape \(1,\) for 2 observations"),
    ],
)
def test_mistakes(told_its_last_step, arguments, message):
    with pytest.raises(UserError, match=message):
        pronghorn.load(told_its_last_step).act(*arguments)


def test_the_number_of_envs_stays(tmp_path):
    policy = pronghorn.load(run_of(tmp_path))
    policy.act(np.zeros(3))
    with pytest.raises(UserError, match=r"2 observations where there were 1 before; call reset\(\) in between"):
        policy.act(np.zeros((2, 3)))


def test_parts_that_are_stacked_differently(tmp_path):
    policy = pronghorn.load(run_of(tmp_path, "MaskedBanditEnv"))
    observation = pronghorn.make_env(tmp_path / "run").reset(seed=1)[0]
    with pytest.raises(UserError, match="observation/"):
        policy.act({key: part if key == "action_mask" else np.stack([part] * 2) for key, part in observation.items()})
    with pytest.raises(UserError, match=r"this is no observation of .*action_mask"):
        policy.act({key: part for key, part in observation.items() if key != "action_mask"})
