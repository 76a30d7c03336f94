"""Adam and clipping against torch's own."""

import pytest
import torch

from pronghorn.learning.optimisers import adam, adam_state, clip_by_global_norm


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


def test_nothing_changes_in_place():
    parameters, gradient = torch.ones(4), torch.full((4,), 2.0)
    state = adam_state(parameters)
    adam(parameters, gradient, state, torch.tensor(0.1))
    assert torch.equal(parameters, torch.ones(4)) and torch.equal(gradient, torch.full((4,), 2.0))
    assert not any(value.any() for value in state.values())


def test_clipping_is_by_the_norm_of_all():
    gradient = torch.tensor([3.0, 4.0])
    clipped, norm = clip_by_global_norm(gradient, 1.0)
    torch.testing.assert_close(clipped, torch.tensor([0.6, 0.8]))
    assert norm.item() == 5.0
    for limit in (5.0, 6.0, None):
        clipped, norm = clip_by_global_norm(gradient, limit)
        assert torch.equal(clipped, gradient) and norm.item() == 5.0
    assert clip_by_global_norm(torch.zeros(2), 0.5)[0].tolist() == [0.0, 0.0]


def test_a_step_compiles_to_one_graph():
    def step(parameters, gradient, state, rate):
        clipped, norm = clip_by_global_norm(gradient, 0.5)
        return *adam(parameters, clipped, state, rate), norm

    parameters = torch.randn(10)
    inputs = parameters, torch.randn(10), adam_state(parameters), torch.tensor(0.1)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), step(*inputs))
