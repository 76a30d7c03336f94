"""Optimiser steps as pure functions of one flat vector of parameters, its gradient, a state and a rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class OptimiserStep(Protocol):
    """One step, changing nothing in place."""

    def __call__(
        self, parameters: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: Tensor, *, epsilon: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """New parameters and state."""


def adam_state(parameters: Tensor) -> dict[str, Tensor]:
    """The state before the first step: moments ``m``, ``v`` like ``parameters``, and steps taken ``t``, 0-d float32."""
    return {
        "m": torch.zeros_like(parameters),
        "v": torch.zeros_like(parameters),
        "t": torch.zeros((), dtype=torch.float32, device=parameters.device),
    }


def adam(
    parameters: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    rate: Tensor,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-5,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One step of Adam (Kingma and Ba 2015, algorithm 1; ε outside the root, after the bias correction).

    Args:
        parameters, gradient: [n].
        rate: 0-d, so that a schedule does not recompile anything.

    Returns:
        New parameters and state; nothing is changed in place.
    """
    t = state["t"] + 1
    m = beta1 * state["m"] + (1 - beta1) * gradient
    v = beta2 * state["v"] + (1 - beta2) * gradient.square()
    # In float64: 1 - 0.999^t loses four of seven digits in float32.
    steps = t.double()
    m_unbiased, v_unbiased = m / (1 - beta1**steps), v / (1 - beta2**steps)
    return parameters - rate * m_unbiased / (v_unbiased.sqrt() + epsilon), {"m": m, "v": v, "t": t}


def rmsprop_state(parameters: Tensor) -> dict[str, Tensor]:
    """The state before the first step: mean square ``v`` like ``parameters``, of ones as in TensorFlow."""
    return {"v": torch.ones_like(parameters)}


def rmsprop(
    parameters: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    rate: Tensor,
    *,
    decay: float = 0.99,
    epsilon: float = 0.1,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One step of RMSProp as TensorFlow 1 computes it, without momentum: ε inside the root, v from one.

    v ← decay·v + (1 − decay)·g², θ ← θ − rate·g / √(v + ε). PyTorch's own starts v at 0 and adds ε to the root. Takes
    and returns what ``adam`` does.
    """
    v = decay * state["v"] + (1 - decay) * gradient.square()
    return parameters - rate * gradient / (v + epsilon).sqrt(), {"v": v}


def clip_by_global_norm(gradient: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """Scales ``gradient`` [n] down to L2 norm ``max_norm`` (> 0; None: never) and returns it with its norm before."""
    norm = torch.linalg.vector_norm(gradient)
    if max_norm is None:
        return gradient, norm
    return gradient * (max_norm / norm.clamp(min=max_norm)), norm


OPTIMISERS: dict[str, tuple[Callable[[Tensor], dict[str, Tensor]], OptimiserStep]] = {
    "adam": (adam_state, adam),
    "rmsprop": (rmsprop_state, rmsprop),
}
"""(the state before the first step, a step), by name."""
