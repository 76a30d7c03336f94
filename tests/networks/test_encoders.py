"""What leaves are taken for, and images among other leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pronghorn.config import NetworkConfig
from pronghorn.envs.text import text_leaf, word_numbers
from pronghorn.networks.encoders import Encoder, image_layout, sees_images, sees_texts
from pronghorn.ops.running import batch_moments
from pronghorn.types import ACTION_MASK, Leaf, UserError


def box(shape, dtype=np.uint8):
    return Leaf("box", shape, np.dtype(dtype), np.zeros(shape), np.full(shape, 255.0))


MASK = Leaf("multi_binary", (4,), np.dtype(np.int8), categories=(2,) * 4)
ROOM = Leaf("discrete", (), np.dtype(np.int64), categories=(3,))


def make(observation, **options):
    config = NetworkConfig(**{"image_encoder": "shallow", **options})
    return Encoder(observation, config, torch.Generator().manual_seed(0))


def pixels(*shape):
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, shape, np.uint8))


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4, 84, 84), ((4, 84, 84), "first")),
        ((1, 30, 20), ((1, 30, 20), "first")),
        ((210, 160, 3), ((3, 210, 160), "last")),
        ((20, 30, 12), ((12, 20, 30), "last")),
        ((30, 20), ((1, 30, 20), "none")),
    ],
)
def test_the_layout_of_an_image(shape, layout):
    found = image_layout(box(shape), "o")
    assert found == layout
    image = pixels(2, 5, *shape)
    channels_first = found.channels_first(image)
    assert channels_first.shape == (2, 5, *found.shape) and channels_first.data_ptr() == image.data_ptr()
    at = {"first": (0, 3, 4), "last": (3, 4, 0), "none": (3, 4)}[found.channels]
    assert channels_first[1, 2, 0, 3, 4] == image[(1, 2, *at)]


@pytest.mark.parametrize("shape", [(32, 32, 32), (4, 84, 4), (4, 4, 84), (84, 64, 80), (2, 4, 84, 84)])
def test_an_unclear_layout_is_named(shape):
    with pytest.raises(UserError, match=r"^observation/eyes/left \(box .* uint8 .* shape it \[channels, height"):
        make({"eyes": {"left": box(shape)}})


def test_layouts_of_one_picture_have_the_same_features():
    image = pixels(2, 20, 24)
    first, last = make(box((2, 20, 24))), make(box((20, 24, 2)))
    torch.testing.assert_close(first(image), last(image.permute(1, 2, 0)))
    flat, one = make(box((20, 24))), make(box((1, 20, 24)))
    torch.testing.assert_close(flat(image[0]), one(image[:1]))


def test_what_is_an_image():
    assert sees_images({"x": box((3,)), "camera": box((20, 20))})
    assert not sees_images({"x": box((3,)), "heat": box((20, 20), np.float32), ACTION_MASK: box((2, 2))})
    plain = make({"x": box((3,)), "heat": box((20, 20), np.float32)})
    assert plain.size == plain.vector_size == 403 and not list(plain.parameters())


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_images_come_after_a_layer_of_numbers_and_discrete_values_and_are_never_normalised(leading):
    encoder = make({ACTION_MASK: MASK, "camera": box((3, 20, 20)), "room": ROOM, "speed": box((2,), np.float32)})
    assert (encoder.vector_size, encoder.size) == (2, 256 + 256) and len(encoder.images) == 1
    observation = {
        ACTION_MASK: torch.ones(*leading, 4, dtype=torch.int8),
        "camera": pixels(*leading, 3, 20, 20),
        "room": torch.full(leading, 1),
        "speed": torch.tensor([3.0, -5.0]).expand(*leading, 2),
    }
    before = encoder(observation)
    layer = encoder.numbers.layers[0]

    def beside(*numbers):
        """By hand."""
        return torch.relu(layer.weight @ torch.tensor(numbers) + layer.bias).expand(*leading, 256)

    assert before.shape == (*leading, 512)
    torch.testing.assert_close(before[..., :256], beside(3.0, -5.0, 0.0, 1.0, 0.0))
    torch.testing.assert_close(before[..., 256:], encoder.images[0](observation["camera"]))
    seen = torch.tensor([[1.0, -5.0], [3.0, -7.0]])
    encoder.normaliser.update(batch_moments(seen, torch.ones(2, dtype=torch.bool)))
    after = encoder(observation)
    torch.testing.assert_close(after[..., :256], beside(1.0, 1.0, 0.0, 1.0, 0.0))
    assert torch.equal(after[..., 256:], before[..., 256:])


@pytest.mark.parametrize("encoder", ["shallow", "deep"])
def test_images_are_normalised_pixel_by_pixel_if_so_wished(encoder):
    config = NetworkConfig(image_encoder=encoder, normalise_images=True, observation_clip=3.0)
    ours = Encoder({"a": box((3, 24, 20)), "b": box((24, 24))}, config, torch.Generator().manual_seed(0))
    observation = {"a": pixels(4, 7, 3, 24, 20), "b": pixels(4, 7, 24, 24)}
    observation["b"][..., 3, 5] = 9  # a pixel that never changes
    counted = torch.rand(4, 7, generator=torch.Generator().manual_seed(1)) < 0.6
    ours.observe(observation, counted)
    features = ours(observation)
    for index, (name, image) in enumerate(observation.items()):
        network = ours.images[index]
        rows = image[counted].double()
        expected = ((image - rows.mean(0)) / (rows.var(0, correction=0) + 1).sqrt()).clamp(-3, 3).float()
        network.normaliser = None  # floats are taken as they are
        wanted = network(expected if name == "a" else expected.unsqueeze(-3))
        torch.testing.assert_close(features[..., index * 256 : (index + 1) * 256], wanted, rtol=1e-4, atol=1e-4)


def test_texts_come_last_and_are_never_normalised():
    assert sees_texts({"x": box((3,), np.float32), "say": (text_leaf(),)})
    assert not sees_texts({"x": box((3,), np.float32), "room": ROOM})
    encoder = make({"a": text_leaf(), "b": box((3, 20, 20)), "c": (ROOM, box((2,), np.float32)), "d": text_leaf()})
    assert (encoder.vector_size, encoder.size) == (2, 256 + 256 + 2 * 64) and len(encoder.texts) == 2
    words = [torch.from_numpy(np.stack([word_numbers(text) for text in pair])) for pair in (("a", "b c"), ("a", ""))]
    numbers = torch.tensor([[3.0, -5.0], [1.0, 2.0]])
    observation = {"a": words[0], "b": pixels(2, 3, 20, 20), "c": (torch.tensor([0, 2]), numbers), "d": words[1]}
    before = encoder(observation)
    assert not before[1, -64:].any()
    torch.testing.assert_close(before[:, -128:], torch.cat([encoder.texts[0](words[0]), encoder.texts[1](words[1])], 1))
    assert not torch.equal(before[0, -128:-64], before[0, -64:])  # each has weights of its own
    encoder.normaliser.update(batch_moments(encoder.vector(observation), torch.ones(2, dtype=torch.bool)))
    after = encoder(observation)
    assert not torch.equal(after[:, :256], before[:, :256]) and torch.equal(after[:, 256:], before[:, 256:])
    alone = make(text_leaf())
    assert alone.normaliser is None and not list(alone.buffers()) and alone.size == 64


def test_images_alone_have_no_statistics():
    encoder = make({"one": box((3, 20, 20)), "other": box((24, 24))})
    assert encoder.normaliser is None and (encoder.vector_size, encoder.size) == (0, 512)
    assert not torch.equal(encoder.images[0].linear.weight[0, 0], encoder.images[1].linear.weight[0, 0])
    assert not list(encoder.buffers())


def test_the_network_is_an_option():
    assert make(box((1, 36, 36)), image_encoder="nature").size == 512
    with pytest.raises(UserError, match=r"^observation is 35×36 pixels"):
        make(box((1, 35, 36)), image_encoder="nature")
