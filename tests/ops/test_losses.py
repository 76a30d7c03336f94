"""Weighted losses against NumPy, and where there is nothing to divide by."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pronghorn.ops.losses import (
    clipped_surrogate,
    explained_variance,
    soft_asymmetric,
    squared_error,
    standardise,
    weighted_mean,
)


def rows(seed, n, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return rng.normal(3.0, 2.0, n).astype(dtype), rng.random(n) < 0.7


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20))
def test_reductions_are_those_of_the_rows_that_count(seed, n):
    x, keep = rows(seed, n)
    y = x + rows(seed + 1, n)[0]
    keep[0] = True
    spoiled = torch.from_numpy(np.where(keep, x, np.nan))
    weights = torch.from_numpy(keep)
    assert weighted_mean(spoiled, weights).item() == pytest.approx(x[keep].mean())
    ours = standardise(torch.from_numpy(x), weights)[weights].numpy()
    np.testing.assert_allclose(ours, (x[keep] - x[keep].mean()) / (x[keep].std() + 1e-8), rtol=1e-9, atol=1e-9)
    if keep.sum() > 1:
        expected = 1 - (y - x)[keep].var() / y[keep].var()
        got = explained_variance(torch.from_numpy(x), torch.from_numpy(y), weights).item()
        assert got == pytest.approx(expected, rel=1e-6)


def test_fractional_weights_and_dimensions():
    x, weights = torch.tensor([[1.0, 2.0], [5.0, 7.0]]), torch.tensor([[0.25, 0.0], [0.75, 0.0]])
    assert weighted_mean(x, weights).item() == 4.0
    assert weighted_mean(x, weights, 0).tolist() == [4.0, 0.0]
    assert weighted_mean(x, weights, dim=(0, 1)).item() == 4.0


def test_no_weight_gives_zero_and_no_gradient():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    mean = weighted_mean(x, torch.zeros(2))
    mean.backward()
    assert mean.item() == 0.0 and x.grad.tolist() == [0.0, 0.0]
    assert explained_variance(x.detach(), x.detach(), torch.zeros(2)).item() == 0.0
    assert standardise(torch.tensor([1.0, 3.0]), torch.zeros(2)).isfinite().all()


@pytest.mark.parametrize("value", [0.0, 0.1, 1000.1, -1e7])
@pytest.mark.parametrize("n", [1, 2, 777])
def test_equal_rows_standardise_to_zero(value, n):
    assert torch.equal(standardise(torch.full((n,), value), torch.ones(n)), torch.zeros(n))


def test_standardise_keeps_shape_and_dtype():
    ours = standardise(torch.tensor([[1.0, 3.0], [1.0, 3.0]]), torch.ones(2, 2, dtype=torch.bool))
    assert ours.dtype == torch.float32 and ours.tolist() == [[-1.0, 1.0], [-1.0, 1.0]]


@pytest.mark.parametrize("clip_ratio", [0.25, torch.tensor(0.25)])
def test_surrogate_takes_the_worse_of_both_on_each_side(clip_ratio):
    ratio = torch.tensor([0.5, 1.0, 1.5, 0.5, 1.0, 1.5], requires_grad=True)
    advantages = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    loss = clipped_surrogate(ratio, advantages, clip_ratio)
    assert loss.tolist() == [-1.0, -2.0, -2.5, 1.5, 2.0, 3.0]
    loss.sum().backward()
    assert ratio.grad.tolist() == [-2.0, -2.0, 0.0, 0.0, 2.0, 2.0]


def test_squared_error():
    values = torch.tensor([1.0, -2.0], requires_grad=True)
    loss = squared_error(values, torch.tensor([4.0, -2.0]))
    loss.sum().backward()
    assert loss.tolist() == [4.5, 0.0] and values.grad.tolist() == [-3.0, 0.0]


def test_explained_variance_of_known_predictions():
    targets, weights = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4)
    assert explained_variance(targets + 5, targets, weights).item() == 1.0
    assert explained_variance(torch.zeros(4), targets, weights).item() == 0.0
    assert explained_variance(-targets, targets, weights).item() == -3.0
    assert explained_variance(targets, torch.full((4,), 0.1), weights).item() == 0.0


def test_compiles_to_one_graph():
    def losses(ratio, advantages, weights, clip_ratio):
        loss = clipped_surrogate(ratio, standardise(advantages, weights), clip_ratio)
        return weighted_mean(loss, weights), explained_variance(ratio, advantages, weights)

    compiled = torch.compile(losses, fullgraph=True, backend="aot_eager")
    inputs = torch.rand(9) + 0.5, torch.randn(9), torch.rand(9), torch.tensor(0.2)
    torch.testing.assert_close(compiled(*inputs), losses(*inputs))
    assert not math.isnan(losses(*inputs)[0])


def test_the_soft_asymmetric_clip_is_that_of_the_code():
    found = soft_asymmetric(torch.tensor([-1e3, -5.0, -1.0, 0.0, 1e-3, 1.0, 5.0, 1e3], dtype=torch.float64)).tolist()
    five = 5 * math.tanh(1.0)
    one = 5 * math.tanh(0.2)  # 0.99; the caption in the paper gives 5 tanh 1 = 3.81
    expected = [-1.5, -0.3 * five, -0.3 * one, 0.0, 5 * math.tanh(2e-4), one, five, 5.0]
    assert found == pytest.approx(expected, abs=1e-12)
