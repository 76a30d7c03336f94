"""From an observation as the env gave it to one vector of features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pronghorn import tree
from pronghorn.ops.running import VectorNormaliser
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, Leaf, UserError


def without_mask(observation: Tree) -> Tree:
    """The observation less its action mask."""
    if isinstance(observation, dict) and ACTION_MASK in observation:
        return {key: value for key, value in observation.items() if key != ACTION_MASK}
    return observation


class VectorEncoder(nn.Module):
    """Box leaves are flattened, concatenated and normalised; discrete ones become one-hot, never normalised.

    Args:
        spec: tree of ``Leaf``; the action mask, if any, is left out.
        normalise: whether box leaves are normalised by streaming statistics.
        clip: bound of normalised values.

    Raises:
        UserError: a leaf is an image, naming it.
    """

    def __init__(self, spec: Tree, normalise: bool, clip: float) -> None:
        super().__init__()
        leaves: dict[str, Leaf] = tree.named(without_mask(spec))
        for path, leaf in leaves.items():
            if leaf.kind == "box" and leaf.dtype == np.uint8 and len(leaf.shape) >= 2:
                name = f"observation/{path}".rstrip("/")
                raise UserError(
                    f"{name} is an image ({leaf.describe()}); this version has encoders for vectors and discrete "
                    "values only: flatten it or extract features in a wrapper"
                )
        self._leaves = list(leaves.values())
        self.vector_size = sum(leaf.size for leaf in self._leaves if leaf.kind == "box")
        self.size = self.vector_size + sum(sum(leaf.categories) for leaf in self._leaves if leaf.kind != "box")
        if self.size == 0:
            raise UserError("the observation space is empty; an agent needs something to see")
        self.normaliser = VectorNormaliser(self.vector_size, clip) if normalise and self.vector_size else None

    def vector(self, observation: Tree) -> Tensor:
        """The box leaves [..., vector_size], as they came."""
        values = tree.leaves(without_mask(observation))
        boxes = [
            value.flatten(value.ndim - len(leaf.shape)) if leaf.shape else value.unsqueeze(-1)
            for leaf, value in zip(self._leaves, values, strict=True)
            if leaf.kind == "box"
        ]
        return boxes[0] if len(boxes) == 1 else torch.cat(boxes, -1)

    def forward(self, observation: Tree) -> Tensor:
        """[..., size] float32."""
        parts = []
        if self.vector_size:
            vector = self.vector(observation)
            parts.append(self.normaliser(vector) if self.normaliser is not None else vector.to(torch.float32))
        if self.size > self.vector_size:
            for leaf, value in zip(self._leaves, tree.leaves(without_mask(observation)), strict=True):
                if leaf.kind != "box":
                    parts += _one_hots(leaf, value)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _one_hots(leaf: Leaf, value: Tensor) -> list[Tensor]:
    index = value.to(torch.int64)
    if leaf.start is not None:
        index = index - torch.as_tensor(leaf.start, device=value.device)
    flat = index.flatten(index.ndim - len(leaf.shape)) if leaf.shape else index.unsqueeze(-1)
    return [
        functional.one_hot(flat[..., entry], categories).to(torch.float32)
        for entry, categories in enumerate(leaf.categories)
    ]
