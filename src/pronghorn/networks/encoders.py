"""From an observation as the env gave it to one vector of features."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pronghorn import tree
from pronghorn.config import NetworkConfig
from pronghorn.networks.conv import CNNS, ConvNet
from pronghorn.ops.running import VectorNormaliser
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, Leaf, UserError


def without_mask(observation: Tree) -> Tree:
    """The observation less its action mask."""
    if isinstance(observation, dict) and ACTION_MASK in observation:
        return {key: value for key, value in observation.items() if key != ACTION_MASK}
    return observation


class Encoder(nn.Module):
    """One vector of features: numbers, then discrete values, then images, each in the order of leaves.

    Box leaves are flattened, concatenated and normalised; discrete ones become one-hot; images (uint8, see
    ``image_layout``) go each through a convolutional network of its own. Only the first are normalised.

    Args:
        spec: tree of ``Leaf``; the action mask, if any, is left out.
        config: says what is normalised, and which network images go through.
        generator: of the initial weights.

    Raises:
        UserError: nothing to see, or an image whose layout is unclear or that is too small, naming it.
    """

    def __init__(self, spec: Tree, config: NetworkConfig, generator: torch.Generator) -> None:
        super().__init__()
        leaves = list(enumerate(tree.named(without_mask(spec)).items()))
        self._vectors = [(index, leaf) for index, (_, leaf) in leaves if leaf.kind == "box" and not is_image(leaf)]
        self._discrete = [(index, leaf) for index, (_, leaf) in leaves if leaf.kind != "box"]
        self._images: list[tuple[int, ImageLayout]] = []
        networks = []
        for index, (path, leaf) in leaves:
            if is_image(leaf):
                name = f"observation/{path}".rstrip("/")
                layout = image_layout(leaf, name)
                self._images.append((index, layout))
                cnn = CNNS[config.image_encoder]
                networks.append(ConvNet(layout.shape, cnn, init=config.init, generator=generator, name=name))
        self.images = nn.ModuleList(networks)
        self.vector_size = sum(leaf.size for _, leaf in self._vectors)
        categories = sum(sum(leaf.categories) for _, leaf in self._discrete)
        self.size = self.vector_size + categories + sum(network.size for network in networks)
        if self.size == 0:
            raise UserError("the observation space is empty; an agent needs something to see")
        normalised = config.normalise_observations and self.vector_size
        self.normaliser = VectorNormaliser(self.vector_size, config.observation_clip) if normalised else None

    def vector(self, observation: Tree) -> Tensor:
        """The box leaves that are no images, [..., vector_size], as they came."""
        values = tree.leaves(without_mask(observation))
        boxes = [
            values[index].flatten(values[index].ndim - len(leaf.shape)) if leaf.shape else values[index].unsqueeze(-1)
            for index, leaf in self._vectors
        ]
        return boxes[0] if len(boxes) == 1 else torch.cat(boxes, -1)

    def forward(self, observation: Tree) -> Tensor:
        """[..., size] float32."""
        parts = []
        if self.vector_size:
            vector = self.vector(observation)
            parts.append(self.normaliser(vector) if self.normaliser is not None else vector.to(torch.float32))
        if self._discrete or self._images:
            values = tree.leaves(without_mask(observation))
            for index, leaf in self._discrete:
                parts += _one_hots(leaf, values[index])
            for (index, layout), network in zip(self._images, self.images, strict=True):
                parts.append(network(layout.channels_first(values[index])))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def is_image(leaf: Leaf) -> bool:
    """Whether a leaf is taken for an image: uint8 with two dimensions or more."""
    return leaf.kind == "box" and leaf.dtype == np.uint8 and len(leaf.shape) >= 2


def sees_images(spec: Tree) -> bool:
    """Whether an observation has images: then arithmetic, not overhead, is the cost of a forward pass."""
    return any(is_image(leaf) for leaf in tree.leaves(without_mask(spec)))


class ImageLayout(NamedTuple):
    """``shape`` is (channels, height, width); ``channels`` says where the image has its channels."""

    shape: tuple[int, int, int]
    channels: Literal["none", "first", "last"]

    def channels_first(self, image: Tensor) -> Tensor:
        """A view [..., channels, height, width] of images as they came."""
        if self.channels == "none":
            return image.unsqueeze(-3)
        return image if self.channels == "first" else image.movedim(-1, -3)


def image_layout(leaf: Leaf, name: str) -> ImageLayout:
    """Two dimensions are height and width. Of three, the channels are the first or the last, whichever is smaller
    than both others. Raises UserError, naming the leaf, where that says nothing."""
    if len(leaf.shape) == 2:
        return ImageLayout((1, *leaf.shape), "none")
    if len(leaf.shape) == 3:
        first, middle, last = leaf.shape
        if first < min(middle, last):
            return ImageLayout((first, middle, last), "first")
        if last < min(first, middle):
            return ImageLayout((last, first, middle), "last")
    raise UserError(
        f"{name} ({leaf.describe()}) is uint8 but no image whose channels can be told; shape it [channels, height, "
        "width] or [height, width, channels] with fewer channels than rows and columns, or flatten it, in a wrapper"
    )


def _one_hots(leaf: Leaf, value: Tensor) -> list[Tensor]:
    index = value.to(torch.int64)
    if leaf.start is not None:
        index = index - torch.as_tensor(leaf.start, device=value.device)
    flat = index.flatten(index.ndim - len(leaf.shape)) if leaf.shape else index.unsqueeze(-1)
    return [
        functional.one_hot(flat[..., entry], categories).to(torch.float32)
        for entry, categories in enumerate(leaf.categories)
    ]
