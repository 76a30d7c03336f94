"""Fully connected streams and how their weights start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Init: TypeAlias = Literal["orthogonal", "glorot", "lecun"]


class MLP(nn.Module):
    """Linear layers ``sizes[0]`` → … → ``sizes[-1]`` with ``activation`` between them; biases start at 0.

    Args:
        init: "orthogonal": gain √2, the last layer ``output_scale`` (1 if None). "glorot": uniform (Glorot and Bengio
            2010); if ``output_scale`` is given the last layer is a truncated normal with
            σ = √(1.3 · output_scale / fan_in), the scaled initialiser of the TensorFlow Agents code.
            "lecun": truncated normal with σ = 1/√fan_in in all layers, the last one too, as IMPALA's.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Literal["tanh", "relu"],
        *,
        init: Init,
        output_scale: float | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.relu = activation == "relu"
        self.linears = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)]
        self.layers = nn.ModuleList(self.linears)
        *hidden, last = self.linears
        for layer in hidden:
            start_hidden(layer, init, generator)
        nn.init.zeros_(last.bias)
        if init == "orthogonal":
            nn.init.orthogonal_(last.weight, 1.0 if output_scale is None else output_scale, generator=generator)
        elif init == "lecun":
            start_hidden(last, init, generator)
        elif output_scale is None:
            nn.init.xavier_uniform_(last.weight, generator=generator)
        else:
            sigma = math.sqrt(1.3 * output_scale / sizes[-2])
            nn.init.trunc_normal_(last.weight, 0.0, sigma, -2 * sigma, 2 * sigma, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """[..., sizes[0]] → [..., sizes[-1]]."""
        # Not a call per layer: for small batches that would be half of the cost of acting.
        *hidden, last = self.linears
        return functional.linear(_through(x, hidden, self.relu), last.weight, last.bias)


class Torso(nn.Module):
    """Hidden layers ``sizes[0]`` → … → ``sizes[-1]`` as those of ``MLP``, the activation after each."""

    def __init__(
        self, sizes: Sequence[int], activation: Literal["tanh", "relu"], *, init: Init, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.size = sizes[-1]
        self._relu = activation == "relu"
        self._linears = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)]
        self.layers = nn.ModuleList(self._linears)
        for layer in self._linears:
            start_hidden(layer, init, generator)

    def forward(self, x: Tensor) -> Tensor:
        """[..., sizes[0]] → [..., sizes[-1]]."""
        return _through(x, self._linears, self._relu)


def start_hidden(layer: nn.Linear | nn.Conv2d, init: Init, generator: torch.Generator) -> None:
    """Weights and bias of a hidden layer, in place: see ``MLP``."""
    if init == "orthogonal":
        nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator=generator)
    elif init == "glorot":
        nn.init.xavier_uniform_(layer.weight, generator=generator)
    else:
        sigma = 1 / math.sqrt(layer.weight[0].numel())
        nn.init.trunc_normal_(layer.weight, 0.0, sigma, -2 * sigma, 2 * sigma, generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)


def _through(x: Tensor, layers: Sequence[nn.Linear], relu: bool) -> Tensor:
    for layer in layers:
        x = functional.linear(x, layer.weight, layer.bias)
        x = torch.relu(x) if relu else _tanh(x)
    return x


def _tanh(x: Tensor) -> Tensor:
    """tanh(x) = 2σ(2x) − 1, to rounding: on a CPU the logistic function costs less than half of torch's tanh."""
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0
