"""The recursion against a loop."""

import pytest
import torch

from pronghorn.ops.scan import linear_recurrence


def loop(k, d, initial):
    rows, x = [], initial
    for t in reversed(range(len(d))):
        x = d[t] + k[t] * x
        rows.append(x)
    return torch.stack(rows[::-1])


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 100])
def test_integers_come_out_exactly(steps):
    generator = torch.Generator().manual_seed(steps)
    k = torch.randint(-1, 2, (steps, 3, 2), generator=generator).double()
    d = torch.randint(-9, 10, (steps, 3, 2), generator=generator).double()
    initial = torch.randint(-9, 10, (3, 2), generator=generator).double()
    assert torch.equal(linear_recurrence(k, d, initial), loop(k, d, initial))


def test_without_batch_dimension_and_with_zeros_that_cut():
    k = torch.tensor([2.0, 0.0, 3.0])
    d = torch.tensor([1.0, 10.0, 100.0])
    assert linear_recurrence(k, d, torch.tensor(5.0)).tolist() == [21.0, 10.0, 115.0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-1)])
def test_float_dtypes_are_kept(dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    k, d = torch.rand(50, 4, generator=generator) * 0.9, torch.randn(50, 4, generator=generator)
    initial = torch.randn(4, generator=generator)
    x = linear_recurrence(k.to(dtype), d.to(dtype), initial.to(dtype))
    assert x.dtype == dtype
    torch.testing.assert_close(
        x.double(), loop(k.double(), d.double(), initial.double()), rtol=tolerance, atol=tolerance
    )


def test_long_unrolls_keep_float32_accuracy():
    generator = torch.Generator().manual_seed(0)
    k, d = torch.full((1000, 8), 0.99 * 0.95), torch.randn(1000, 8, generator=generator)
    expected = loop(k.double(), d.double(), torch.zeros(8).double())
    torch.testing.assert_close(linear_recurrence(k, d, torch.zeros(8)).double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_gradients(steps):
    generator = torch.Generator().manual_seed(steps)
    inputs = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in [(steps, 2), (steps, 2), (2,)]]
    assert torch.autograd.gradcheck(linear_recurrence, [x.requires_grad_() for x in inputs])


def test_compiles_to_one_graph_of_logarithmic_size():
    counted = []

    def backend(graph, inputs):
        counted.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph

    compiled = torch.compile(linear_recurrence, fullgraph=True, backend=backend)
    k, d, initial = torch.rand(64, 2), torch.rand(64, 2), torch.rand(2)
    torch.testing.assert_close(compiled(k, d, initial), loop(k, d, initial))
    assert len(counted) == 1 and counted[0] < 100
