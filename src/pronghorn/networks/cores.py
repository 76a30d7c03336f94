"""What carries memory from one step of an episode to the next.

A core has ``initial_state(batch)`` and ``forward(inputs [T, B, X], first [T, B], state) -> (outputs, state)``. The
state is reset where ``first`` *before* the inputs of that row are consumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from pronghorn.tree import Tree

ROWS_PER_RESET = 5
"""With more resets than one in so many rows a loop over all rows is faster than fused calls between the resets."""


class Core(Protocol):
    """The protocol; ``recurrent`` says whether rows must stay in order, ``size`` is that of the outputs."""

    recurrent: bool
    size: int

    def initial_state(self, batch: int) -> Tree:
        """The state at the start of an episode, [batch, …] in every leaf."""

    def __call__(self, inputs: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Outputs [T, B, ``size``] and the state after the last row."""


class NoCore(nn.Module):
    """Passes its inputs on; has the empty state and takes any leading dimensions."""

    recurrent = False

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.size = inputs

    def initial_state(self, batch: int) -> Tree:
        return ()

    def forward(self, inputs: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return inputs, ()


class CountingCore(nn.Module):
    """Passes its inputs on and counts the steps of the episode: proves that state flows and resets where it should."""

    recurrent = True

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.size = inputs

    def initial_state(self, batch: int) -> Tree:
        return torch.zeros(batch, dtype=torch.int64)

    def forward(self, inputs: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        for row in range(first.shape[0]):
            state = torch.where(first[row], 0, state) + 1
        return inputs, state


State: TypeAlias = tuple[Tensor, ...]
"""Of a gated core, [B, units] each; the first is the output."""


class Cell(NamedTuple):
    """What tells one gated core from another.

    ``step`` takes the inputs' share of the gates [B, gates · units], the recurrent weight, transposed, and the state.
    ``unroll`` takes inputs [T, B, X], the state, and both weights and biases as torch wants them.
    """

    gates: int
    states: int
    step: Callable[[Tensor, Tensor, State], State]
    unroll: Callable[[Tensor, State, list[Tensor]], tuple[Tensor, State]]


def _lstm_step(gates: Tensor, weight: Tensor, state: State) -> State:
    hidden, cell = state
    entry, keep, candidate, exit = torch.addmm(gates, hidden, weight).chunk(4, -1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(entry) * torch.tanh(candidate)
    return torch.sigmoid(exit) * torch.tanh(cell), cell


def _lstm_unroll(inputs: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
    hidden, cell = (part.unsqueeze(0) for part in state)
    outputs, hidden, cell = torch.lstm(inputs, (hidden, cell), weights, True, 1, 0.0, False, False, False)
    return outputs, (hidden.squeeze(0), cell.squeeze(0))


def _gru_step(gates: Tensor, weight: Tensor, state: State) -> State:
    (hidden,) = state
    reset, keep, candidate = gates.chunk(3, -1)
    own_reset, own_keep, own_candidate = (hidden @ weight).chunk(3, -1)
    candidate = torch.tanh(candidate + torch.sigmoid(reset + own_reset) * own_candidate)
    return (torch.lerp(candidate, hidden, torch.sigmoid(keep + own_keep)),)


def _gru_unroll(inputs: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
    outputs, hidden = torch.gru(inputs, state[0].unsqueeze(0), weights, True, 1, 0.0, False, False, False)
    return outputs, (hidden.squeeze(0),)


LSTM = Cell(4, 2, _lstm_step, _lstm_unroll)
"""Hochreiter and Schmidhuber 1997, with forget gates. Gates: input, forget, candidate, output."""
GRU = Cell(3, 1, _gru_step, _gru_unroll)
"""Cho et al. 2014, with the reset gate after the product, as cuDNN has it. Gates: reset, update, candidate."""


class GatedCore(nn.Module):
    """LSTM or GRU with one bias. Weights start uniform (Glorot and Bengio 2010, of the joint matrix of inputs and
    state), biases at 0, that of an LSTM's forget gate at 1.

    Args:
        cell: which of them.
        inputs: X.
        units: of state and outputs.
        generator: of the initial weights.
    """

    recurrent = True

    def __init__(self, cell: Cell, inputs: int, units: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size = units
        self._cell = cell
        bound = math.sqrt(6 / (inputs + units + cell.gates * units))
        self.input_weight = nn.Parameter(torch.empty(cell.gates * units, inputs))
        self.state_weight = nn.Parameter(torch.empty(cell.gates * units, units))
        for weight in (self.input_weight, self.state_weight):
            nn.init.uniform_(weight, -bound, bound, generator=generator)
        self.bias = nn.Parameter(torch.zeros(cell.gates * units))
        if cell is LSTM:
            with torch.no_grad():
                self.bias[units : 2 * units] = 1.0

    def initial_state(self, batch: int) -> State:
        return tuple(self.bias.new_zeros(batch, self.size) for _ in range(self._cell.states))

    def forward(self, inputs: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """As the protocol says. Fused calls between the rows with resets, unless these are many; equal to rounding."""
        if len(first) == 1 or torch.compiler.is_compiling():  # a compiler cannot see into the fused calls
            return self._loop(inputs, first, state)
        resets: list[int] = first[1:].any(1).nonzero().add(1).flatten().tolist()
        if len(resets) > len(first) // ROWS_PER_RESET:
            return self._loop(inputs, first, state)
        weights = [self.input_weight, self.state_weight, self.bias, torch.zeros_like(self.bias)]
        parts = []
        for start, end in pairwise([0, *resets, len(first)]):
            part, state = self._cell.unroll(inputs[start:end], _reset(state, first[start]), weights)
            parts.append(part)
        return (parts[0] if len(parts) == 1 else torch.cat(parts)), state

    def _loop(self, inputs: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """Row by row; what does not depend on the state is computed for all rows at once."""
        gates = functional.linear(inputs, self.input_weight, self.bias)
        weight = self.state_weight.t()
        outputs = []
        for row, ended in zip(gates.unbind(), first.unbind(), strict=True):
            state = self._cell.step(row, weight, _reset(state, ended))
            outputs.append(state[0])
        return torch.stack(outputs), state


def _reset(state: State, first: Tensor) -> State:
    """Zero where ``first`` [B]."""
    return tuple(part.masked_fill(first.unsqueeze(-1), 0.0) for part in state)


def make_core(name: str, inputs: int, units: int, generator: torch.Generator) -> NoCore | CountingCore | GatedCore:
    """The core called ``name`` in the config. ``units`` is of those that learn."""
    if name in CELLS:
        return GatedCore(CELLS[name], inputs, units, generator)
    return PLAIN[name](inputs)


CELLS = {"lstm": LSTM, "gru": GRU}
PLAIN: dict[str, type[NoCore] | type[CountingCore]] = {"none": NoCore, "counting": CountingCore}
