"""Weights through shared memory: one writer, any number of readers, no locks.

The writer goes round several buffers and announces the newest. A reader copies that one, and again if the writer has
meanwhile come round to it: no mixture of two versions is ever handed out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pronghorn.processes.shared import ArraySpec, SharedArrays

BUFFERS = 4
NEWEST, COUNT = 0, 1
BEGUN, DONE, VERSION = range(3)
WAIT = 120.0
"""Seconds that a reader waits for weights."""


def weights_layout(state: Mapping[str, Any]) -> dict[str, Any]:
    """Shared arrays for state dicts (of tensors) like ``state``.

    ``head``: number of the newest buffer, and of publications so far. ``marks`` [BUFFERS, 3]: the publication that was
    begun in a buffer and the one that was done, and the version it holds.
    """
    specs = {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
    return {
        "head": ArraySpec((2,), np.dtype(np.int64)),
        "marks": ArraySpec((BUFFERS, 3), np.dtype(np.int64)),
        "weights": {name: ArraySpec((BUFFERS, *array.shape), array.dtype) for name, array in specs.items()},
    }


class SharedWeights:
    """Both ends. ``layout`` is that of ``weights_layout``; a reader attaches to ``fd`` with the same."""

    def __init__(self, layout: dict[str, Any], fd: int | None = None) -> None:
        self.layout = layout
        self._shared = SharedArrays(layout, fd)
        self.fd = self._shared.fd
        self._head: NDArray[np.int64] = self._shared.arrays["head"]
        self._marks: NDArray[np.int64] = self._shared.arrays["marks"]
        self._weights: dict[str, NDArray[Any]] = self._shared.arrays["weights"]

    @property
    def publications(self) -> int:
        """How many there have been. A version may be published more than once."""
        return int(self._head[COUNT])

    def publish(self, state: dict[str, Any], version: int) -> None:
        """Makes ``state`` the newest weights."""
        number = self.publications + 1
        buffer = number % BUFFERS
        marks = self._marks[buffer]
        marks[BEGUN] = number
        for name, tensor in state.items():
            self._weights[name][buffer] = tensor.detach().cpu().numpy()
        marks[VERSION] = version
        marks[DONE] = number
        self._head[NEWEST] = buffer
        self._head[COUNT] = number

    def fetch(self) -> tuple[dict[str, Any], int]:
        """The newest (state, version); the tensors are the caller's.

        Raises:
            TimeoutError: nothing was published in 120 s.
        """
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            if not self.publications:
                time.sleep(0.001)
                continue
            buffer = int(self._head[NEWEST])
            marks = self._marks[buffer]
            number = int(marks[DONE])
            copies = {name: torch.from_numpy(array[buffer, ...].copy()) for name, array in self._weights.items()}
            version = int(marks[VERSION])
            if number and marks[BEGUN] == number == marks[DONE]:
                return copies, version
        raise TimeoutError(f"no whole weights could be read within {WAIT:g} s")

    def close(self) -> None:
        """May be called twice."""
        self._head = self._marks = np.zeros((0, 3), np.int64)
        self._weights = {}
        self._shared.close()
