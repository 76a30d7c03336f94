"""Unrolls that were learnt from, kept to be learnt from again: first in, first out, drawn uniformly.

Storage is column-major, as in ``memory.rollout``. Its size is fixed; its pages are taken as it fills.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pronghorn import tree
from pronghorn.memory.rollout import gather
from pronghorn.seeding import Domain, generator
from pronghorn.tree import Tree
from pronghorn.types import IntArray, Slot, Trajectory


class ReplayBuffer:
    """Args:
    slots: the row (``types.column_slots``).
    capacity: unrolls that are kept, at least as many as a batch adds.
    burn_in: first rows of a replayed unroll that are not learnt from, but bring the core state up to date.
    run_seed: names the drawing.
    """

    def __init__(self, slots: Mapping[str, Tree], capacity: int, burn_in: int, run_seed: int) -> None:
        self._slots, self.capacity, self._burn_in, self._run_seed = slots, capacity, burn_in, run_seed
        self._arrays = {name: tree.map(lambda slot: _room(slot, capacity), part) for name, part in slots.items()}
        self._added = 0

    @property
    def size(self) -> int:
        """Unrolls that are kept now."""
        return min(self._added, self.capacity)

    @property
    def nbytes(self) -> int:
        """Bytes of all unrolls when the buffer is full."""
        return sum(array.nbytes for array in tree.leaves(self._arrays))

    def add(self, batch: Trajectory) -> None:
        """Copies every column of a batch of whole unrolls, over the oldest where there is no room left."""
        columns = (self._added + np.arange(len(batch.env))) % self.capacity

        def put(slot: Slot, array: NDArray[Any], values: NDArray[Any]) -> None:
            array[columns] = values.swapaxes(0, 1) if slot.rows else values

        for name, part in self._slots.items():
            tree.map(put, part, self._arrays[name], getattr(batch, name))
        self._added += len(columns)

    def sample(self, count: int, version: int) -> Trajectory:
        """``count`` different unrolls, uniformly, time-major; the same for the same contents and weights' ``version``.

        Raises ValueError if there are fewer.
        """
        # Two updates may be of one version, where lag is forced; after a resume so much is added a second time.
        rng = generator(self._run_seed, Domain.REPLAY, version, self._added)
        chosen: IntArray = rng.choice(self.size, count, replace=False)
        batch = gather(self._slots, self._arrays, chosen, self._slots["reward"].rows)
        batch.replayed[:] = True
        batch.valid[: self._burn_in] = False
        return batch

    def joined(self, one: Trajectory, other: Trajectory) -> Trajectory:
        """The columns of both, those of ``one`` first."""

        def join(slot: Slot, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate((first, second), axis=1 if slot.rows else 0)

        return Trajectory(
            **{
                name: tree.map(join, part, getattr(one, name), getattr(other, name))
                for name, part in self._slots.items()
            }
        )


def _room(slot: Slot, columns: int) -> NDArray[Any]:
    return np.empty((columns, *((slot.rows,) if slot.rows else ()), *slot.shape), slot.dtype)
