"""Columns with cursors: one env's unroll (or whole episode) each, allocated once and used again and again.

Storage is column-major, [column, row, …]; ``take`` gathers finished columns into a time-major ``Trajectory``. Columns
that hold no data are filled with absurd values, so an unwritten cell shows.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pronghorn import tree
from pronghorn.tree import Tree
from pronghorn.types import IntArray, Slot, Trajectory, UserError


@dataclass(frozen=True)
class Storage:
    """Columns: arrays [column, row, …] by field of the row, and how many rows of each are filled."""

    arrays: dict[str, Tree]
    lengths: IntArray


class RolloutMemory:
    """Both ends of the local transport of unrolls, or an actor's end of shared columns.

    Args:
        slots: the row (``types.column_slots``).
        columns: the numbers of those that may be begun here.
        batch_size: finished columns that make a batch.
        storage: where columns are kept (``allocate``, or the same in shared memory).

    Columns leave in the order in which they were finished; ``sort_by_env`` puts the columns of a batch in env order,
    which makes a batch independent of that order where it holds one column of every env.
    """

    def __init__(
        self,
        slots: Mapping[str, Tree],
        columns: Sequence[int],
        batch_size: int,
        sort_by_env: bool,
        storage: Storage | None = None,
    ) -> None:
        self._slots = slots
        self.rows = slots["reward"].rows
        self.batch_size = batch_size
        storage = storage or allocate(slots, len(columns))
        self.arrays, self.lengths = storage.arrays, storage.lengths
        self._sort_by_env = sort_by_env
        self._free = deque(columns)
        self._finished: deque[int] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(array.nbytes for array in tree.leaves(self.arrays))

    def begin(self, env: int) -> int:
        """A free column for ``env``, fresh, without ends or firsts; -1 if none is free."""
        if not self._free:
            return -1
        column = self._free.popleft()
        self.arrays["env"][column] = env
        for name in ("first", "terminated", "truncated", "episode_return", "episode_length", "replayed"):
            self.arrays[name][column] = 0
        return column

    def write(self, name: str, columns: IntArray, rows: IntArray, values: Tree) -> None:
        """``array[column, row] = value`` for several columns at once; every column has its own row."""
        if isinstance(values, np.ndarray):
            self.arrays[name][columns, rows] = values
            return
        for array, value in zip(tree.leaves(self.arrays[name]), tree.leaves(values), strict=True):
            array[columns, rows] = value

    def write_once(self, name: str, columns: IntArray, values: Tree) -> None:
        """For what is kept once per column."""
        for array, value in zip(tree.leaves(self.arrays[name]), tree.leaves(values), strict=True):
            array[columns] = value

    def finish(self, column: int, length: int) -> None:
        """Hands over a column of which ``length`` rows are filled; the rest become invalid rows."""
        self.lengths[column] = length
        if length < self.rows:
            self._blank(column, length)
        self._finished.append(column)

    def drop(self, column: int) -> None:
        """Gives back a column unused."""
        self.give_back([column])

    def ready(self) -> bool:
        """Whether a batch is finished."""
        return len(self._finished) >= self.batch_size

    def take(self) -> Trajectory:
        """The first ``batch_size`` finished columns, time-major; their columns are free again."""
        chosen = self.hand_over()
        batch = self.gather(chosen)
        self.give_back(chosen)
        return batch

    def hand_over(self) -> list[int]:
        """The numbers of the columns that ``take`` would take, for whoever reads them."""
        chosen = [self._finished.popleft() for _ in range(self.batch_size)]
        if self._sort_by_env:
            chosen.sort(key=lambda column: int(self.arrays["env"][column]))
        return chosen

    def give_back(self, columns: Iterable[int]) -> None:
        """These have been read, and are free again."""
        self._free.extend(columns)

    @property
    def free(self) -> int:
        """How many columns could be begun."""
        return len(self._free)

    def gather(self, chosen: Sequence[int]) -> Trajectory:
        """A batch of these columns, time-major.

        Rows beyond the longest column are left out, down to a quarter of the allocation, so that the number of
        different lengths (and of compilations) stays small.
        """
        index = np.asarray(chosen)
        quarter = max(1, -(-self.rows // 4))
        longest = int(self.lengths[index].max())
        rows = min(self.rows, -(-longest // quarter) * quarter)
        return gather(self._slots, self.arrays, index, rows)

    def _blank(self, column: int, length: int) -> None:
        for name in ("observation", "action", "behaviour", "behaviour_log_prob", "reward"):
            start = length + 1 if name == "observation" else length
            for array in tree.leaves(self.arrays[name]):
                array[column, start:] = 0
        self.arrays["valid"][column, length:] = False
        self.arrays["policy_version"][column, length:] = 0

    def release(self) -> None:
        """Lets go of the columns, which are of no use any more."""
        self.arrays, self.lengths = {}, np.zeros(0, np.int64)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """(arrays of the columns in use, their numbers) for a checkpoint."""
        used = sorted(set(range(len(self.lengths))) - set(self._free))
        arrays = {name: array[used] for name, array in tree.named(self.arrays).items()}
        arrays["lengths"] = self.lengths[used]
        return arrays, {"used": used, "free": list(self._free), "finished": list(self._finished)}

    def restore(self, arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, Any]) -> None:
        """The inverse of ``state``. Raises UserError for columns of another version's row."""
        if missing := tree.named(self.arrays).keys() - arrays.keys():
            raise UserError(
                f"the checkpoint's columns lack {', '.join(sorted(missing))}; resume with the version that wrote it"
            )
        used = list(numbers["used"])
        for name, array in tree.named(self.arrays).items():
            array[used] = arrays[name]
        self.lengths[used] = arrays["lengths"]
        self._free = deque(numbers["free"])
        self._finished = deque(numbers["finished"])


def allocate(slots: Mapping[str, Tree], columns: int) -> Storage:
    """Columns in memory of this process."""
    arrays = {name: tree.map(lambda slot: _absurd(slot, columns), part) for name, part in slots.items()}
    return Storage(arrays, np.zeros(columns, np.int64))


def gather(slots: Mapping[str, Tree], arrays: Mapping[str, Tree], chosen: IntArray, rows: int) -> Trajectory:
    """The first ``rows`` rows of columns, copied time-major."""
    most = slots["reward"].rows

    def gathered(slot: Slot, array: NDArray[Any]) -> NDArray[Any]:
        if not slot.rows:
            once: NDArray[Any] = array[chosen]
            return once
        last = rows + slot.rows - most  # one more where a column has one more
        return np.stack([array[column, :last] for column in chosen], axis=1)

    names = [field.name for field in dataclasses.fields(Trajectory)]
    return Trajectory(**{name: tree.map(gathered, slots[name], arrays[name]) for name in names})


def _absurd(slot: Slot, columns: int) -> NDArray[Any]:
    rows = (slot.rows,) if slot.rows else ()
    absurd: Any = np.nan if np.issubdtype(slot.dtype, np.floating) else 0
    if np.issubdtype(slot.dtype, np.integer):
        absurd = np.iinfo(slot.dtype).max
    return np.full((columns, *rows, *slot.shape), absurd, slot.dtype)
