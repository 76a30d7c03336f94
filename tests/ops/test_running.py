"""Moments against NumPy on the pooled data, however it is split."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pronghorn.ops.running import Moments, Normaliser, Scale, batch_moments, byte_moments, merged, merged_all


def triple(x):
    x = torch.as_tensor(np.asarray(x))
    return batch_moments(x, torch.ones(len(x), dtype=torch.bool))


def buffers(moments):
    return moments.count, moments.mean, moments.m2


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.sampled_from([0.0, 1.0, 1e6]),
    st.booleans(),
)
def test_any_partition_in_any_order_gives_the_pooled_moments(seed, sizes, offset, nested):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(offset, 3.0, (size, 2)) for size in sizes]
    pooled = np.concatenate(parts)
    triples = [triple(parts[index]) for index in rng.permutation(len(parts))]
    moments = Moments((2,))
    if nested:
        half = len(triples) // 2
        moments.merge(*merged(merged_all([triple(pooled[:0]), *triples[:half]]), merged_all(triples[half:])))
    else:
        for part in triples:
            moments.merge(*part)
    count, mean, m2 = buffers(moments)
    assert count.item() == len(pooled)
    if len(pooled):
        np.testing.assert_allclose(mean, pooled.mean(0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(m2, len(pooled) * pooled.var(0), rtol=1e-9, atol=1e-9)
    expected = pooled.std(0) if len(pooled) > 1 else np.ones(2)
    np.testing.assert_allclose(moments.std, expected, rtol=1e-9, atol=1e-9)


def test_only_valid_rows_count_whatever_the_others_hold():
    x = torch.tensor([[[1.0, 2.0], [np.nan, np.inf]], [[3.0, 6.0], [5.0, 1.0]]])
    valid = torch.tensor([[True, False], [True, True]])
    count, mean, m2 = batch_moments(x, valid)
    assert count.item() == 3 and mean.tolist() == [3.0, 3.0] and m2.tolist() == [8.0, 14.0]
    assert {value.dtype for value in (count, mean, m2)} == {torch.float64}
    count, mean, m2 = batch_moments(x, torch.zeros(2, 2, dtype=torch.bool))
    assert count.item() == 0 and not mean.any() and not m2.any()


def test_scalars_integers_and_higher_shapes():
    count, mean, m2 = batch_moments(torch.tensor([1, 2, 6], dtype=torch.uint8), torch.ones(3, dtype=torch.bool))
    assert (count.item(), mean.item(), m2.item()) == (3.0, 3.0, 14.0)
    assert batch_moments(torch.zeros(4, 5, 2, 3), torch.ones(4, 5, dtype=torch.bool))[1].shape == (2, 3)


def test_merging_changes_buffers_in_place_and_the_state_dict_carries_them():
    moments = Moments((2,))
    before = buffers(moments)
    moments.merge(*triple(np.array([[1.0, 2.0], [3.0, 2.0]])))
    assert all(here is there for here, there in zip(before, buffers(moments), strict=True))
    copy = Moments((2,))
    copy.load_state_dict(moments.state_dict())
    assert copy.std.tolist() == [1.0, 0.0] and copy.count.dtype == torch.float64


def test_one_sample_has_unit_variance():
    moments = Moments((1,))
    moments.merge(*triple([[7.0]]))
    assert moments.mean.item() == 7.0 and moments.variance.item() == 1.0


def test_a_billion_samples_lose_nothing():
    rng = np.random.default_rng(0)
    x = rng.normal(1000.0, 0.01, 1000)
    moments = Moments()
    for power in range(21):  # 1000 · 2^20 samples by doubling
        moments.merge(*(triple(x) if power == 0 else buffers(moments)))
    for _ in range(1000):
        moments.merge(*triple(x))
    assert moments.count.item() == 1000 * 2**20 + 1_000_000
    assert moments.mean.item() == pytest.approx(x.mean(), rel=1e-13)
    assert moments.std.item() == pytest.approx(x.std(), rel=1e-7)


def test_moments_of_bytes_are_those_of_any_number():
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.integers(0, 256, (3, 500, 4, 2), np.uint8))
    x[..., 0, 0], x[..., 0, 1] = 255, 0
    valid = torch.from_numpy(rng.random((3, 500)) < 0.7)
    for kept in (valid, torch.zeros_like(valid), torch.ones_like(valid)):
        for ours, expected in zip(byte_moments(x, kept), batch_moments(x, kept), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-6)
    assert not byte_moments(x, valid)[2][0].any()


def test_normaliser_is_the_identity_before_statistics_but_for_the_clip():
    normaliser = Normaliser((3,), 10.0)
    x = torch.tensor([[0.5, -3.0, 100.0]])
    assert normaliser(x).tolist() == [[0.5, -3.0, 10.0]]
    normaliser.update(batch_moments(x, torch.zeros(1, dtype=torch.bool)))
    assert normaliser(x).tolist() == [[0.5, -3.0, 10.0]]
    assert normaliser(torch.tensor([[1, 2, 3]], dtype=torch.uint8)).dtype == torch.float32


def test_normaliser_standardises():
    x = np.random.default_rng(0).normal([5.0, -1e3], [0.1, 50.0], (500, 2))
    normaliser = Normaliser((2,), 10.0)
    normaliser.update(triple(x[:300]))
    normaliser.update(triple(x[300:]))
    ours = normaliser(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, (x - x.mean(0)) / x.std(0), atol=2e-3)
    restored = Normaliser((2,), 10.0)
    restored.load_state_dict(normaliser.state_dict())
    assert np.array_equal(restored(torch.from_numpy(x)), ours)


@pytest.mark.parametrize("value", [0.0, 0.1, -12345.678])
def test_a_constant_dimension_is_zero_until_it_moves_and_finite_when_it_does(value):
    normaliser = Normaliser((1,), 10.0)
    still = torch.full((1000, 1), value)
    for _ in range(5):
        normaliser.update(triple(still))
    for _ in range(20):  # as many samples as 5000 · 2^20
        normaliser.update(buffers(normaliser.moments))
    assert not normaliser(still).any()
    moved = torch.tensor([[value + 1]])
    assert normaliser(moved).item() == 10.0
    normaliser.update(triple(moved))
    assert torch.isfinite(normaliser.scale).all() and normaliser(moved).item() == 10.0
    for _ in range(20):
        normaliser.update(triple(torch.full((10**6, 1), value + 1)))
    assert normaliser.scale.item() < 1e3 and abs(normaliser(still)[0].item()) < 1e-1


def test_scale_is_the_std_and_one_while_there_is_none():
    scale = Scale()
    assert scale.scale.item() == 1.0 and scale.scale.shape == ()
    scale.update(triple([5.0]))
    assert scale.scale.item() == 1.0
    for _ in range(3):
        scale.update(triple(np.full(7, 5.0)))
    assert scale.scale.item() == 1.0
    scale.update(triple(np.full(22, 9.0)))
    assert scale.scale.item() == 2.0 and scale.scale.dtype == torch.float32


def test_scale_is_one_where_the_std_vanishes_in_float32():
    scale = Scale()
    scale.update(triple([0.0, 1e-60]))
    assert scale.scale.item() == 1.0
    scale = Scale()
    for _ in range(3):
        scale.update(triple(np.full(1001, 0.1, np.float32)))
    assert scale.scale.item() == 1.0
