"""Distributions of actions against torch.distributions, over every kind of space."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as reference

from pronghorn import tree
from pronghorn.ops.distributions import ActionDistribution
from pronghorn.types import Leaf, UserError


def box(*shape, dtype=np.float32):
    return Leaf("box", shape, np.dtype(dtype), np.full(shape, -np.inf), np.full(shape, np.inf))


def discrete(n):
    return Leaf("discrete", (), np.dtype(np.int64), categories=(n,))


def multi(shape, *categories):
    return Leaf("multi_discrete", shape, np.dtype(np.int64), categories=categories)


def binary(*shape):
    return Leaf("multi_binary", shape, np.dtype(np.int8), categories=(2,) * math.prod(shape))


SPECS = {
    "gaussian": box(3),
    "gaussian_scalar": box(),
    "gaussian_matrix": box(2, 3, dtype=np.float64),
    "discrete": discrete(5),
    "multi_discrete": multi((4,), 3, 3, 2, 5),
    "multi_discrete_matrix": multi((2, 2), 3, 2, 2, 3),
    "multi_binary": binary(2, 3),
    "mixed": {"move": box(2), "arm": (discrete(5), [box(2, 2), multi((3,), 2, 2, 6)]), "keys": binary(3)},
}


def setup(spec, lead=(7, 3), seed=0):
    distribution = ActionDistribution(spec)
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.randn(*lead, distribution.parameter_size, generator=generator)
    noise = torch.from_numpy(distribution.draw_noise(np.random.default_rng(seed), lead))
    return distribution, parameters, noise


def references(spec, parameters):
    """(distribution, entries) per entry-wise torch distribution, leaf by leaf in the documented layout."""
    at = 0
    for leaf in tree.leaves(spec):
        made = []
        if leaf.kind == "box":
            mean, log_std = parameters[..., at : at + leaf.size], parameters[..., at + leaf.size : at + 2 * leaf.size]
            at += 2 * leaf.size
            made.append(reference.Independent(reference.Normal(mean, log_std.exp()), 1))
        else:
            for n in leaf.categories:
                made.append(reference.Categorical(logits=parameters[..., at : at + n]))
                at += n
        yield leaf, made
    assert at == parameters.shape[-1]


def flat(leaf, value):
    return value.reshape(*value.shape[: value.dim() - len(leaf.shape)], -1)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_agrees_with_torch(spec):
    distribution, parameters, noise = setup(spec)
    other = setup(spec, seed=1)[1]
    action = distribution.sample(parameters, noise)
    log_prob, entropy, kl = torch.zeros(7, 3), torch.zeros(7, 3), torch.zeros(7, 3)
    pairs = zip(references(spec, parameters), references(spec, other), tree.leaves(action), strict=True)
    for (leaf, made), (_, made_other), value in pairs:
        for index, (here, there) in enumerate(zip(made, made_other, strict=True)):
            log_prob += here.log_prob(flat(leaf, value) if leaf.kind == "box" else flat(leaf, value)[..., index])
            entropy += here.entropy()
            kl += reference.kl_divergence(here, there)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(distribution.log_prob(parameters, action), log_prob, **close)
    torch.testing.assert_close(distribution.entropy(parameters), entropy, **close)
    torch.testing.assert_close(distribution.kl(parameters, other), kl, **close)
    torch.testing.assert_close(distribution.kl(parameters, parameters), torch.zeros(7, 3), **close)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("lead", [(), (1,), (7, 3)])
def test_actions_have_the_structure_shapes_and_dtypes_of_the_row(spec, lead):
    distribution, parameters, noise = setup(spec, lead)
    for action in (distribution.sample(parameters, noise), distribution.mode(parameters)):
        assert tree.named(action).keys() == tree.named(spec).keys()
        for leaf, value in zip(tree.leaves(spec), tree.leaves(action), strict=True):
            assert value.shape == (*lead, *leaf.shape)
            assert value.dtype == (torch.float32 if leaf.kind == "box" else torch.int64)
        assert distribution.log_prob(parameters, action).shape == lead
        assert distribution.entropy(parameters).shape == lead


def test_layout():
    distribution = ActionDistribution(SPECS["mixed"])
    described = [(part.path, part.kind, part.size, part.categories) for part in distribution.parts]
    assert described == [
        ("arm/0", "categorical", 1, 5),
        ("arm/1/0", "gaussian", 4, 0),
        ("arm/1/1", "categorical", 2, 2),
        ("arm/1/1", "categorical", 1, 6),
        ("keys", "categorical", 3, 2),
        ("move", "gaussian", 2, 0),
    ]
    assert distribution.parameter_size == 5 + 8 + 4 + 6 + 6 + 4
    assert distribution.noise_size == 5 + 4 + 4 + 6 + 6 + 2
    assert (distribution.mean_size, distribution.logit_size) == (6, 21)
    for slices, end in (
        ([part.parameters for part in distribution.parts], distribution.parameter_size),
        ([part.noise for part in distribution.parts], distribution.noise_size),
    ):
        edges = [0, *(where.stop for where in slices)]
        assert [where.start for where in slices] == edges[:-1] and edges[-1] == end


def test_known_samples_and_modes():
    gaussian = ActionDistribution(box(2))
    parameters = torch.tensor([1.0, -1.0, 0.0, math.log(2.0)])
    assert gaussian.sample(parameters, torch.tensor([3.0, 0.5])).tolist() == [4.0, 0.0]
    assert gaussian.mode(parameters).tolist() == [1.0, -1.0]
    categorical = ActionDistribution(multi((3,), 2, 2, 3))
    logits = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 5.0])
    assert categorical.mode(logits).tolist() == [1, 0, 2]
    assert categorical.sample(logits, torch.tensor([2.0, 0.0, 0.0, 2.0, 6.0, 0.0, 0.0])).tolist() == [0, 1, 0]


def test_join_puts_what_heads_compute_in_the_order_of_parts():
    distribution = ActionDistribution(SPECS["mixed"])
    means, log_std = torch.arange(6.0).expand(2, 6), torch.arange(10.0, 16.0)
    logits = torch.arange(100.0, 121.0).expand(2, 21)
    joined = distribution.join(means, logits, log_std)
    assert joined.shape == (2, distribution.parameter_size)
    arm = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]
    assert joined[1].tolist() == [*range(100, 105), *arm, *range(105, 121), 4.0, 5.0, 14.0, 15.0]
    nothing = torch.zeros(2, 0)
    assert ActionDistribution(box(6)).join(means, nothing, log_std)[0].tolist() == [*range(6), *range(10, 16)]
    assert ActionDistribution(discrete(21)).join(nothing, logits, torch.zeros(0)) is logits


def test_sampling_frequencies_are_the_probabilities():
    distribution = ActionDistribution(discrete(4))
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    noise = torch.from_numpy(distribution.draw_noise(np.random.default_rng(0), (200_000,)))
    action = distribution.sample(probabilities.log().expand(200_000, 4), noise)
    torch.testing.assert_close(action.bincount() / 200_000, probabilities, rtol=0, atol=0.005)


def test_noise_is_standard_finite_float32_and_follows_the_generator():
    distribution = ActionDistribution({"a": box(2), "b": discrete(3)})
    noise = distribution.draw_noise(np.random.default_rng(0), (100, 1000))
    assert noise.shape == (100, 1000, 5) and noise.dtype == np.float32 and np.isfinite(noise).all()
    normal, gumbel = noise[..., :2], noise[..., 2:]
    np.testing.assert_allclose([normal.mean(), normal.std()], [0, 1], atol=0.01)
    np.testing.assert_allclose([gumbel.mean(), gumbel.std()], [np.euler_gamma, np.pi / np.sqrt(6)], atol=0.01)
    assert np.array_equal(noise, distribution.draw_noise(np.random.default_rng(0), (100, 1000)))
    assert not np.array_equal(noise, distribution.draw_noise(np.random.default_rng(1), (100, 1000)))


def test_null_parameters_are_uniform_and_standard_normal():
    distribution = ActionDistribution({"a": box(2), "b": discrete(3)})
    null = distribution.null_parameters()
    assert null.shape == (7,) and null.dtype == torch.float32
    action = {"a": torch.zeros(2), "b": torch.tensor(2)}
    assert distribution.log_prob(null, action).item() == pytest.approx(-math.log(2 * math.pi) - math.log(3))


def test_one_legal_action_of_seven_hundred():
    distribution, logits, noise = setup(discrete(700), (50,))
    logits.requires_grad_()
    legal = torch.zeros(50, 700, dtype=torch.int8)
    legal[:, 123] = 1
    masked = distribution.mask(logits, legal)
    assert (distribution.sample(masked, noise) == 123).all() and (distribution.mode(masked) == 123).all()
    log_prob, entropy = distribution.log_prob(masked, torch.full((50,), 123)), distribution.entropy(masked)
    kl = distribution.kl(masked, distribution.mask(setup(discrete(700), (50,), seed=1)[1], legal))
    for exactly_zero in (log_prob, entropy, kl):
        assert torch.equal(exactly_zero.detach(), torch.zeros(50))
    illegal = distribution.log_prob(masked, torch.full((50,), 5))
    assert torch.isfinite(illegal).all() and (illegal < -1e8).all()
    (log_prob + entropy + kl).sum().backward()
    assert torch.equal(logits.grad, torch.zeros(50, 700))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["discrete", "multi_discrete_matrix", "multi_binary", "mixed"]))
def test_a_mask_acts_like_a_smaller_space(seed, name):
    distribution, parameters, noise = setup(SPECS[name], (4,), seed)
    parameters.requires_grad_()
    rng = np.random.default_rng(seed)
    mask = torch.from_numpy(rng.random((4, distribution.logit_size)) < 0.5)
    at, blocks, illegal = 0, [], torch.zeros(4, distribution.parameter_size, dtype=torch.bool)
    for part in distribution.parts:
        for entry in range(part.size if part.kind == "categorical" else 0):
            mask[:, at + int(rng.integers(part.categories))] = True
            start = part.parameters.start + entry * part.categories
            blocks.append((slice(start, start + part.categories), slice(at, at + part.categories)))
            illegal[:, blocks[-1][0]] = ~mask[:, blocks[-1][1]]
            at += part.categories
    masked = distribution.mask(parameters, mask)
    gaussian = sum(
        (
            masked[:, part.parameters][:, part.size :].sum(-1) + part.size * (0.5 + 0.5 * math.log(2 * math.pi))
            for part in distribution.parts
            if part.kind == "gaussian"
        ),
        torch.zeros(4),
    )
    expected = gaussian.detach().clone()
    for row in range(4):
        for where, allowed in blocks:
            kept = parameters.detach()[row, where][mask[row, allowed]]
            expected[row] += reference.Categorical(logits=kept).entropy()
    entropy = distribution.entropy(masked)
    torch.testing.assert_close(entropy.detach(), expected, rtol=1e-5, atol=1e-5)
    log_prob = distribution.log_prob(masked, distribution.sample(masked, noise))
    assert (log_prob > -1e3).all()
    (entropy.sum() + log_prob.sum()).backward()
    assert torch.isfinite(parameters.grad).all() and not parameters.grad[illegal].any()
    assert torch.equal(masked[~illegal], parameters[~illegal])


@pytest.mark.parametrize("name", ["gaussian_matrix", "multi_discrete", "mixed"])
def test_gradients(name):
    distribution, parameters, noise = setup(SPECS[name], (2,))
    action = distribution.sample(parameters, noise)
    action = tree.map(lambda value: value.double() if value.is_floating_point() else value, action)
    inputs = [parameters.double().requires_grad_(), setup(SPECS[name], (2,), 1)[1].double().requires_grad_()]

    def everything(old, new):
        return distribution.log_prob(old, action), distribution.entropy(old), distribution.kl(old, new)

    assert torch.autograd.gradcheck(everything, inputs)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(SPECS)))
def test_kl_is_not_negative_and_entropy_is_the_mean_surprise(seed, name):
    distribution, parameters, _ = setup(SPECS[name], (), seed)
    other = setup(SPECS[name], (), seed + 1)[1]
    assert distribution.kl(parameters, other) >= 0
    n = 4000
    noise = torch.from_numpy(distribution.draw_noise(np.random.default_rng(seed), (n,)))
    many = parameters.expand(n, -1)
    surprise = -distribution.log_prob(many, distribution.sample(many, noise))
    error = abs(surprise.mean() - distribution.entropy(parameters)).item()
    assert error < 6 * surprise.std().item() / math.sqrt(n) + 1e-4


def test_spaces_without_a_distribution_are_refused_by_name():
    with pytest.raises(UserError, match="arm/grip"):
        ActionDistribution({"arm": {"grip": box(2, dtype=np.int32)}})
    with pytest.raises(UserError, match="empty"):
        ActionDistribution(())


@pytest.mark.parametrize("name", ["gaussian", "discrete", "mixed"])
def test_compiles_to_one_graph(name):
    distribution, parameters, noise = setup(SPECS[name], (4,))

    def act_and_learn(parameters, noise, mask):
        parameters = distribution.mask(parameters, mask)
        action = distribution.sample(parameters, noise)
        mode_log_prob = distribution.log_prob(parameters, distribution.mode(parameters))
        kl = distribution.kl(parameters, parameters * 1.5)
        return action, distribution.log_prob(parameters, action), mode_log_prob, distribution.entropy(parameters), kl

    mask = torch.ones(4, distribution.logit_size)
    compiled = torch.compile(act_and_learn, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(parameters, noise, mask), act_and_learn(parameters, noise, mask))


@pytest.mark.parametrize(("name", "limit"), [("gaussian", 8), ("discrete", 6)])
def test_acting_takes_few_kernels(name, limit):
    distribution, parameters, noise = setup(SPECS[name], (16,))
    called = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(function)
            return function(*args, **(kwargs or {}))

    with Count():
        distribution.log_prob(parameters, distribution.sample(parameters, noise))
    computing = [f for f in called if not f.is_view]
    assert len(computing) <= limit, computing
