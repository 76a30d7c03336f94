"""Convolutional networks for images, and how their weights start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pronghorn.networks.mlp import Init, start_hidden
from pronghorn.ops.running import Normaliser
from pronghorn.types import UserError


class Layers(NamedTuple):
    """``convolutions`` as (channels, kernel, stride), without padding; then a linear layer of ``units``."""

    convolutions: tuple[tuple[int, int, int], ...]
    units: int


CNNS: dict[str, Layers] = {
    "nature": Layers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "shallow": Layers(((16, 8, 4), (32, 4, 2)), 256),
}
"""Those of Mnih et al. 2015 (DQN) and Espeholt et al. 2018 (IMPALA, the small one), without their last layers."""


CPU_IMAGES = 256
"""So many at a time on a CPU: with more, the system's time to find memory grows faster than the arithmetic."""


class ConvNet(nn.Module):
    """An image to a vector of features; ReLU after every layer, biases start at 0.

    Args:
        shape: (channels, height, width).
        layers: a row of ``CNNS``.
        init: as in ``MLP``, of hidden layers.
        normaliser: of the pixels, [height, width, channels]; without one uint8 is scaled to [0, 1].
        name: of the image, for errors.

    Raises:
        UserError: the image is smaller than the layers need.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        layers: Layers,
        *,
        init: Init,
        generator: torch.Generator,
        normaliser: Normaliser | None = None,
        name: str = "the image",
    ) -> None:
        super().__init__()
        self.normaliser = normaliser
        channels, *sides = shape
        convolutions = []
        for outputs, kernel, stride in layers.convolutions:
            convolutions.append(nn.Conv2d(channels, outputs, kernel, stride))
            channels, sides = outputs, [(side - kernel) // stride + 1 for side in sides]
            if min(sides) < 1:
                least = _least_side(layers)
                raise UserError(
                    f"{name} is {shape[1]}×{shape[2]} pixels, too small for its convolutions, which need "
                    f"{least}×{least}; enlarge it, or flatten it to a vector, in a wrapper"
                )
        self.convolutions = nn.ModuleList(convolutions)
        self._layers = convolutions
        self.linear = nn.Linear(channels * math.prod(sides), layers.units)
        self.size = layers.units
        weighted: list[nn.Conv2d | nn.Linear] = [*convolutions, self.linear]
        for layer in weighted:
            start_hidden(layer, init, generator)

    def forward(self, image: Tensor) -> Tensor:
        """[..., channels, height, width] to [..., size] float32; see ``floats``."""
        return in_parts(image, self._features, self.size, CPU_IMAGES)

    def _features(self, images: Tensor) -> Tensor:
        x = floats(images, self.normaliser)
        for layer in self._layers:
            x = torch.relu_(layer(x))
        x = x.permute(0, 2, 3, 1).flatten(1)  # as it lies in memory
        return torch.relu_(self.linear(x))


def in_parts(image: Tensor, features: Callable[[Tensor], Tensor], size: int, most: int) -> Tensor:
    """``features`` [N, size] of images [..., channels, height, width], on a CPU for ``most`` at a time; [..., size]."""
    images = image.reshape(-1, *image.shape[-3:])
    at_once = images.device.type != "cpu" or torch.compiler.is_exporting()  # a graph for any N has no loop
    parts = (images,) if at_once else torch.split(images, most)
    found = [features(part) for part in parts]
    whole = found[0] if len(found) == 1 else torch.cat(found)
    return whole.reshape(*image.shape[:-3], size)


def floats(images: Tensor, normaliser: Normaliser | None) -> Tensor:
    """Images [N, channels, height, width] as the convolutions want them: normalised; or, without a normaliser, uint8
    scaled to [0, 1] and floats as they are."""
    # With the channels innermost a CPU convolves up to twice as fast; uint8 is the cheaper to rearrange.
    x = images.contiguous(memory_format=torch.channels_last).to(torch.float32)
    if normaliser is not None:
        normalised: Tensor = normaliser(x.permute(0, 2, 3, 1))
        return normalised.permute(0, 3, 1, 2)
    if images.dtype == torch.uint8:
        x = x.mul_(1 / 255)  # in place: it is our copy
    return x


def _least_side(layers: Layers) -> int:
    side = 1
    for _, kernel, stride in reversed(layers.convolutions):
        side = (side - 1) * stride + kernel
    return side
