"""Adam and clipping against torch's own, RMSProp against TensorFlow's formula."""

import math

import pytest
import torch

from pronghorn.learning.optimisers import OPTIMISERS, adam, adam_state, clip_by_global_norm, rmsprop, rmsprop_state


@pytest.mark.parametrize(
    "options", [{}, {"beta1": 0.0, "beta2": 0.99, "epsilon": 1e-3}, {"beta1": 0.5, "epsilon": 1e-8}]
)
def test_adam_is_torchs(options):
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(50, generator=generator)
    theirs = torch.nn.Parameter(parameters.clone())
    betas = options.get("beta1", 0.9), options.get("beta2", 0.999)
    reference = torch.optim.Adam([theirs], betas=betas, eps=options.get("epsilon", 1e-5))
    state = adam_state(parameters)
    for step in range(200):
        rate = 1e-2 * (1 - step / 200)
        gradient = torch.randn(50, generator=generator) * 10.0 ** torch.arange(-25, 25).div(10)
        parameters, state = adam(parameters, gradient, state, torch.tensor(rate), **options)
        theirs.grad = gradient.clone()
        reference.param_groups[0]["lr"] = rate
        reference.step()
        torch.testing.assert_close(parameters, theirs.detach(), rtol=1e-6, atol=1e-6)
    assert state["t"].item() == 200 and state["t"].dtype == torch.float32 and state["t"].shape == ()
    assert parameters.dtype == state["m"].dtype == state["v"].dtype == torch.float32


def test_the_first_step_is_the_rate_in_the_direction_of_the_sign():
    parameters = torch.zeros(3)
    new, _ = adam(parameters, torch.tensor([2.0, -300.0, 0.0]), adam_state(parameters), torch.tensor(0.5), epsilon=0.0)
    torch.testing.assert_close(new[:2], torch.tensor([-0.5, 0.5]))


@pytest.mark.parametrize("options", [{}, {"decay": 0.9, "epsilon": 1e-5}, {"epsilon": 0.01}])
def test_rmsprop_is_tensorflows(options):
    # ApplyRMSProp with momentum 0: ms += (g² − ms)(1 − rho); var −= lr g / sqrt(ms + epsilon); ms starts at ones.
    decay, epsilon = options.get("decay", 0.99), options.get("epsilon", 0.1)
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(50, generator=generator)
    state = rmsprop_state(parameters)
    expected, squares = parameters.double().tolist(), [1.0] * 50
    for step in range(200):
        rate = 1e-2 * (1 - step / 200)
        gradient = torch.randn(50, generator=generator) * 10.0 ** torch.arange(-25, 25).div(10)
        parameters, state = rmsprop(parameters, gradient, state, torch.tensor(rate), **options)
        for i, g in enumerate(gradient.tolist()):
            squares[i] += (g * g - squares[i]) * (1 - decay)
            expected[i] -= rate * g / math.sqrt(squares[i] + epsilon)
    torch.testing.assert_close(parameters, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state["v"], torch.tensor(squares), rtol=1e-5, atol=0)
    assert parameters.dtype == state["v"].dtype == torch.float32


def test_rmsprop_differs_from_torchs_in_epsilon_and_start():
    gradient = torch.full((1,), 1e-3)
    new, _ = rmsprop(torch.zeros(1), gradient, rmsprop_state(gradient), torch.tensor(1.0), epsilon=0.01)
    assert new.item() == pytest.approx(-1e-3 / math.sqrt(0.99 + 0.01), rel=1e-4)
    theirs = torch.nn.Parameter(torch.zeros(1))
    theirs.grad = gradient
    torch.optim.RMSprop([theirs], lr=1.0, alpha=0.99, eps=0.01).step()
    assert theirs.item() == pytest.approx(-1e-3 / (1e-4 + 0.01), rel=1e-4)  # a hundred times as far


@pytest.mark.parametrize("name", OPTIMISERS)
def test_nothing_changes_in_place(name):
    start, step = OPTIMISERS[name]
    parameters, gradient = torch.ones(4), torch.full((4,), 2.0)
    state = start(parameters)
    new, new_state = step(parameters, gradient, state, torch.tensor(0.1), epsilon=0.1)
    assert torch.equal(parameters, torch.ones(4)) and torch.equal(gradient, torch.full((4,), 2.0))
    assert all(torch.equal(value, start(parameters)[key]) for key, value in state.items())
    assert new_state.keys() == state.keys() and (new < 1).all()


def test_clipping_is_by_the_norm_of_all():
    gradient = torch.tensor([3.0, 4.0])
    clipped, norm = clip_by_global_norm(gradient, 1.0)
    torch.testing.assert_close(clipped, torch.tensor([0.6, 0.8]))
    assert norm.item() == 5.0
    for limit in (5.0, 6.0, None):
        clipped, norm = clip_by_global_norm(gradient, limit)
        assert torch.equal(clipped, gradient) and norm.item() == 5.0
    assert clip_by_global_norm(torch.zeros(2), 0.5)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_step_compiles_to_one_graph(name):
    start, optimise = OPTIMISERS[name]

    def step(parameters, gradient, state, rate):
        clipped, norm = clip_by_global_norm(gradient, 0.5)
        return *optimise(parameters, clipped, state, rate, epsilon=0.01), norm

    parameters = torch.randn(10)
    inputs = parameters, torch.randn(10), start(parameters), torch.tensor(0.1)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), step(*inputs))
