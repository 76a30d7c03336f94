"""Columns in shared memory: a ring that actors fill and a learner reads. Only column numbers cross processes.

Every actor has columns of its own, so a slow one holds up nobody, and those of one that died are simply free again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pronghorn import tree
from pronghorn.memory.rollout import Storage
from pronghorn.processes.shared import ArraySpec, SharedArrays
from pronghorn.tree import Tree
from pronghorn.types import Slot


def slots_layout(slots: Mapping[str, Tree], columns: int) -> dict[str, Tree]:
    """The arrays of so many columns, and their lengths."""

    def spec(slot: Slot) -> ArraySpec:
        return ArraySpec((columns, *((slot.rows,) if slot.rows else ()), *slot.shape), slot.dtype)

    arrays = {name: tree.map(spec, part) for name, part in slots.items()}
    return {"arrays": arrays, "lengths": ArraySpec((columns,), np.dtype(np.int64))}


class SharedColumns:
    """``storage`` for ``RolloutMemory``, in this process and in those that attach to ``fd``."""

    def __init__(self, slots: Mapping[str, Tree], columns: int, fd: int | None = None) -> None:
        self._shared = SharedArrays(slots_layout(slots, columns), fd)
        self.fd = self._shared.fd
        self.storage = Storage(self._shared.arrays["arrays"], self._shared.arrays["lengths"])

    def close(self) -> None:
        """May be called twice."""
        self.storage = Storage({}, np.zeros(0, np.int64))
        self._shared.close()
