"""Fully connected streams and how their weights start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "linear": nn.Identity}


def mlp(
    sizes: Sequence[int],
    activation: str,
    *,
    init: Literal["orthogonal", "glorot"],
    output_scale: float | None,
    generator: torch.Generator,
) -> nn.Sequential:
    """Linear layers ``sizes[0]`` → … → ``sizes[-1]`` with ``activation`` between them; biases start at 0.

    "orthogonal": gain √2, the last layer ``output_scale`` (1 if None). "glorot": uniform (Glorot and Bengio 2010);
    if ``output_scale`` is given the last layer is a truncated normal with σ = √(1.3 · output_scale / fan_in), the
    scaled initialiser of the TensorFlow Agents code.
    """
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        linear = nn.Linear(inputs, outputs)
        nn.init.zeros_(linear.bias)
        if init == "orthogonal":
            gain = math.sqrt(2.0) if index < last else (1.0 if output_scale is None else output_scale)
            nn.init.orthogonal_(linear.weight, gain, generator=generator)
        elif index == last and output_scale is not None:
            sigma = math.sqrt(1.3 * output_scale / inputs)
            nn.init.trunc_normal_(linear.weight, 0.0, sigma, -2 * sigma, 2 * sigma, generator=generator)
        else:
            nn.init.xavier_uniform_(linear.weight, generator=generator)
        layers += [linear] if index == last else [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)
