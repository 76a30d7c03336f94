"""Encoders, streams, cores and the agent made of them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from pronghorn.config import NetworkConfig
from pronghorn.networks.agent import Agent
from pronghorn.networks.encoders import Encoder
from pronghorn.networks.mlp import MLP, Torso
from pronghorn.ops.running import batch_moments
from pronghorn.types import ACTION_MASK, EnvSpec, Leaf, UserError


def box(shape, dtype=np.float32):
    return Leaf("box", shape, np.dtype(dtype), np.full(shape, -np.inf), np.full(shape, np.inf))


def discrete(n, start=0):
    return Leaf("discrete", (), np.dtype(np.int64), categories=(n,), start=np.array(start) if start else None)


def multi(*categories, shape=None):
    return Leaf("multi_discrete", shape or (len(categories),), np.dtype(np.int64), categories=categories)


def encoder_of(observation, **options):
    return Encoder(observation, NetworkConfig(**options), torch.Generator().manual_seed(0))


def make(observation, action, seed=0, **options):
    return Agent(EnvSpec("test", observation, action), dataclasses.replace(NetworkConfig(), **options), seed)


MIXED = {
    "z": discrete(3, start=5),
    "a": box((2, 2)),
    "m": multi(2, 4),
    "flag": Leaf("multi_binary", (2,), np.dtype(np.int8), categories=(2, 2)),
    "scalar": box((), np.float64),
}


def mixed_observation(*leading):
    def full(values, dtype):
        array = torch.tensor(values, dtype=dtype)
        return array.expand((*leading, *array.shape)).clone()

    return {
        "z": full(7, torch.int64),
        "a": full([[1.0, 2.0], [3.0, 4.0]], torch.float32),
        "m": full([1, 2], torch.int64),
        "flag": full([0, 1], torch.int8),
        "scalar": full(0.5, torch.float64),
    }


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_boxes_are_laid_flat_and_discrete_values_one_hot(leading):
    encoder = encoder_of(MIXED, normalise_observations=False)
    assert (encoder.vector_size, encoder.size) == (5, 5 + 4 + 6 + 3)
    # In order of keys: a, scalar; then flag, m, z.
    wanted = [1, 2, 3, 4, 0.5, *(1, 0, 0, 1), *(0, 1, 0, 0, 1, 0), *(0, 0, 1)]
    features = encoder(mixed_observation(*leading))
    assert features.shape == (*leading, 18) and features.dtype == torch.float32
    assert torch.equal(features, torch.tensor(wanted).expand(*leading, 18))


def test_only_boxes_are_normalised_and_the_mask_is_left_out():
    encoder = encoder_of({**MIXED, ACTION_MASK: multi(2, 2)}, observation_clip=2.0)
    assert encoder.size == 18
    observation = {**mixed_observation(4), ACTION_MASK: torch.ones(4, 2)}
    assert torch.equal(encoder(observation)[0, :5], torch.tensor([1.0, 2.0, 2.0, 2.0, 0.5]))  # clipped
    vectors = torch.stack([encoder.vector(observation), encoder.vector(observation) + 6])
    encoder.normaliser.update(batch_moments(vectors, torch.ones(2, 4, dtype=torch.bool)))
    features = encoder(observation)
    torch.testing.assert_close(features[:, :5], torch.full((4, 5), -1.0))
    assert set(features[:, 5:].unique().tolist()) == {0.0, 1.0}


def test_what_cannot_be_encoded_is_named():
    with pytest.raises(UserError, match=r"observation/camera is 4×4 pixels, too small"):
        encoder_of({"camera": box((4, 4), np.uint8)})
    with pytest.raises(UserError, match="observation space is empty"):
        encoder_of({})
    assert encoder_of(box((4,), np.uint8)).size == 4
    assert encoder_of(discrete(3)).normaliser is None


def test_orthogonal_layers_have_gain_root_two_and_a_scaled_last_one():
    layers = MLP([6, 4, 9, 2], "tanh", init="orthogonal", output_scale=0.01, generator=torch.Generator().manual_seed(1))
    weights = [layer.weight for layer in layers.layers]
    for weight, gain in zip(weights, (math.sqrt(2), math.sqrt(2), 0.01), strict=True):
        singular = torch.linalg.svdvals(weight)
        torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-5, atol=1e-7)
    assert not any(layer.bias.any() for layer in layers.layers)
    x = torch.randn(5, 6)
    first, second, last = layers.layers
    torch.testing.assert_close(layers(x), last(torch.tanh(second(torch.tanh(first(x))))))
    plain = MLP([6, 2], "relu", init="orthogonal", output_scale=None, generator=torch.Generator())
    torch.testing.assert_close(torch.linalg.svdvals(plain.layers[0].weight), torch.ones(2))


def test_glorot_layers_are_uniform_and_the_scaled_last_one_a_truncated_normal():
    def weights(scale):
        layers = MLP([300, 200, 100], "relu", init="glorot", output_scale=scale, generator=torch.Generator())
        return [layer.weight.detach() for layer in layers.layers]

    hidden, last = weights(0.1)
    bound = math.sqrt(6 / 500)
    assert 0.98 * bound < hidden.abs().max() <= bound
    assert hidden.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    sigma = math.sqrt(1.3 * 0.1 / 200)
    assert last.abs().max() <= 2 * sigma * (1 + 1e-6)
    # The standard deviation of a normal cut at two sigmas is 0.8796 of it: 1.3 makes up for that.
    assert last.std().item() == pytest.approx(0.8796 * sigma, rel=0.02)
    bound = math.sqrt(6 / 300)
    assert 0.98 * bound < weights(None)[1].abs().max() <= bound


def test_stepping_is_unrolling():
    agent = make(box((3,)), {"move": box((2,)), "jump": discrete(3)}, core="counting")
    generator = torch.Generator().manual_seed(0)
    observation = torch.randn(6, 4, 3, generator=generator)
    first = torch.rand(6, 4, generator=generator) < 0.3
    output = agent(observation, first, agent.initial_state(4))
    assert output.parameters.shape == (6, 4, 2 * 2 + 3) and output.values.shape == (6, 4)
    state = agent.initial_state(4)
    for row in range(6):
        parameters, state = agent.step(observation[row], first[row], state)
        torch.testing.assert_close(parameters, output.parameters[row])
    assert torch.equal(state, output.core_state)
    assert agent(observation, first, agent.initial_state(4), policy=False).parameters.numel() == 0
    assert agent(observation, first, agent.initial_state(4), value=False).values.numel() == 0


def test_streams_share_nothing():
    agent = make(box((3,)), discrete(4))
    output = agent(torch.randn(5, 3), torch.zeros(5, dtype=torch.bool), ())
    names = dict(agent.named_parameters())
    gradients = torch.autograd.grad(output.values.sum(), list(names.values()), allow_unused=True)
    touched = {name.partition(".")[0] for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    assert touched == {"value"} and {name.partition(".")[0] for name in names} == {"policy", "value"}


def test_streams_share_the_encoder_of_images():
    agent = make(box((1, 20, 20), np.uint8), discrete(4), image_encoder="shallow", layers=())
    images = torch.randint(0, 256, (5, 1, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    output = agent(images, torch.zeros(5, dtype=torch.bool), ())
    assert output.parameters.shape == (5, 4) and output.values.shape == (5,)
    names = dict(agent.named_parameters())
    for outcome, stream in ((output.values, "value"), (output.parameters, "policy")):
        weight = torch.arange(1.0, 1 + outcome.numel()).reshape(outcome.shape)
        gradients = torch.autograd.grad(
            (weight * outcome).sum(), list(names.values()), retain_graph=True, allow_unused=True
        )
        pairs = zip(names, gradients, strict=True)
        touched = {name.partition(".")[0] for name, gradient in pairs if gradient is not None and gradient.any()}
        assert touched == {"encoder", stream}
    assert [name for name in names if name.startswith("policy")] == ["policy.layers.0.weight", "policy.layers.0.bias"]


@pytest.mark.parametrize("parametrisation", ["log", "softplus"])
@pytest.mark.parametrize("std", [0.6065, 0.35])
def test_the_standard_deviation_starts_where_it_should(parametrisation, std):
    agent = make(box((3,)), box((2,)), initial_std=std, std_parametrisation=parametrisation)
    parameters, _ = agent.step(torch.randn(7, 3), torch.zeros(7, dtype=torch.bool), ())
    torch.testing.assert_close(parameters[:, 2:].exp(), torch.full((7, 2), std))
    assert parameters[:, :2].abs().max() < 0.1  # a policy that starts with no opinion
    agent = make(box((3,)), box((2,)), mean_activation="tanh")
    with torch.no_grad():
        agent.policy.layers[-1].bias.fill_(50.0)
    parameters, _ = agent.step(torch.randn(7, 3), torch.zeros(7, dtype=torch.bool), ())
    assert torch.equal(parameters[:, :2], torch.ones(7, 2))


def test_the_seed_decides_the_parameters():
    torch.manual_seed(1)
    one = make(box((3,)), discrete(4), seed=5).state_dict()
    torch.manual_seed(2)
    same, other = make(box((3,)), discrete(4), seed=5).state_dict(), make(box((3,)), discrete(4), seed=6).state_dict()
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(one["policy.layers.0.weight"], other["policy.layers.0.weight"])
    assert not torch.equal(one["policy.layers.0.weight"], one["value.layers.0.weight"])


@pytest.mark.parametrize("scale", [None, 0.1])
def test_lecun_layers_are_truncated_normals_the_last_one_too(scale):
    layers = MLP([300, 200, 100], "relu", init="lecun", output_scale=scale, generator=torch.Generator())
    for layer, inputs in zip(layers.layers, (300, 200), strict=True):
        sigma = 1 / math.sqrt(inputs)
        assert 1.9 * sigma < layer.weight.abs().max() <= 2 * sigma * (1 + 1e-6) and not layer.bias.any()
        assert layer.weight.std().item() == pytest.approx(0.8796 * sigma, rel=0.02)


@pytest.mark.parametrize(("activation", "function"), [("relu", torch.relu), ("tanh", torch.tanh)])
def test_a_torso_activates_every_layer(activation, function):
    torso = Torso([3, 5, 4], activation, init="orthogonal", generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(1))
    first, second = torso.layers
    torch.testing.assert_close(torso(x), function(second(function(first(x)))))
    assert torso.size == 4
    torch.testing.assert_close(torch.linalg.svdvals(second.weight), torch.full((4,), math.sqrt(2)))


def test_streams_share_torso_and_core():
    agent = make(box((3,)), discrete(4), torso=(5,), core="gru", core_size=6)
    output = agent(torch.randn(2, 5, 3), torch.zeros(2, 5, dtype=torch.bool), agent.initial_state(5))
    names = dict(agent.named_parameters())
    for outcome, stream in ((output.values, "value"), (output.parameters, "policy")):
        gradients = torch.autograd.grad(outcome.sum(), list(names.values()), retain_graph=True, allow_unused=True)
        pairs = zip(names, gradients, strict=True)
        assert {name.partition(".")[0] for name, one in pairs if one is not None} == {"torso", "core", stream}


@pytest.mark.parametrize("shape", [(5,), (1, 5)])
def test_illegal_actions_have_probability_zero(shape):
    mask = Leaf("multi_binary", shape, np.dtype(np.int8), categories=(2,) * 5)
    agent = make({ACTION_MASK: mask, "x": box((2,))}, multi(2, 3))
    legal = torch.tensor([[1, 0, 0, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.int8)
    observation = {ACTION_MASK: legal.reshape(2, *shape), "x": torch.zeros(2, 2)}
    parameters, _ = agent.step(observation, torch.zeros(2, dtype=torch.bool), ())
    for found in (parameters, agent.random_parameters(observation, 2)):
        probabilities = torch.cat([torch.softmax(found[:, :2], -1), torch.softmax(found[:, 2:], -1)], -1)
        assert torch.equal(probabilities != 0, legal != 0)
    torch.testing.assert_close(probabilities[0], torch.tensor([1.0, 0.0, 0.0, 0.5, 0.5]))


def test_a_mask_of_the_wrong_size_is_named():
    mask = Leaf("multi_binary", (4,), np.dtype(np.int8), categories=(2,) * 4)
    with pytest.raises(UserError, match=r"observation/action_mask has 4 entries .* 5 choices"):
        make({ACTION_MASK: mask, "x": box((2,))}, discrete(5))


def test_random_parameters_are_uniform_or_standard_normal():
    agent = make(box((3,)), {"move": box((2,)), "jump": discrete(3)})
    assert not agent.random_parameters(torch.zeros(6, 3), 6).any()
    assert agent.random_parameters(torch.zeros(6, 3), 6).shape == (6, 7)
