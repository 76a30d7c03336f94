"""The last action and reward as inputs: which row sees which, and that no episode sees another's."""

from __future__ import annotations

import numpy as np
import pytest
import rig
import torch

from pronghorn import tree
from pronghorn.config import NetworkConfig
from pronghorn.networks.agent import Agent
from pronghorn.networks.encoders import Inputs, LastStep, with_last_step
from pronghorn.types import ACTION_MASK, EnvSpec, Leaf


def box(shape, dtype=np.float32):
    return Leaf("box", shape, np.dtype(dtype), np.full(shape, -np.inf), np.full(shape, np.inf))


def discrete(n, start=0):
    return Leaf("discrete", (), np.dtype(np.int64), categories=(n,), start=np.array(start) if start else None)


def test_rewards_are_clipped_discrete_actions_one_hot_and_boxes_raw():
    last_step = LastStep({"move": box((1, 2)), "jump": discrete(3, start=-1), "aim": box(())})
    assert last_step.size == 1 + 1 + 3 + 2
    action = {
        "move": torch.tensor([[[5.0, -7.0]]] * 3),
        "jump": torch.tensor([0, 2, 1]),  # as sampled: from 0
        "aim": torch.tensor([0.5, 1.5, 2.5]),
    }
    first = torch.tensor([False, False, True])
    found = last_step(Inputs(None, action, torch.tensor([-3.0, 0.25, 9.0])), first)
    # Reward, then aim, jump and move, in order of keys.
    wanted = [[-1, 0.5, 1, 0, 0, 5, -7], [0.25, 1.5, 0, 0, 1, 5, -7], [0] * 7]
    assert torch.equal(found, torch.tensor(wanted, dtype=torch.float32))


def test_what_does_not_count_cannot_poison_the_first_row():
    last_step = LastStep(box((1,)))
    absurd = torch.full((1, 1), torch.nan)
    assert not last_step(Inputs(None, absurd, absurd[0]), torch.tensor([True])).any()


def test_row_by_row_it_is_what_was_done_before():
    made = rig.config("CountingEnv", last_action_and_reward=True, unroll_length=7)
    with rig.parts(made) as (actor, _):
        oracles = [rig.Oracle(made.seed, env) for env in range(made.vec.num_envs)]
        last = [(0, 0.0)] * len(oracles)
        starts = 0
        for _ in range(3):
            batch = actor.collect()
            seen = with_last_step(batch.map(torch.as_tensor)).observation
            features = LastStep(actor.vec.spec.action)(seen, torch.as_tensor(batch.first))
            assert seen.observation.shape == (8, 5, 3) and features.shape == (8, 5, 6)
            for env, oracle in enumerate(oracles):
                for row in range(8):
                    action, reward = (None, 0.0) if oracle.first else last[env]
                    starts += oracle.first
                    wanted = [min(reward, 1.0), *(float(action == choice) for choice in range(5))]
                    assert features[row, env].tolist() == wanted
                    if row < 7:
                        chosen = int(batch.action[row, env])
                        last[env] = chosen, oracle.act(chosen)["reward"]
        assert starts > 10


def test_it_joins_behind_the_torso_before_the_core_in_the_published_order():
    config = NetworkConfig(torso=(6,), core="lstm", core_size=4, last_action_and_reward=True, layers=())
    agent = Agent(EnvSpec("test", box((2,)), discrete(3)), config, 0)
    assert agent.core.input_weight.shape == (16, 6 + 1 + 3)
    inputs = Inputs(torch.randn(2, 5, 2), torch.tensor([[1] * 5, [2] * 5]), torch.full((2, 5), 0.5))
    first = torch.zeros(2, 5, dtype=torch.bool)
    seen = []
    agent.core.register_forward_pre_hook(lambda _, data: seen.append(data[0]))
    agent(inputs, first, agent.initial_state(5))
    assert seen[0][:, :, 6:].tolist() == [[[0.5, 0, 1, 0]] * 5, [[0.5, 0, 0, 1]] * 5]
    assert torch.equal(seen[0][:, :, :6], agent.torso(agent.encoder(inputs.observation)))


@pytest.mark.parametrize("core", ["none", "counting", "lstm", "gru"])
@pytest.mark.parametrize("last", [False, True])
def test_stepping_is_unrolling(core, last):
    mask = Leaf("multi_binary", (3,), np.dtype(np.int8), categories=(2,) * 3)
    action = {"move": box((2,)), "jump": discrete(3)}
    config = NetworkConfig(core=core, core_size=5, last_action_and_reward=last, torso=(4,), layers=(6,))
    agent = Agent(EnvSpec("test", {ACTION_MASK: mask, "x": box((3,))}, action), config, 1)
    random = torch.Generator().manual_seed(0)
    rows, batch = 12, 4
    observation = {
        ACTION_MASK: torch.tensor([1, 0, 1], dtype=torch.int8).expand(rows, batch, 3),
        "x": torch.randn(rows, batch, 3, generator=random),
    }
    if last:
        done = {
            "move": torch.randn(rows, batch, 2, generator=random),
            "jump": torch.randint(3, (rows, batch), generator=random),
        }
        observation = Inputs(observation, done, torch.randn(rows, batch, generator=random))
    for share in (0.0, 0.05, 0.5):
        first = torch.rand(rows, batch, generator=random) < share
        output = agent(observation, first, agent.initial_state(batch))
        state = agent.initial_state(batch)
        for row in range(rows):
            here = tree.map(lambda array, row=row: array[row], observation)
            parameters, state = agent.step(here, first[row], state)
            torch.testing.assert_close(parameters, output.parameters[row], rtol=1e-6, atol=1e-6)
            assert torch.equal(parameters[:, 1] < -1e8, torch.ones(batch, dtype=torch.bool))  # the mask is still seen
        for one, other in zip(tree.leaves(state), tree.leaves(output.core_state), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_without_the_option_nothing_changes():
    agent = Agent(EnvSpec("test", box((2,)), discrete(3)), NetworkConfig(), 0)
    batch = object()
    assert agent.last_step is None and agent.seen(batch) is batch
