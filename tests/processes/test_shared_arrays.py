import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pronghorn import tree
from pronghorn.processes.launch import launch
from pronghorn.processes.shared import ArraySpec, SharedArrays, anonymous, nbytes

LAYOUT = {
    "numbers": ArraySpec((3, 2), np.dtype(np.float64)),
    "flag": ArraySpec((5,), np.dtype(np.bool_)),
    "nested": (ArraySpec((), np.dtype(np.int64)), ArraySpec((0,), np.dtype(np.int8))),
}


def open_fds():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_child_sees_and_changes_the_same_memory():
    block = SharedArrays(LAYOUT)
    child = launch("processes.processes_child", fds=[block.fd])
    block.arrays["numbers"][:] = np.arange(6).reshape(3, 2)
    block.arrays["flag"][:] = [1, 0, 1, 1, 0]
    child.send(("double", LAYOUT, block.fd))
    assert child.control.poll(10)
    assert child.control.recv() == [True, False, True, True, False]
    np.testing.assert_array_equal(block.arrays["numbers"], 2 * np.arange(6).reshape(3, 2))
    child.end(1)
    block.close()


specs = st.builds(
    ArraySpec,
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from(["u1", "?", "<i8", "<f4", "<f8"]).map(np.dtype),
)


@given(st.lists(specs, max_size=6))
def test_arrays_do_not_overlap_and_are_aligned(layout):
    block = SharedArrays(layout)
    for number, array in enumerate(block.arrays):
        assert array.ctypes.data % 64 == 0
        assert not array.any()
        array[...] = number + 1
    for number, (array, spec) in enumerate(zip(block.arrays, layout, strict=True)):
        assert (array.shape, array.dtype) == (spec.shape, spec.dtype)
        assert (array == array.dtype.type(number + 1)).all()
    assert nbytes(layout) >= sum(array.nbytes for array in block.arrays)
    block.close()


def test_sized_by_the_first_to_attach_and_closed_twice():
    before = open_fds()
    fd = anonymous()
    first, second = SharedArrays(LAYOUT, fd), SharedArrays(LAYOUT, os.dup(fd))
    assert os.fstat(fd).st_size == nbytes(LAYOUT)
    first.arrays["numbers"][1, 1] = 7
    assert second.arrays["numbers"][1, 1] == 7
    kept = second.arrays["numbers"]
    for block in (first, second, first, second):
        block.close()
    assert kept[1, 1] == 7
    del kept
    assert tree.leaves(first.arrays) == []
    del first, second, block
    assert open_fds() == before
