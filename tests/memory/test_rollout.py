"""Columns whose every cell encodes its own position."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rig

from pronghorn import tree
from pronghorn.memory.rollout import RolloutMemory
from pronghorn.types import EnvSpec, Leaf, UserError, column_slots

ROWS = 8


def box(shape, dtype):
    return Leaf("box", shape, np.dtype(dtype), np.full(shape, -np.inf), np.full(shape, np.inf))


SPEC = EnvSpec(
    "positions",
    {"a": box((2,), np.float64), "b": box((), np.uint8)},
    (Leaf("discrete", (), np.dtype(np.int64), categories=(4,)), box((3,), np.float32)),
)
ROW_FIELDS = ("action", "behaviour", "behaviour_log_prob", "reward", "terminated", "truncated", "valid")
ROW_FIELDS = (*ROW_FIELDS, "policy_version", "episode_return", "episode_length")
ONCE = ("core_state", "last_action", "last_reward", "task")


def make(columns, batch_size, sort_by_env=False, rows=ROWS):
    core = {"h": np.zeros(2, np.float32)}
    return RolloutMemory(column_slots(SPEC, rows, 5, core), range(columns), batch_size, sort_by_env)


def code(array, row, stamp):
    """What belongs into a cell: a number of its own in every dtype (mod 100 for small ones)."""
    return np.full(array.shape[2:], (stamp * 10 + row) % (2 if array.dtype == bool else 100)).astype(array.dtype)


def fill(memory, env, length, stamp):
    """A finished column for ``env`` with every cell coded."""
    column = memory.begin(env)
    index = np.array([column])
    for name in ONCE:
        coded = [
            np.full((1, *array.shape[1:]), stamp % 100).astype(array.dtype)
            for array in tree.leaves(memory.arrays[name])
        ]
        memory.write_once(name, index, tree.like(memory.arrays[name], coded))
    for row in range(length + 1):
        for name in ("observation", "first", *(ROW_FIELDS if row < length else ())):
            coded = [code(array, row, stamp)[None] for array in tree.leaves(memory.arrays[name])]
            memory.write(name, index, np.array([row]), tree.like(memory.arrays[name], coded))
    memory.finish(column, length)
    return column


def check(memory, batch, column, length, stamp):
    rows = batch.reward.shape[0]
    for name in (*ROW_FIELDS, "observation", "first"):
        extra = name in ("observation", "first")
        for array, stored in zip(tree.leaves(getattr(batch, name)), tree.leaves(memory.arrays[name]), strict=True):
            assert array.dtype == stored.dtype and array.shape[:1] == (rows + extra,)
            for row in range(rows + extra):
                wanted = code(stored, row, stamp) if row < length + extra else np.zeros(stored.shape[2:], stored.dtype)
                assert np.array_equal(array[row, column], wanted), (name, row)
    for name in ONCE:
        assert all((array[column] == stamp % 100).all() for array in tree.leaves(getattr(batch, name)))


def test_columns_come_out_time_major_in_the_order_of_finishing():
    memory = make(4, 2)
    fill(memory, 7, ROWS, 1)
    assert not memory.ready()
    fill(memory, 3, ROWS, 2)
    fill(memory, 5, ROWS, 3)
    assert memory.ready()
    batch = memory.take()
    assert batch.env.tolist() == [7, 3] and not memory.ready()
    check(memory, batch, 0, ROWS, 1)
    check(memory, batch, 1, ROWS, 2)
    fill(memory, 4, ROWS, 4)  # the third opens the next batch
    batch = memory.take()
    assert batch.env.tolist() == [5, 4]
    check(memory, batch, 0, ROWS, 3)


def test_sorting_by_env():
    memory = make(3, 3, sort_by_env=True)
    for env in (2, 0, 1):
        fill(memory, env, ROWS, env)
    batch = memory.take()
    assert batch.env.tolist() == [0, 1, 2]
    for env in range(3):
        check(memory, batch, env, ROWS, env)


@pytest.mark.parametrize(("lengths", "rows"), [((1, 2), 2), ((2, 3), 4), ((5, 1), 6), ((7, 2), 8), ((8, 8), 8)])
def test_short_columns_are_padded_with_invalid_rows_and_cut_to_a_quarter(lengths, rows):
    memory = make(2, 2)
    for round_number in range(3):  # columns that were used before, longer and shorter
        for env, length in enumerate(lengths):
            fill(memory, env, length, 10 * round_number + env)
        batch = memory.take()
        assert batch.reward.shape == (rows, 2)
        for env, length in enumerate(lengths):
            check(memory, batch, env, length, 10 * round_number + env)
        for _ in range(2):
            fill(memory, 0, ROWS, 99)
        memory.take()


@pytest.mark.parametrize(
    ("rows", "length", "taken"), [(1, 1, 1), (2, 1, 1), (3, 2, 2), (5, 3, 4), (5, 5, 5), (10, 10, 10)]
)
def test_cut_for_any_number_of_rows(rows, length, taken):
    memory = make(1, 1, rows=rows)
    fill(memory, 0, length, 3)
    batch = memory.take()
    assert batch.reward.shape == (taken, 1) and batch.first.shape == (taken + 1, 1)


def test_a_batch_is_the_callers():
    memory = make(1, 1)
    fill(memory, 0, ROWS, 1)
    batch = memory.take()
    fill(memory, 0, ROWS, 2)
    check(memory, batch, 0, ROWS, 1)
    for array in tree.leaves([getattr(batch, name) for name in vars(batch)]):
        assert not any(np.shares_memory(array, own) for own in tree.leaves(memory.arrays))


def test_columns_run_out_and_come_back():
    memory = make(3, 2)
    columns = [memory.begin(env) for env in range(3)]
    assert sorted(columns) == [0, 1, 2] and memory.begin(9) == -1
    memory.drop(columns[1])
    assert memory.begin(9) == columns[1] and memory.begin(9) == -1
    for column in columns:
        memory.finish(column, ROWS)
    memory.take()
    assert sorted((memory.begin(0), memory.begin(0))) == sorted(columns[:2]) and memory.begin(0) == -1


def test_several_columns_at_their_own_rows_in_one_call():
    memory = make(3, 3)
    columns = np.array([memory.begin(env) for env in range(3)])
    memory.write("reward", columns[[2, 0]], np.array([5, 1]), np.array([25.0, 1.0]))
    memory.write("action", columns[[2, 0]], np.array([5, 1]), (np.array([3, 1]), np.ones((2, 3), np.float32)))
    reward = memory.arrays["reward"]
    assert reward[columns[2], 5] == 25 and reward[columns[0], 1] == 1
    assert np.isnan(reward).sum() == reward.size - 2
    assert (
        memory.arrays["action"][0][columns[2], 5] == 3 and memory.arrays["action"][1][columns[0], 1].tolist() == [1] * 3
    )


def test_an_unwritten_cell_shows():
    memory = make(1, 1)
    assert np.isnan(memory.arrays["observation"]["a"]).all() and (memory.arrays["observation"]["b"] == 255).all()
    assert (memory.arrays["policy_version"] == np.iinfo(np.int64).max).all()
    assert memory.nbytes == sum(array.nbytes for array in tree.leaves(memory.arrays)) > 0


def test_state_through_json_and_back():
    def script(memory, steps):
        for env, length in steps:
            fill(memory, env, length, env)

    memory = make(4, 2)
    script(memory, [(1, 8), (2, 3)])
    memory.take()
    script(memory, [(3, 5)])
    using = memory.begin(8)
    memory.write("reward", np.array([using]), np.array([0]), np.array([42.0]))
    arrays, numbers = memory.state()
    other = make(4, 2)
    other.restore({name: array.copy() for name, array in arrays.items()}, json.loads(json.dumps(numbers)))
    assert len(arrays["reward"]) == 2  # only those in use are saved
    for one in (memory, other):
        assert one.arrays["reward"][using, 0] == 42 and one.arrays["env"][using] == 8
        script(one, [(5, 2)])
        batch = one.take()
        assert batch.env.tolist() == [3, 5]
        check(one, batch, 0, 5, 3)
        check(one, batch, 1, 2, 5)
    assert [memory.begin(0) for _ in range(4)] == [other.begin(0) for _ in range(4)]


def test_whole_trajectories_have_the_shapes_of_the_row():
    with rig.parts(rig.config(core="counting")) as (actor, _):
        batch = actor.collect()
    shapes = {name: array.shape for name, array in vars(batch).items()}
    assert shapes["observation"] == (8, 5, 3) and shapes["first"] == (8, 5)
    assert shapes["behaviour"] == (7, 5, 5) and shapes["core_state"] == shapes["env"] == (5,)


def test_columns_of_another_row_are_refused():
    memory = make(2, 2)
    memory.begin(0)
    arrays, numbers = memory.state()
    del arrays["replayed"]
    with pytest.raises(UserError, match="lack replayed; resume with the version that wrote it"):
        make(2, 2).restore(arrays, numbers)
