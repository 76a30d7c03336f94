"""The one linear recursion behind returns, advantages and V-trace."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_recurrence(k: Tensor, d: Tensor, initial: Tensor) -> Tensor:
    """Solves x_t = d_t + k_t x_{t+1} for t = T-1 … 0, with x_T = ``initial``.

    By recursive doubling: before each round row t holds the map from x_{t+shift} to x_t, and two such maps compose to
    one over twice the distance. So log2(T) vectorised rounds take the place of T small steps, and autograd and
    ``torch.compile`` see nothing else.

    Args:
        k, d: [T, ...], T ≥ 1, any float dtype. Products of neighbouring k must not overflow: 0 · inf is NaN.
        initial: [...].

    Returns:
        x at rows 0 … T-1, [T, ...].
    """
    steps = d.shape[0]
    x = torch.cat((d, initial.unsqueeze(0)))
    shift = 1
    while shift <= steps:
        x = torch.cat((x[:-shift] + k * x[shift:], x[-shift:]))
        k = k[:-shift] * k[shift:]
        shift *= 2
    return x[:-1]
