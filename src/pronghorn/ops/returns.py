"""Returns, generalised advantages and V-trace, over rows that may end, be cut, or not count.

Shared conventions, all time-major: ``values`` [T+1, B] are V at rows 0 … T; ``discounts`` [T, B] are
γ·(1 − terminated); ``cuts`` [T, B] bool are terminated | truncated; ``valid`` [T, B] bool. A truncated row bootstraps
from the values of the row after it, which holds the final observation. An invalid row has no error and carries no
trace, so what it contains (even NaN) reaches no other row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pronghorn.ops.scan import linear_recurrence


class VTrace(NamedTuple):
    """Targets of V-trace, all [T, B]; ``pg_advantages`` are the ``advantages`` times their weight."""

    vs: Tensor
    pg_advantages: Tensor
    advantages: Tensor


def discounted_returns(rewards: Tensor, discounts: Tensor, bootstrap_value: Tensor) -> Tensor:
    """G_t = r_t + discount_t G_{t+1} with G_T = ``bootstrap_value`` [B]. Returns [T, B]."""
    return linear_recurrence(discounts, rewards, bootstrap_value)


def generalised_advantages(
    rewards: Tensor, values: Tensor, discounts: Tensor, cuts: Tensor, valid: Tensor, gae_lambda: float
) -> Tensor:
    """GAE(λ) (Schulman et al. 2016, eq. 16): A_t = δ_t + discount_t λ A_{t+1}, δ_t = r_t + discount_t V_{t+1} − V_t.

    The recursion stops at cuts. Returns [T, B], 0 on invalid rows. Value targets are A_t + V_t.
    """
    errors = torch.where(valid, rewards + discounts * values[1:] - values[:-1], 0.0)
    traces = torch.where(valid & ~cuts, gae_lambda * discounts, 0.0)
    return linear_recurrence(traces, errors, torch.zeros_like(errors[0]))


def vtrace(
    log_rhos: Tensor,
    rewards: Tensor,
    values: Tensor,
    discounts: Tensor,
    cuts: Tensor,
    valid: Tensor,
    *,
    rho_bar: float | None,
    c_bar: float | None,
    pg_rho_bar: float | None,
    trace_lambda: float = 1.0,
    bootstrap_mix: bool = False,
) -> VTrace:
    """V-trace (Espeholt et al. 2018, section 4.1).

    With w_t = exp(``log_rhos``), ρ_t = min(ρ̄, w_t), c_t = λ min(c̄, w_t), δ_t = ρ_t (r_t + discount_t V_{t+1} − V_t):
    vs_t − V_t = δ_t + discount_t c_t (vs_{t+1} − V_{t+1}), the advantage is A_t = r_t + discount_t vs_{t+1} − V_t
    with vs_T = V_T, and the weight of the policy gradient min(ρ̄_pg, w_t) A_t. At cuts vs_{t+1} is V_{t+1}.

    Args:
        log_rhos: [T, B] log π(a_t) − log μ(a_t).
        rho_bar, c_bar, pg_rho_bar: caps above 0; None or inf for none. Capped ratios are finite for any ``log_rhos``.
        bootstrap_mix: the advantage bootstraps from λ vs_{t+1} + (1 − λ) V_{t+1} instead of vs_{t+1}.

    Returns:
        ``vs`` (equal to V on invalid rows) and the advantages (0 on invalid rows).
    """
    carries = valid & ~cuts
    next_values = values[1:]
    errors = capped_ratios(log_rhos, rho_bar) * (rewards + discounts * next_values - values[:-1])
    traces = trace_lambda * discounts * capped_ratios(log_rhos, c_bar)
    errors, traces = torch.where(valid, errors, 0.0), torch.where(carries, traces, 0.0)
    end = torch.zeros_like(errors[0])
    corrections = linear_recurrence(traces, errors, end)

    next_corrections = torch.where(carries, torch.cat((corrections[1:], end.unsqueeze(0))), 0.0)
    targets = rewards + discounts * (next_values + (trace_lambda if bootstrap_mix else 1.0) * next_corrections)
    advantages = torch.where(valid, targets - values[:-1], 0.0)
    weighted = torch.where(valid, capped_ratios(log_rhos, pg_rho_bar) * advantages, 0.0)
    return VTrace(values[:-1] + corrections, weighted, advantages)


def capped_ratios(log_rhos: Tensor, cap: float | None) -> Tensor:
    """min(``cap``, exp(``log_rhos``)) of any shape, capped before the exponential so that it cannot overflow.

    Args:
        cap: above 0; None or inf for none.
    """
    return torch.exp(log_rhos if cap is None else log_rhos.clamp(max=math.log(cap)))
