"""Anonymous shared arrays: one block of memory for a whole tree, without a name that could be left behind."""

from __future__ import annotations

import math
import mmap
import os
import secrets
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from pronghorn import tree
from pronghorn.tree import Tree

ALIGNMENT = 64

BLOCK_FDS = 2
"""Descriptors of a block in a process: its own, and the copy that its mapping keeps."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one shared array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the array itself."""
        return math.prod(self.shape) * self.dtype.itemsize


def nbytes(layout: Tree) -> int:
    """Bytes of a block for a tree of ``ArraySpec``, padding included: to be checked before it is allocated."""
    return sum(_padded(spec) for spec in tree.leaves(layout))


def mapped(layout: Tree) -> int:
    """Bytes such a block really takes: whole pages."""
    return -(-max(nbytes(layout), 1) // mmap.PAGESIZE) * mmap.PAGESIZE


def anonymous() -> int:
    """A descriptor of an empty piece of shared memory. Children inherit it through ``launch(fds=…)``."""
    if sys.platform == "linux":
        return os.memfd_create("pronghorn")  # not limited by the size of /dev/shm
    import _posixshmem

    name = f"/pronghorn-{secrets.token_hex(8)}"
    fd: int = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    _posixshmem.shm_unlink(name)
    return fd


class SharedArrays:
    """``arrays``: a tree of arrays in the shape of ``layout`` (a tree of ``ArraySpec``), each aligned to 64 bytes.

    ``fd`` is the descriptor that another process attaches to with the same layout; without one given a new piece of
    memory is made. The first process to attach sizes it; it begins as zeros. This object owns the descriptor.
    """

    def __init__(self, layout: Tree, fd: int | None = None) -> None:
        self.fd = anonymous() if fd is None else fd
        size = max(nbytes(layout), 1)
        if os.fstat(self.fd).st_size < size:
            os.ftruncate(self.fd, size)
        memory = mmap.mmap(self.fd, size)
        offset = 0
        arrays: list[Any] = []
        for spec in tree.leaves(layout):
            arrays.append(np.ndarray(spec.shape, spec.dtype, memory, offset))
            offset += _padded(spec)
        self.arrays = tree.like(layout, arrays)

    def close(self) -> None:
        """Lets go of the memory, which lives until the last array over it is gone. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.arrays = None  # arrays keep the mapping alive, and it ends with the last: never close it under one


def _padded(spec: ArraySpec) -> int:
    return -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
