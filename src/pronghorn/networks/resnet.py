"""The deep residual network of IMPALA (Espeholt et al. 2018, figure 3, right)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pronghorn.networks.conv import floats, in_parts
from pronghorn.networks.mlp import Init, start_hidden
from pronghorn.ops.running import Normaliser

CHANNELS = 16, 32, 32
"""Of each stage."""
UNITS = 256
"""Of the linear layer at the end."""
CPU_IMAGES = 32
"""So many at a time on a CPU."""


class ResNet(nn.Module):
    """An image of any size to a vector of 256 features through 15 convolutions; biases start at 0.

    A stage is a convolution, a pooling to half the size, rounded up, and two residual blocks (ReLU, convolution, ReLU,
    convolution, plus what came in). Convolutions are 3×3 and keep the size. ReLU, linear and ReLU at the end.

    Args:
        shape: (channels, height, width).
        init: as in ``MLP``, of hidden layers.
        normaliser: as in ``ConvNet``.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        init: Init,
        generator: torch.Generator,
        normaliser: Normaliser | None = None,
    ) -> None:
        super().__init__()
        self.normaliser = normaliser
        channels, height, width = shape
        stages = []
        for outputs in CHANNELS:
            stages.append(_Stage(channels, outputs))
            channels, height, width = outputs, -(-height // 2), -(-width // 2)
        self.stages = nn.ModuleList(stages)
        self._stages = stages
        self.linear = nn.Linear(channels * height * width, UNITS)
        self.size = UNITS
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                start_hidden(layer, init, generator)

    def forward(self, image: Tensor) -> Tensor:
        """[..., channels, height, width] to [..., size] float32; see ``floats``."""
        return in_parts(image, self._features, self.size, CPU_IMAGES)

    def _features(self, images: Tensor) -> Tensor:
        x = floats(images, self.normaliser)
        for stage in self._stages:
            x = stage(x)
        x = torch.relu_(x).permute(0, 2, 3, 1).flatten(1)  # as it lies in memory
        return torch.relu_(self.linear(x))


class _Stage(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.entry = _same_size(inputs, outputs)
        blocks = [(_same_size(outputs, outputs), _same_size(outputs, outputs)) for _ in range(2)]
        self.blocks = nn.ModuleList(nn.ModuleList(block) for block in blocks)
        self._blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        x = _halved(self.entry(x))
        for one, other in self._blocks:
            x = x + other(torch.relu_(one(torch.relu(x))))
        return x


def _same_size(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def _halved(x: Tensor) -> Tensor:
    """3×3 maxima at every other pixel, padded as TensorFlow does: of an even side only the far end."""
    height, width = x.shape[-2:]
    return functional.max_pool2d(x, 3, 2, padding=(height % 2, width % 2), ceil_mode=True)
