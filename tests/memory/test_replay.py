"""First in, first out; drawn uniformly; every cell encodes its own position."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory.test_rollout import SPEC

from pronghorn import tree
from pronghorn.memory.replay import ReplayBuffer
from pronghorn.types import Trajectory, column_slots

ROWS = 6
SLOTS = column_slots(SPEC, ROWS, 5, {"hidden": np.zeros(3, np.float32)})


def cells(slot, columns, number):
    """Values that tell column, row and place; ``number`` tells arrays apart."""
    shape = (*((slot.rows,) if slot.rows else ()), *slot.shape)
    places = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    each = [1009 * column + 31 * number + places for column in columns]
    return np.stack(each, axis=1 if slot.rows else 0).astype(slot.dtype)


def batch_of(columns) -> Trajectory:
    """A batch of the columns with these numbers, which are also those of their envs."""
    count = iter(range(100))
    values = {name: tree.map(lambda slot: cells(slot, columns, next(count)), part) for name, part in SLOTS.items()}
    values["env"] = np.array(columns)
    values["valid"] = np.ones((ROWS, len(columns)), bool)
    values["replayed"] = np.zeros(len(columns), bool)
    return Trajectory(**values)


def buffer_of(capacity, burn_in=0, seed=3):
    return ReplayBuffer(SLOTS, capacity, burn_in, seed)


def kept(buffer):
    return sorted(buffer.sample(buffer.size, 0).env.tolist())


def assert_same(one, other):
    for field in dataclasses.fields(Trajectory):
        pairs = zip(tree.leaves(getattr(one, field.name)), tree.leaves(getattr(other, field.name)), strict=True)
        for found, wanted in pairs:
            assert found.dtype == wanted.dtype and np.array_equal(found, wanted), field.name


def test_a_column_comes_back_cell_for_cell():
    buffer = buffer_of(9)
    buffer.add(batch_of([10, 11, 12, 13]))
    found = buffer.sample(3, 0)
    wanted = batch_of(found.env.tolist())
    assert set(found.env.tolist()) < {10, 11, 12, 13}
    assert found.replayed.all() and found.valid.all() and not found.fresh.any()
    assert_same(dataclasses.replace(found, replayed=wanted.replayed), wanted)


def test_what_comes_back_is_a_copy_and_what_was_added_too():
    buffer, added = buffer_of(4), batch_of([1, 2])
    buffer.add(added)
    for array in (*tree.leaves(added.observation), added.reward, added.valid, added.env):
        array[...] = 0
    found = buffer.sample(2, 0)
    wanted = batch_of(found.env.tolist())
    assert_same(dataclasses.replace(found, replayed=wanted.replayed), wanted)
    found.reward[...] = 0
    assert np.array_equal(buffer.sample(2, 0).reward, wanted.reward)


@settings(deadline=None, max_examples=60)
@given(st.integers(4, 12), st.lists(st.integers(1, 4), max_size=12))
def test_the_newest_are_kept(capacity, sizes):
    buffer, added = buffer_of(capacity), 0
    for size in sizes:
        buffer.add(batch_of(range(added, added + size)))
        added += size
        assert buffer.size == min(added, capacity)
        assert kept(buffer) == list(range(max(0, added - capacity), added))


def test_drawing_is_uniform_and_without_repeats():
    buffer = buffer_of(10)
    for start in range(0, 14, 2):  # 4 to 13 are kept
        buffer.add(batch_of([start, start + 1]))
    counts, firsts = collections.Counter(), collections.Counter()
    for update in range(2000):
        chosen = buffer.sample(3, update).env.tolist()
        assert len(set(chosen)) == 3
        counts.update(chosen)
        firsts[chosen[0]] += 1
    assert set(counts) == set(range(4, 14))
    # Five standard deviations of a binomial around 600 and 200.
    assert max(abs(count - 600) for count in counts.values()) < 5 * np.sqrt(2000 * 0.3 * 0.7)
    assert max(abs(count - 200) for count in firsts.values()) < 5 * np.sqrt(2000 * 0.1 * 0.9)


def test_the_draw_is_named_by_seed_version_and_what_was_added():
    draws = []
    for seed in (3, 4):
        buffer = buffer_of(500, seed=seed)
        for _ in range(2):
            buffer.add(batch_of(range(500)))
            for version in (0, 1):
                draws.append(tuple(buffer.sample(8, version).env.tolist()))
                assert tuple(buffer.sample(8, version).env.tolist()) == draws[-1]
    assert len(set(draws)) == len(draws) == 8


def test_more_than_there_is_is_refused():
    buffer = buffer_of(5)
    buffer.add(batch_of([1, 2]))
    with pytest.raises(ValueError, match="larger"):
        buffer.sample(3, 0)


@pytest.mark.parametrize("burn_in", [0, 1, ROWS - 1])
def test_rows_of_the_burn_in_do_not_count(burn_in):
    buffer, added = buffer_of(4, burn_in), batch_of([1, 2])
    added.valid[-1, 0] = False
    buffer.add(added)
    found = buffer.sample(2, 0)
    assert not found.valid[:burn_in].any()
    column = found.env.tolist().index(1)
    assert found.valid[burn_in:].sum() == 2 * (ROWS - burn_in) - 1 and not found.valid[-1, column]
    assert np.array_equal(found.core_state["hidden"], batch_of(found.env.tolist()).core_state["hidden"])
    assert added.valid[0].all()


def test_joined_columns_stand_side_by_side():
    buffer = buffer_of(4)
    fresh, replayed = batch_of([7, 8, 9]), batch_of([1, 2])
    replayed.replayed[:] = True
    found = buffer.joined(fresh, replayed)
    wanted = batch_of([7, 8, 9, 1, 2])
    assert found.replayed.tolist() == [False] * 3 + [True] * 2
    assert np.array_equal(found.fresh, np.repeat([[True] * 3 + [False] * 2], ROWS, axis=0))
    assert_same(dataclasses.replace(found, replayed=wanted.replayed), wanted)


def test_bytes():
    column = sum(slot.nbytes for slot in tree.leaves(SLOTS))
    assert buffer_of(7).nbytes == 7 * column
    arrays = tree.leaves(list(vars(batch_of(range(7))).values()))
    assert sum(array.nbytes for array in arrays) == 7 * column
