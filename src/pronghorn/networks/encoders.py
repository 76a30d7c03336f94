"""From an observation as the env gave it to one vector of features."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from pronghorn import tree
from pronghorn.config import IMAGE_ENCODERS, NetworkConfig
from pronghorn.envs.images import channels_at, is_image
from pronghorn.networks.conv import CNNS, ConvNet
from pronghorn.networks.mlp import Torso
from pronghorn.networks.resnet import ResNet
from pronghorn.networks.text import TextEncoder
from pronghorn.ops.running import Normaliser, batch_moments, byte_moments
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, Leaf, Trajectory, UserError

GREY_LEVEL = 1.0
"""Added to the variance of a pixel, in bytes squared: one that hardly ever changes is not blown up."""

BESIDE_IMAGES = 256
"""Units of the layer between numbers and the features of images: see ``Encoder``."""

Shape: TypeAlias = tuple[int, int, int]
"""Channels, height, width."""

OwnNetwork: TypeAlias = Callable[[Shape, torch.Generator, Normaliser | None], nn.Module]

_BUILT_IN = tuple(IMAGE_ENCODERS)
_OWN: dict[str, OwnNetwork] = {}


def register_image_encoder(name: str, make: OwnNetwork) -> None:
    """Adds a network for images: ``make(shape, generator, normaliser)`` is a module that turns images [..., channels,
    height, width] uint8 into features [..., size] float32.

    It has the attributes ``size`` and ``normaliser`` (as given: None unless pixels are to be normalised; see
    ``conv.floats``) and draws its initial weights from ``generator`` alone.

    Raises:
        UserError: ``name`` is one of ours.
    """
    if not name or name in _BUILT_IN:
        raise UserError(f"an image encoder cannot be registered as {name!r}; use a name that is not one of ours")
    if name not in IMAGE_ENCODERS:
        IMAGE_ENCODERS.append(name)
    _OWN[name] = make


def without_mask(observation: Tree) -> Tree:
    """The observation less its action mask."""
    if isinstance(observation, dict) and ACTION_MASK in observation:
        return {key: value for key, value in observation.items() if key != ACTION_MASK}
    return observation


class Encoder(nn.Module):
    """One vector of features: numbers, then discrete values, then images, then texts, each in the order of leaves.

    Box leaves are flattened, concatenated and normalised; discrete ones become one-hot; images (uint8, see
    ``image_layout``) and texts go each through a network of its own. Beside images, whose features are many, numbers
    and discrete values go through a layer of about as many units together: else a few of them would be drowned.

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
        self._discrete = [(index, leaf) for index, (_, leaf) in leaves if leaf.kind not in ("box", "text")]
        self._texts = [index for index, (_, leaf) in leaves if leaf.kind == "text"]
        self._images: list[tuple[int, ImageLayout]] = []
        networks: list[Any] = []
        for index, (path, leaf) in leaves:
            if is_image(leaf):
                name = f"observation/{path}".rstrip("/")
                layout = image_layout(leaf, name)
                self._images.append((index, layout))
                networks.append(_image_network(layout.shape, config, generator, name))
        self.images = nn.ModuleList(networks)
        self._normalisers = [network.normaliser for network in networks]
        self.texts = nn.ModuleList([TextEncoder(generator) for _ in self._texts])
        self.vector_size = sum(leaf.size for _, leaf in self._vectors)
        categories = sum(sum(leaf.categories) for _, leaf in self._discrete)
        texts = TextEncoder.size * len(self._texts)
        plain = self.vector_size + categories
        self.numbers = None
        if networks and plain:
            self.numbers = Torso([plain, BESIDE_IMAGES], "relu", init=config.init, generator=generator)
            plain = self.numbers.size
        self.size = plain + sum(network.size for network in networks) + texts
        if self.size == 0:
            raise UserError("the observation space is empty; an agent needs something to see")
        normalised = config.normalise_observations and self.vector_size
        self.normaliser = Normaliser((self.vector_size,), config.observation_clip) if normalised else None

    def vector(self, observation: Tree) -> Tensor:
        """The box leaves that are no images, [..., vector_size], as they came."""
        values = tree.leaves(without_mask(observation))
        boxes = [_flat(leaf, values[index]) for index, leaf in self._vectors]
        return boxes[0] if len(boxes) == 1 else torch.cat(boxes, -1)

    @torch.no_grad()
    def observe(self, observation: Tree, counted: Tensor) -> None:
        """Takes the ``counted`` [T, B] of some rows into the statistics that normalise."""
        if self.normaliser is not None:
            self.normaliser.update(batch_moments(self.vector(observation), counted))
        values = tree.leaves(without_mask(observation))
        for (index, layout), normaliser in zip(self._images, self._normalisers, strict=True):
            if normaliser is not None:
                count, *moments = byte_moments(layout.channels_first(values[index]), counted)
                mean, m2 = (moment.movedim(0, -1) for moment in moments)
                normaliser.update((count, mean, m2))

    def forward(self, observation: Tree) -> Tensor:
        """[..., size] float32."""
        parts = []
        if self.vector_size:
            vector = self.vector(observation)
            parts.append(self.normaliser(vector) if self.normaliser is not None else vector.to(torch.float32))
        if self._discrete or self._images or self._texts:
            values = tree.leaves(without_mask(observation))
            for index, leaf in self._discrete:
                parts += _one_hots(leaf, values[index])
            if self.numbers is not None:
                parts = [self.numbers(torch.cat(parts, -1))]
            for (index, layout), network in zip(self._images, self.images, strict=True):
                parts.append(network(layout.channels_first(values[index])))
            for index, network in zip(self._texts, self.texts, strict=True):
                parts.append(network(values[index]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class Inputs(NamedTuple):
    """What an agent sees that is also told its last step; ``last_action`` as sampled, ``last_reward`` raw."""

    observation: Tree
    last_action: Tree
    last_reward: Any


def with_last_step(batch: Trajectory) -> Trajectory:
    """The batch with ``Inputs`` [T+1, B, …] as its observation: row t has the action and reward of row t-1, row 0 what
    was carried into it. Where ``first`` they are those of another episode: ``LastStep`` leaves them out."""

    def earlier(carried: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([carried.unsqueeze(0), rows])

    action = tree.map(earlier, batch.last_action, batch.action)
    inputs = Inputs(batch.observation, action, earlier(batch.last_reward, batch.reward))
    return dataclasses.replace(batch, observation=inputs)


class LastStep:
    """The last reward, clipped to [-1, 1], and the last action as features: discrete ones one-hot, boxes as sampled.

    Args:
        spec: tree of ``Leaf``, of actions.
    """

    def __init__(self, spec: Tree) -> None:
        # What is sampled counts from 0.
        self._leaves = [dataclasses.replace(leaf, start=None) for leaf in tree.leaves(spec)]
        self.size = 1 + sum(leaf.size if leaf.kind == "box" else sum(leaf.categories) for leaf in self._leaves)

    def __call__(self, inputs: Inputs, first: Tensor) -> Tensor:
        """[..., size] float32, zero where ``first`` [...]."""
        parts = [inputs.last_reward.clamp(-1.0, 1.0).unsqueeze(-1)]
        for leaf, value in zip(self._leaves, tree.leaves(inputs.last_action), strict=True):
            parts += [_flat(leaf, value)] if leaf.kind == "box" else _one_hots(leaf, value)
        return torch.cat(parts, -1).masked_fill(first.unsqueeze(-1), 0.0)


def sees_images(spec: Tree) -> bool:
    """Whether an observation has images: then arithmetic, not overhead, is the cost of a forward pass."""
    return any(is_image(leaf) for leaf in tree.leaves(without_mask(spec)))


def sees_texts(spec: Tree) -> bool:
    """Whether an observation has texts."""
    return any(leaf.kind == "text" for leaf in tree.leaves(without_mask(spec)))


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
    """Raises UserError, naming the leaf, where the layout is unclear: see ``channels_at``."""
    channels = channels_at(leaf, name)
    if channels == "none":
        height, width = leaf.shape
        return ImageLayout((1, height, width), channels)
    first, middle, last = leaf.shape
    return ImageLayout((first, middle, last) if channels == "first" else (last, first, middle), channels)


def _one_hots(leaf: Leaf, value: Tensor) -> list[Tensor]:
    index = value.to(torch.int64)
    if leaf.start is not None:
        index = index - torch.as_tensor(leaf.start, device=value.device)
    flat = _flat(leaf, index)
    return [
        functional.one_hot(flat[..., entry], categories).to(torch.float32)
        for entry, categories in enumerate(leaf.categories)
    ]


def _flat(leaf: Leaf, value: Tensor) -> Tensor:
    """[..., size] of [..., *shape]."""
    return value.flatten(value.ndim - len(leaf.shape)) if leaf.shape else value.unsqueeze(-1)


def _image_network(
    shape: Shape, config: NetworkConfig, generator: torch.Generator, name: str
) -> ConvNet | ResNet | nn.Module:
    normaliser = None
    if config.normalise_images:
        channels, height, width = shape
        normaliser = Normaliser((height, width, channels), config.observation_clip, least=GREY_LEVEL)
    if make := _OWN.get(config.image_encoder):
        return make(shape, generator, normaliser)
    if config.image_encoder == "deep":
        return ResNet(shape, init=config.init, generator=generator, normaliser=normaliser)
    layers = CNNS[config.image_encoder]
    return ConvNet(shape, layers, init=config.init, generator=generator, normaliser=normaliser, name=name)
