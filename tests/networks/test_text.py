"""The encoder of instructions against a loop over words, and what must not change its answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pronghorn.config import NetworkConfig
from pronghorn.envs.text import BUCKETS, WORDS, text_leaf, word_numbers
from pronghorn.networks.agent import Agent
from pronghorn.networks.text import EMBEDDED, UNITS, TextEncoder
from pronghorn.types import EnvSpec, Leaf

TEXTS = ["go", "go to the red door", "to go", "a " * 100, ""]


def make(seed=0):
    encoder = TextEncoder(torch.Generator().manual_seed(seed))
    with torch.no_grad():  # far from the start, where all is small
        encoder.embedding *= 20
        encoder.core.bias += torch.linspace(-0.5, 0.5, 4 * UNITS)
    return encoder


def numbers(*texts):
    return torch.from_numpy(np.stack([word_numbers(text) for text in texts]))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(encoder, text):
    """One word after the other, in float64; the words from the string, not from its numbers."""
    embedding, to_gates, recurrent, bias = (
        weight.detach().double().numpy()
        for weight in (encoder.embedding, encoder.core.input_weight, encoder.core.state_weight, encoder.core.bias)
    )
    hidden = cell = np.zeros(UNITS)
    for word in text.split()[:WORDS]:
        row = embedding[int(word_numbers(word)[0]) - 1]
        entry, keep, candidate, out = np.split(to_gates @ row + recurrent @ hidden + bias, 4)
        cell = sigmoid(keep) * cell + sigmoid(entry) * np.tanh(candidate)
        hidden = sigmoid(out) * np.tanh(cell)
    return hidden


def test_it_reads_one_word_after_the_other():
    encoder = make()
    expected = np.stack([by_hand(encoder, text) for text in TEXTS])
    np.testing.assert_allclose(encoder(numbers(*TEXTS)).detach(), expected, atol=1e-6)
    assert np.abs(expected[:4]).max(axis=1).min() > 0.1
    assert np.abs(expected[0] - expected[2]).max() > 0.1  # the order of words counts


@pytest.mark.parametrize("leading", [(), (5,), (3, 5)])
def test_texts_stand_for_themselves_whatever_the_batch(leading):
    """Each is read once, from a fresh state, however often it stands there, and padding is not read."""
    encoder = make()
    which = torch.from_numpy(np.random.default_rng(0).integers(0, len(TEXTS), leading))
    alone = torch.stack([encoder(numbers(text))[0] for text in TEXTS])
    found = encoder(numbers(*TEXTS)[which])
    assert found.shape == (*leading, UNITS) and found.dtype == torch.float32
    torch.testing.assert_close(found, alone[which])
    every_word = encoder._read(numbers(*TEXTS).to(torch.int64))  # what a compiler sees
    torch.testing.assert_close(every_word, alone)


def test_no_words_are_zeros():
    encoder = make()
    assert not encoder(numbers("", " ")).any()
    assert not encoder(numbers("go", ""))[1].any()


def test_the_gradient_reaches_the_words_that_were_read_and_no_others():
    encoder = make()
    words = numbers("go left", "go right", "")
    encoder(words).square().sum().backward()
    read = {int(word) - 1 for word in words.flatten() if word}
    assert set(encoder.embedding.grad.any(1).nonzero().flatten().tolist()) == read and len(read) == 3
    assert all(parameter.grad.any() for parameter in encoder.parameters())
    gradient = encoder.embedding.grad.clone()
    encoder.zero_grad()
    sum(encoder(words[[row]]).square().sum() for row in (0, 1)).backward()
    torch.testing.assert_close(encoder.embedding.grad, gradient)
    encoder.zero_grad()
    encoder(words[[0, 0, 1, 1, 1, 2]]).square().sum().backward()  # a text counts as often as it stands there
    twice = encoder.embedding.grad[int(word_numbers("left")[0]) - 1]
    torch.testing.assert_close(twice, 2 * gradient[int(word_numbers("left")[0]) - 1])


def test_weights_start_as_impalas():
    encoder, same, other = (TextEncoder(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(encoder.embedding, same.embedding) and not torch.equal(encoder.embedding, other.embedding)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 1000 * 20 + 4 * 64 * (20 + 64 + 1)
    sigma = 1 / np.sqrt(BUCKETS)
    assert encoder.embedding.shape == (BUCKETS, EMBEDDED) and 1.9 * sigma < encoder.embedding.abs().max() <= 2 * sigma
    assert float(encoder.embedding.detach().std()) == pytest.approx(0.88 * sigma, rel=0.02)  # the tails are cut
    assert torch.equal(encoder.core.bias[UNITS : 2 * UNITS], torch.ones(UNITS)) and encoder.core.bias.sum() == UNITS


def test_the_whole_network_for_dmlab_has_as_many_weights_as_the_published_one():
    shape = (72, 96, 3)
    image = Leaf("box", shape, np.dtype(np.uint8), np.zeros(shape), np.full(shape, 255.0))
    spec = EnvSpec(
        "room",
        {"picture": image, "instruction": text_leaf()},
        Leaf("discrete", (), np.dtype(np.int64), categories=(9,)),
    )
    options = {"image_encoder": "deep", "core": "lstm", "last_action_and_reward": True, "layers": (), "init": "lecun"}
    agent = Agent(spec, NetworkConfig(**options), 0)
    assert sum(parameter.numel() for parameter in agent.parameters()) == 1_628_010
