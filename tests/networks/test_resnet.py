"""The deep residual network against loops over pixels, and the published sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pronghorn.config import NetworkConfig
from pronghorn.networks import resnet
from pronghorn.networks.agent import Agent
from pronghorn.networks.resnet import CPU_IMAGES, ResNet
from pronghorn.types import EnvSpec, Leaf


def make(shape, seed=0):
    return ResNet(shape, init="orthogonal", generator=torch.Generator().manual_seed(seed))


def pixels(*shape):
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, shape, np.uint8))


def convolved(x, layer):
    """3×3 with a border of zeros, [C, H, W]."""
    weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    y = np.empty((len(weight), *x.shape[1:]))
    for row, column in np.ndindex(y.shape[1:]):
        patch = padded[:, row : row + 3, column : column + 3]
        y[:, row, column] = np.tensordot(weight, patch, 3) + bias
    return y


def pooled(x):
    """The rule of TensorFlow's "same": the padding is split in two, and of an odd one the far end has more."""
    starts = []
    for side in x.shape[1:]:
        halves = math.ceil(side / 2)
        before = max((halves - 1) * 2 + 3 - side, 0) // 2
        starts.append([2 * index - before for index in range(halves)])
    rows, columns = starts
    y = np.empty((len(x), len(rows), len(columns)))
    for i, j in np.ndindex(y.shape[1:]):
        y[:, i, j] = x[:, max(rows[i], 0) : rows[i] + 3, max(columns[j], 0) : columns[j] + 3].max((1, 2))
    return y


def by_loops(net, image):
    x = np.asarray(image, np.float64)
    for stage in net.stages:
        x = pooled(convolved(x, stage.entry))
        for one, other in stage.blocks:
            x = x + convolved(np.maximum(convolved(np.maximum(x, 0), one), 0), other)
    flat = np.maximum(x, 0).transpose(1, 2, 0).ravel()
    weight, bias = net.linear.weight.detach().double().numpy(), net.linear.bias.detach().double().numpy()
    return np.maximum(0.0, weight @ flat + bias)


@pytest.mark.parametrize("shape", [(2, 7, 10), (1, 12, 5), (3, 1, 2)])
def test_features_are_those_of_loops_over_the_pixels(shape):
    net = make(shape)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    images = pixels(2, *shape)
    found = net(images).detach().numpy()
    np.testing.assert_allclose(found, [by_loops(net, image / 255.0) for image in images.numpy()], rtol=1e-4, atol=1e-4)
    assert (found > 0).any() and net.size == 256


@pytest.mark.parametrize("shape", [(1, 1, 6, 6), (1, 1, 5, 5), (1, 1, 4, 7)])
def test_maxima_are_taken_where_tensorflow_takes_them(shape):
    x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    for sign in (1, -1):
        np.testing.assert_array_equal(resnet._halved(sign * x)[0], pooled(sign * x[0].numpy()))


def test_bytes_are_scaled_and_parts_are_put_together(monkeypatch):
    net, images = make((1, 8, 8)), pixels(2, 3, 1, 8, 8)
    kept = images.clone()
    whole = net(images)
    assert whole.shape == (2, 3, 256) and torch.equal(images, kept)
    torch.testing.assert_close(whole, net(images.to(torch.float32) / 255))
    assert CPU_IMAGES > 6
    monkeypatch.setattr(resnet, "CPU_IMAGES", 4)
    torch.testing.assert_close(net(images), whole)


def test_convolutions_run_with_channels_innermost():
    net, seen = make((4, 84, 84)), []
    for layer in net.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(lambda _, inputs, output: seen.extend((inputs[0], output)))
    net(pixels(2, 4, 84, 84))
    assert len(seen) == 2 * 15 and all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)


ATARI, LAB = (4, 84, 84), (72, 96, 3)


@pytest.mark.parametrize(
    ("shape", "actions", "options", "parameters"),
    [
        (ATARI, 18, {"image_encoder": "deep"}, 1_094_115),
        # The published 1,628,010 less the instruction encoder, its 64 inputs to the LSTM, and its embedding.
        (
            LAB,
            9,
            {"image_encoder": "deep", "core": "lstm", "last_action_and_reward": True},
            1_628_010 - 1000 * 20 - 4 * 64 * (20 + 64 + 1) - 4 * 256 * 64,
        ),
        (ATARI, 18, {"image_encoder": "shallow"}, 676_144 + 257 * 19),
        (ATARI, 18, {"image_encoder": "nature"}, 1_684_128 + 513 * 19),
        (
            ATARI,
            6,
            {"image_encoder": "shallow", "core": "lstm", "last_action_and_reward": True},
            676_144 + 4 * 256 * (256 + 1 + 6 + 256 + 1) + 257 * 7,
        ),
    ],
)
def test_whole_agents_have_the_published_sizes(shape, actions, options, parameters):
    image = Leaf("box", shape, np.dtype(np.uint8), np.zeros(shape), np.full(shape, 255.0))
    action = Leaf("discrete", (), np.dtype(np.int64), categories=(actions,))
    agent = Agent(EnvSpec("test", image, action), NetworkConfig(layers=(), **options), 0)
    assert sum(parameter.numel() for parameter in agent.parameters()) == parameters
