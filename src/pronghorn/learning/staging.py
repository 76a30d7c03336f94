"""Batches on the way to the learner's device: to a GPU they are copied while another is learnt from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pronghorn.types import Trajectory


class Staged(NamedTuple):
    """A batch in the memory of the device, there for sure once ``copied`` has happened (None: it is there)."""

    batch: Trajectory
    copied: Any


class Staging:
    """Copies to a GPU run on a stream of their own, from pinned memory; to a CPU nothing is copied at all.

    Args:
        device: of the learner.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.copies = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self.copies else None  # type: ignore[no-untyped-call]

    def begin(self, batch: Trajectory) -> Staged:
        """Sends a batch of arrays on its way, and waits for nothing."""
        if self._stream is None:
            return Staged(batch.map(torch.as_tensor), None)
        with torch.cuda.stream(self._stream):
            there = batch.map(lambda array: torch.as_tensor(array).pin_memory().to(self._device, non_blocking=True))
            return Staged(there, self._stream.record_event())

    def finish(self, staged: Staged) -> Trajectory:
        """The batch, for whatever is computed from here on."""
        if staged.copied is None:
            return staged.batch
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(staged.copied)

        def used_here(tensor: Tensor) -> Tensor:
            # Its memory belongs to the stream of the copies, which may not have it back before we have read it.
            tensor.record_stream(computing)
            return tensor

        return staged.batch.map(used_here)
