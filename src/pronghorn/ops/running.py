"""Running mean and variance that merge exactly: any split of the data, in any order, gives the pooled result.

Moments are a triple (count, mean, m2) in float64, m2 being the sum of squared deviations from the mean. Two of them
combine as in Chan, Golub and LeVeque (1979), so learners and batches can be merged without keeping data.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor, nn

MomentsTriple: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""count [], mean [shape], m2 [shape], float64."""


FEW_ROWS = 32
"""Squares of so many bytes add up to less than 2²⁴, below which float32 holds every integer; and they fit a cache."""


def batch_moments(x: Tensor, valid: Tensor) -> MomentsTriple:
    """Moments of the valid rows.

    Args:
        x: [*rows, *shape], any dtype; invalid rows may hold anything, even NaN.
        valid: [*rows] bool.
    """
    rows = tuple(range(valid.dim()))
    keep = valid.reshape(valid.shape + (1,) * (x.dim() - valid.dim()))
    wide = x.double()
    count = valid.sum(dtype=torch.float64)
    mean = torch.where(keep, wide, 0.0).sum(rows) / count.clamp(min=1)
    m2 = torch.where(keep, wide - mean, 0.0).square().sum(rows)
    return count, mean, m2


def merged(a: MomentsTriple, b: MomentsTriple) -> MomentsTriple:
    """Moments of both sets of samples together; either may be empty."""
    (count_a, mean_a, m2_a), (count_b, mean_b, m2_b) = a, b
    count = count_a + count_b
    share = count_b / count.clamp(min=1)
    delta = mean_b - mean_a
    return count, mean_a + delta * share, m2_a + m2_b + delta.square() * count_a * share


def merged_all(triples: Iterable[MomentsTriple]) -> MomentsTriple:
    """Moments of several sets together, e.g. one per learner. Raises TypeError if there is none."""
    return functools.reduce(merged, triples)


class Moments(nn.Module):
    """Moments of all samples seen so far, as float64 buffers ``count`` [], ``mean`` and ``m2`` [shape]."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(shape, dtype=torch.float64))

    @torch.no_grad()
    def merge(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        """Adds samples, in place."""
        new = merged((self.count, self.mean, self.m2), (count, mean, m2))
        for buffer, value in zip((self.count, self.mean, self.m2), new, strict=True):
            buffer.copy_(value)

    @property
    def variance(self) -> Tensor:
        """Population variance m2 / count, float64; 1 before two samples."""
        return torch.where(self.count < 2, 1.0, self.m2 / self.count.clamp(min=1))

    @property
    def std(self) -> Tensor:
        """Root of ``variance``."""
        return self.variance.sqrt()


def byte_moments(x: Tensor, valid: Tensor) -> MomentsTriple:
    """``batch_moments`` of uint8, as exact and many times faster: for images."""
    shape = x.shape[valid.dim() :]
    rows = x.flatten(0, valid.dim() - 1).flatten(1)
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=x.device)
    squares = torch.zeros_like(total)
    for part, kept in zip(torch.split(rows, FEW_ROWS), torch.split(valid.flatten().float(), FEW_ROWS), strict=True):
        numbers = part.to(torch.float32)
        total += kept @ numbers
        squares += kept @ numbers.square_()
    count = valid.sum(dtype=torch.float64)
    mean = total / count.clamp(min=1)
    m2 = (squares - total * mean).clamp_(min=0)  # which rounding may have taken below
    return count, mean.reshape(shape), m2.reshape(shape)


class Normaliser(nn.Module):
    """Arrays to mean 0 and standard deviation 1, clipped; the identity (but for the clip) before any statistics.

    ``shift`` and ``scale`` [shape] float32 derive from ``moments``; they are buffers, so that a forward pass costs
    three kernels and is a pure function of the state dict. ``least`` is added to the variance: a number that never
    moved stays 0, and what it moves by first stays bounded.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float, least: float = 1e-8) -> None:
        super().__init__()
        self.clip, self._least = clip, least
        self.moments = Moments(shape)
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        """[..., *shape] of any dtype to float32 within ±``clip``."""
        return (x.to(torch.float32) - self.shift).mul_(self.scale).clamp_(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, moments: MomentsTriple) -> None:
        """Merges the moments of new rows ([shape] each), in place."""
        self.moments.merge(*moments)
        self.shift.copy_(self.moments.mean)
        self.scale.copy_((self.moments.variance + self._least).rsqrt())


class Scale(nn.Module):
    """The standard deviation of a scalar, to divide by: ``scale`` [] float32, 1 while there is none above 0."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.moments = Moments()
        self.register_buffer("scale", torch.ones(()))

    @torch.no_grad()
    def update(self, moments: MomentsTriple) -> None:
        """Merges the moments of new samples, in place."""
        self.moments.merge(*moments)
        std = self.moments.std.to(torch.float32)
        self.scale.copy_(torch.where(std > 0, std, 1.0))
