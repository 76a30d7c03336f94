"""Convolutional networks against loops over pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pronghorn.networks.conv import CNNS, CPU_IMAGES, ConvNet, Layers
from pronghorn.types import UserError

TINY = Layers(((3, 3, 2), (2, 2, 1)), 5)


def make(shape=(4, 84, 84), layers=CNNS["nature"], init="orthogonal", seed=0):
    return ConvNet(shape, layers, init=init, generator=torch.Generator().manual_seed(seed))


def pixels(*shape):
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, shape, np.uint8))


def by_loops(net, layers, image):
    """The features of one image [C, H, W] of floats."""
    x = np.asarray(image, np.float64)
    for module, (outputs, kernel, stride) in zip(net.convolutions, layers.convolutions, strict=True):
        weight, bias = module.weight.detach().double().numpy(), module.bias.detach().double().numpy()
        rows, columns = ((side - kernel) // stride + 1 for side in x.shape[1:])
        y = np.empty((outputs, rows, columns))
        for output, row, column in np.ndindex(y.shape):
            patch = x[:, row * stride : row * stride + kernel, column * stride : column * stride + kernel]
            y[output, row, column] = max(0.0, (weight[output] * patch).sum() + bias[output])
        x = y
    flat = np.array([x[:, row, column] for row in range(x.shape[1]) for column in range(x.shape[2])]).ravel()
    weight, bias = net.linear.weight.detach().double().numpy(), net.linear.bias.detach().double().numpy()
    return np.maximum(0.0, weight @ flat + bias)


@pytest.mark.parametrize(("name", "parameters", "size"), [("nature", 1_684_128, 512), ("shallow", 676_144, 256)])
def test_the_published_networks_have_their_sizes(name, parameters, size):
    net = make(layers=CNNS[name])
    assert sum(parameter.numel() for parameter in net.parameters()) == parameters
    assert net.size == size and net(pixels(2, 4, 84, 84)).shape == (2, size)


@pytest.mark.parametrize("shape", [(2, 7, 9), (1, 5, 5)])
def test_features_are_those_of_loops_over_the_pixels(shape):
    net = make(shape, TINY)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    images = pixels(3, *shape)
    found = net(images).detach().numpy()
    np.testing.assert_allclose(found, [by_loops(net, TINY, image / 255.0) for image in images.numpy()], atol=1e-5)
    assert (found > 0).any()


def test_bytes_are_scaled_once_and_floats_never():
    net, images = make((2, 7, 9), TINY), pixels(3, 2, 7, 9)
    kept = images.clone()
    torch.testing.assert_close(net(images), net(images.to(torch.float32) / 255))
    floats = images.to(torch.float32)
    torch.testing.assert_close(net(floats), 255 * net(images))  # without biases all is homogeneous
    assert torch.equal(images, kept) and torch.equal(floats, kept.to(torch.float32))


@pytest.mark.parametrize("leading", [(), (6,), (2, 3), (1, 2, 3)])
def test_any_leading_dimensions(leading):
    net, images = make((2, 7, 9), TINY), pixels(6, 2, 7, 9)
    images = images[: math.prod(leading)]
    features = net(images.reshape(*leading, 2, 7, 9))
    assert features.shape == (*leading, 5) and features.dtype == torch.float32
    torch.testing.assert_close(features.reshape(-1, 5), net(images))


def test_convolutions_run_with_channels_innermost():
    net, seen = make(), []
    for layer in net.convolutions:
        layer.register_forward_hook(lambda _, inputs, output: seen.extend((inputs[0], output)))
    net(pixels(2, 4, 84, 84))
    assert len(seen) == 6 and all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)


def test_the_size_of_the_batch_changes_rounding_alone():
    # Acting and learning see batches of different sizes; the learner compares to 1e-5.
    net, images = make(), pixels(300, 4, 84, 84)
    with torch.no_grad():
        features = net(images)
        assert len(images) > CPU_IMAGES
        for few in (slice(0, 1), slice(0, 8), slice(290, 300)):
            difference = (net(images[few]) - features[few]).abs().max() / features.abs().max()
            assert difference < 1e-6


@pytest.mark.parametrize(("name", "least"), [("nature", 36), ("shallow", 20)])
def test_an_image_that_is_too_small_is_named(name, least):
    assert make((1, least, least), CNNS[name])(pixels(1, least, least)).shape == (CNNS[name].units,)
    for sides in ((least - 1, 100), (100, least - 1)):
        with pytest.raises(UserError, match=f"^observation/eye is {sides[0]}×{sides[1]} pixels.*{least}×{least}"):
            ConvNet((1, *sides), CNNS[name], init="orthogonal", generator=torch.Generator(), name="observation/eye")


def test_weights_start_as_those_of_hidden_layers():
    for layer in (*(net := make()).convolutions, net.linear):
        singular = torch.linalg.svdvals(layer.weight.flatten(1))
        torch.testing.assert_close(singular, torch.full_like(singular, math.sqrt(2)), rtol=1e-5, atol=1e-6)
        assert not layer.bias.any()
    for layer in (*(net := make(init="glorot")).convolutions, net.linear):
        outputs, inputs = layer.weight.shape[:2]
        bound = math.sqrt(6 / (math.prod(layer.weight.shape[2:]) * (outputs + inputs)))
        assert 0.98 * bound < layer.weight.abs().max() <= bound and not layer.bias.any()
    assert torch.equal(make(seed=3).linear.weight, make(seed=3).linear.weight)
    assert not torch.equal(make(seed=3).linear.weight, make(seed=4).linear.weight)
