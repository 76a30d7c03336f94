"""Losses per row, and weighted reductions over rows. Weights are bool or float, not negative, 0 for invalid rows."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_mean(x: Tensor, weights: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Σ w x / Σ w over ``dim`` (None: all); 0 where the weights sum to 0. ``x`` may be NaN where the weight is 0.

    Args:
        x, weights: of one shape.
    """
    total = weights.sum(dim, dtype=x.dtype)
    weighted = torch.where(weights > 0, x * weights, 0.0).sum(dim)
    return weighted / torch.where(total > 0, total, 1.0)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_ratio: Tensor | float) -> Tensor:
    """PPO's loss per row (Schulman et al. 2017, eq. 7): −min(r A, clip(r, 1 − ε, 1 + ε) A).

    Args:
        ratio, advantages: [...].
        clip_ratio: ε, a number or a 0-d tensor.
    """
    epsilon = torch.as_tensor(clip_ratio, dtype=ratio.dtype, device=ratio.device)
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def squared_error(values: Tensor, targets: Tensor) -> Tensor:
    """½ (target − value)² per row."""
    return 0.5 * (targets - values).square()


def soft_asymmetric(rewards: Tensor) -> Tensor:
    """5 tanh(r / 5), times 0.3 where r < 0: range (−1.5, 5), slope 1 above 0.

    This is what the code of IMPALA computes; the caption in its paper has tanh r in place of tanh(r / 5), which
    multiplies a reward of 1 by 3.8.
    """
    squeezed = 5.0 * torch.tanh(rewards / 5.0)
    return torch.where(rewards < 0, 0.3 * squeezed, squeezed)


def standardise(x: Tensor, weights: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Shifts and scales ``x`` to weighted mean 0 and population standard deviation 1; equal rows become 0.

    Computed in float64: the mean of equal float32 rows is then exact, so rounding is not blown up to ±1.
    """
    wide = x.double()
    centred = wide - weighted_mean(wide, weights)
    std = weighted_mean(centred.square(), weights).sqrt()
    return (centred / (std + epsilon)).to(x.dtype)


def explained_variance(values: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """1 − Var(targets − values) / Var(targets), weighted, 0-d; 0 if the targets do not vary."""
    total = _variance(targets, weights)
    unexplained = _variance(targets.double() - values, weights)
    ratio = torch.where(total > 0, 1 - unexplained / torch.where(total > 0, total, 1.0), 0.0)
    return ratio.to(targets.dtype)


def _variance(x: Tensor, weights: Tensor) -> Tensor:
    wide = x.double()
    return weighted_mean((wide - weighted_mean(wide, weights)).square(), weights)
