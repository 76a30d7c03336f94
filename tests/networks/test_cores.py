"""Recurrent cores against loops over single cells: outputs, states and gradients, wherever episodes begin."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pronghorn.networks.cores import ROWS_PER_RESET, CountingCore, GatedCore, NoCore, make_core

INPUTS, UNITS = 3, 4
GATED = ["lstm", "gru"]


def make(name, inputs=INPUTS, units=UNITS, seed=0):
    core = make_core(name, inputs, units, torch.Generator().manual_seed(seed))
    with torch.no_grad():  # biases other than the start's
        core.bias += torch.linspace(-0.5, 0.5, len(core.bias))
    return core


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(name, core, inputs, first, state):
    """Outputs and last state, one env and one row after the other, in float64."""
    to_gates, recurrent, bias = (
        weight.detach().double().numpy() for weight in (core.input_weight, core.state_weight, core.bias)
    )
    outputs = np.zeros((*first.shape, UNITS))
    state = [part.detach().double().numpy().copy() for part in state]
    for row, env in product(*map(range, first.shape)):
        if first[row, env]:
            for part in state:
                part[env] = 0
        given = np.split(to_gates @ inputs[row, env].detach().double().numpy() + bias, len(bias) // UNITS)
        hidden = state[0][env]
        own = np.split(recurrent @ hidden, len(bias) // UNITS)
        if name == "lstm":
            entry, keep, candidate, out = (a + b for a, b in zip(given, own, strict=True))
            state[1][env] = sigmoid(keep) * state[1][env] + sigmoid(entry) * np.tanh(candidate)
            state[0][env] = sigmoid(out) * np.tanh(state[1][env])
        else:
            reset, keep = sigmoid(given[0] + own[0]), sigmoid(given[1] + own[1])
            state[0][env] = (1 - keep) * np.tanh(given[2] + reset * own[2]) + keep * hidden
        outputs[row, env] = state[0][env]
    return outputs, state


def torch_cells(name, core, inputs, first, state):
    """The same with torch's own cells, to differentiate."""
    weights = (core.input_weight, core.state_weight, core.bias, torch.zeros_like(core.bias))
    outputs = []
    for row, ended in zip(inputs, first, strict=True):
        state = tuple(torch.where(ended[:, None], torch.zeros_like(part), part) for part in state)
        lstm = name == "lstm"
        state = torch.lstm_cell(row, state, *weights) if lstm else (torch.gru_cell(row, state[0], *weights),)
        outputs.append(state[0])
    return torch.stack(outputs), state


def drawn(rows, batch, states, seed, inputs=INPUTS, units=UNITS):
    generator = torch.Generator().manual_seed(seed)
    state = tuple(torch.randn(batch, units, generator=generator).requires_grad_() for _ in range(states))
    return torch.randn(rows, batch, inputs, generator=generator).requires_grad_(), state


patterns = st.integers(1, 9).flatmap(
    lambda rows: st.integers(1, 4).flatmap(
        lambda batch: st.lists(
            st.lists(st.sampled_from([False, False, False, True]), min_size=batch, max_size=batch),
            min_size=rows,
            max_size=rows,
        )
    )
)


@pytest.mark.parametrize("name", GATED)
@settings(max_examples=60, deadline=None)
@given(pattern=patterns, seed=st.integers(0, 99))
def test_outputs_states_and_gradients_are_those_of_single_cells(name, pattern, seed):
    core, first = make(name, seed=seed), torch.tensor(pattern)
    inputs, state = drawn(*first.shape, core._cell.states, seed)
    outputs, after = core(inputs, first, state)
    wanted, wanted_after = by_hand(name, core, inputs, first, state)
    for found, expected in zip([outputs, *after], [wanted, *wanted_after], strict=True):
        np.testing.assert_allclose(found.detach(), expected, atol=1e-5)

    def gradients(outputs, after):
        weight = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
        score = (weight * outputs).sum() + sum((part * part).sum() for part in after)
        return torch.autograd.grad(score, [inputs, *state, *core.parameters()])

    found, expected = gradients(outputs, after), gradients(*torch_cells(name, core, inputs, first, state))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not any(gradient[first[0]].any() for gradient in found[1 : 1 + len(state)])  # nothing passes a reset


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize(("ends", "calls"), [([], 1), ([(0, 0)], 1), ([(7, 1)], 2), ([(7, 1), (7, 0), (2, 1)], 3)])
def test_few_ends_cost_few_calls(monkeypatch, name, ends, calls):
    core, first = make(name), torch.zeros(2 * ROWS_PER_RESET, 2, dtype=torch.bool)
    for end in ends:
        first[end] = True
    inputs, state = drawn(*first.shape, core._cell.states, 0)
    fused, count = getattr(torch, name), []
    monkeypatch.setattr(torch, name, lambda *data: count.append(1) or fused(*data))
    core(inputs, first, state)
    assert len(count) == calls
    first[[1, 4, 8], 0] = True
    core(inputs, first, state)
    core(inputs[:1], first[:1], state)
    assert len(count) == calls  # many ends, and single rows, go cell by cell


@pytest.mark.parametrize("name", GATED)
def test_weights_start_as_published(name):
    inputs, units, gates = 60, 80, {"lstm": 4, "gru": 3}[name]
    core = make_core(name, inputs, units, torch.Generator().manual_seed(0))
    bound = math.sqrt(6 / (inputs + units + gates * units))
    for weight in (core.input_weight, core.state_weight):
        assert 0.99 * bound < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    wanted = torch.zeros(gates, units)
    if name == "lstm":
        wanted[1] = 1.0
    assert torch.equal(core.bias, wanted.flatten())
    assert sum(weight.numel() for weight in core.parameters()) == gates * units * (inputs + units + 1)


@pytest.mark.parametrize("name", GATED)
def test_the_state_of_a_beginning_is_zero_and_nothing_stays_in_the_module(name):
    core = make(name)
    state = core.initial_state(5)
    assert [part.shape for part in state] == [(5, UNITS)] * {"lstm": 2, "gru": 1}[name]
    assert not any(part.any() for part in state)
    kept = {key: value.clone() for key, value in core.state_dict().items()}
    inputs, state = drawn(6, 5, core._cell.states, 0)
    once, twice = (core(inputs, torch.zeros(6, 5, dtype=torch.bool), state)[0] for _ in range(2))
    assert torch.equal(once, twice) and core.size == UNITS
    assert set(kept) == {"input_weight", "state_weight", "bias"}
    assert all(torch.equal(value, kept[key]) for key, value in core.state_dict().items())


@pytest.mark.parametrize("name", GATED)
def test_what_is_compiled_is_the_same_in_one_graph(name):
    core, first = make(name), torch.zeros(6, 2, dtype=torch.bool)
    first[3, 1] = True
    inputs, state = drawn(6, 2, core._cell.states, 0)
    torch._dynamo.reset()
    compiled = torch.compile(core, backend="eager", fullgraph=True)
    outputs, after = compiled(inputs, first, state)
    wanted, wanted_after = core(inputs, first, state)
    torch.testing.assert_close((outputs, after), (wanted, wanted_after))


def test_without_a_core_nothing_is_carried():
    core = make_core("none", 2, 9, torch.Generator())
    inputs = torch.ones(3, 2)
    assert isinstance(core, NoCore) and core.size == 2
    assert core.initial_state(2) == () and core(inputs, torch.zeros(3), ()) == (inputs, ())


def test_the_counting_core_counts_and_resets_before_the_row():
    core = make_core("counting", 4, 9, torch.Generator())
    assert isinstance(core, CountingCore) and not isinstance(core, GatedCore)
    state = core.initial_state(2)
    assert state.tolist() == [0, 0] and core.size == 4
    first = torch.tensor([[True, False], [False, False], [False, True]])
    outputs, state = core(torch.zeros(3, 2, 4), first, torch.tensor([9, 5]))
    assert state.tolist() == [3, 1] and outputs.shape == (3, 2, 4)
    _, once = core(torch.zeros(1, 2, 4), first[:1], torch.tensor([9, 5]))
    assert once.tolist() == [1, 6]
