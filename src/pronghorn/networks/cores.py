"""What carries memory from one step of an episode to the next.

A core has ``initial_state(batch)`` and ``forward(inputs [T, B, X], first [T, B], state) -> (outputs, state)``. The
state is reset where ``first`` *before* the inputs of that row are consumed.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from pronghorn.tree import Tree


class Core(Protocol):
    """The protocol; ``recurrent`` says whether rows must stay in order."""

    recurrent: bool

    def initial_state(self, batch: int) -> Tree:
        """The state at the start of an episode, [batch, …] in every leaf."""

    def __call__(self, inputs: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Outputs [T, B, Y] and the state after the last row."""


class NoCore(nn.Module):
    """Passes its inputs on; has the empty state and takes any leading dimensions."""

    recurrent = False

    def initial_state(self, batch: int) -> Tree:
        return ()

    def forward(self, inputs: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return inputs, ()


class CountingCore(nn.Module):
    """Passes its inputs on and counts the steps of the episode: proves that state flows and resets where it should."""

    recurrent = True

    def initial_state(self, batch: int) -> Tree:
        return torch.zeros(batch, dtype=torch.int64)

    def forward(self, inputs: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        for row in range(first.shape[0]):
            state = torch.where(first[row], 0, state) + 1
        return inputs, state


CORES: dict[str, type[NoCore] | type[CountingCore]] = {"none": NoCore, "counting": CountingCore}
