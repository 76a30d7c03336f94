"""The NumPy policy against the agent it stands for."""

import numpy as np
import pytest
import torch

from pronghorn.acting.inference import Inference
from pronghorn.acting.numpy_policy import NumpyPolicy
from pronghorn.config import NetworkConfig
from pronghorn.envs.text import text_leaf
from pronghorn.networks.agent import Agent
from pronghorn.ops.running import batch_moments
from pronghorn.types import ACTION_MASK, EnvSpec, Leaf


def box(shape, dtype=np.float64):
    return Leaf("box", shape, np.dtype(dtype), np.full(shape, -np.inf), np.full(shape, np.inf))


def discrete(n):
    return Leaf("discrete", (), np.dtype(np.int64), categories=(n,))


def agent_of(observation, action, **options):
    return Agent(EnvSpec("test", observation, action), NetworkConfig(**options), seed=5)


AGENTS = {
    "tanh": (box((4, 2)), box((3,)), {}),
    "batchppo": (
        box((6,)),
        box((2, 2)),
        {
            "activation": "relu",
            "mean_activation": "tanh",
            "init": "glorot",
            "std_parametrisation": "softplus",
            "initial_std": 0.35,
        },
    ),
    "not normalised": (box((5,), np.float32), box((1,)), {"normalise_observations": False}),
    "categorical": (box((5,), np.float32), discrete(4), {}),
}


@pytest.mark.parametrize("kind", AGENTS)
def test_it_chooses_as_the_agent_does_also_after_new_weights(kind):
    observation, action, options = AGENTS[kind]
    acting, learnt = (agent_of(observation, action, **options) for _ in range(2))
    inference = Inference(acting)
    assert NumpyPolicy.supports(acting)
    random = np.random.default_rng(0)
    seen = (30 * random.standard_normal((16, *observation.shape))).astype(observation.dtype)
    noise = acting.distribution.draw_noise(random, (16,))
    with torch.no_grad():
        for parameter in learnt.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        if learnt.encoder.normaliser is not None:
            vectors = torch.from_numpy(seen).flatten(1)
            learnt.encoder.normaliser.update(batch_moments(vectors, torch.ones(16, dtype=torch.bool)))
        for version, weights in enumerate((acting.state_dict(), learnt.state_dict())):
            inference.load({name: value.clone() for name, value in weights.items()}, version)
            parameters, _ = acting.step(torch.from_numpy(seen), torch.zeros(16, dtype=torch.bool), ())
            for mode in ("sample", "mode"):
                inference.mode = mode
                choice = inference(seen, np.zeros(16, bool), (), noise)
                np.testing.assert_allclose(choice.behaviour, parameters.numpy(), rtol=1e-5, atol=2e-6)
                distribution = acting.distribution
                behaviour = torch.from_numpy(choice.behaviour)
                expected = (
                    distribution.sample(behaviour, torch.from_numpy(noise))
                    if mode == "sample"
                    else distribution.mode(behaviour)
                ).numpy()
                assert choice.action.dtype == expected.dtype and choice.action.shape == expected.shape
                np.testing.assert_allclose(choice.action, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("observation", "action", "options"),
    [
        ({"a": box((2,))}, box((1,)), {}),
        (discrete(3), box((1,)), {}),
        (box((2,)), {"a": box((1,)), "b": discrete(2)}, {}),
        (box((2,)), {"a": box((1,))}, {}),
        (box((2,)), (discrete(2),), {}),
        (box((2,)), Leaf("multi_discrete", (2,), np.dtype(np.int64), categories=(3, 3)), {}),
        ({"a": box((2,)), ACTION_MASK: box((2,), np.int8)}, discrete(2), {}),
        (box((2,)), box((1,)), {"core": "counting"}),
        (box((2,)), box((1,)), {"core": "lstm"}),
        (box((2,)), box((1,)), {"torso": (3,)}),
        (box((2,)), box((1,)), {"last_action_and_reward": True}),
        (box((20, 20), np.uint8), discrete(2), {"image_encoder": "shallow"}),
        (text_leaf(), discrete(2), {}),
        ({"a": box((2,)), "b": text_leaf()}, discrete(2), {}),
    ],
)
def test_other_agents_act_in_torch(observation, action, options):
    assert not NumpyPolicy.supports(agent_of(observation, action, **options))


def test_images_reach_the_agent_uncopied(monkeypatch):
    agent = agent_of(box((1, 20, 20), np.uint8), discrete(3), image_encoder="shallow")
    step, seen = agent.step, []
    monkeypatch.setattr(agent, "step", lambda observation, *rest: seen.append(observation) or step(observation, *rest))
    images = np.random.default_rng(0).integers(0, 256, (6, 1, 20, 20), np.uint8)
    part = images[2:5]
    choice = Inference(agent)(part, np.zeros(3, bool), (), np.zeros((3, agent.distribution.noise_size), np.float32))
    assert seen[0].dtype == torch.uint8 and seen[0].data_ptr() == part.ctypes.data
    assert choice.action.shape == (3,) and choice.behaviour.shape == (3, 3)
