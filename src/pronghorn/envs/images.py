"""Which leaves are images, and where an image has its channels."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pronghorn.types import Leaf, UserError


def is_image(leaf: Leaf) -> bool:
    """Whether a leaf is taken for an image: uint8 with two dimensions or more."""
    return leaf.kind == "box" and leaf.dtype == np.uint8 and len(leaf.shape) >= 2


def channels_at(leaf: Leaf, name: str) -> Literal["none", "first", "last"]:
    """Where an image has its channels. Two dimensions are height and width. Of three, the channels are the first or the
    last, whichever is smaller than both others. Raises UserError, naming the leaf, where that says nothing."""
    if len(leaf.shape) == 2:
        return "none"
    if len(leaf.shape) == 3:
        first, middle, last = leaf.shape
        if first < min(middle, last):
            return "first"
        if last < min(first, middle):
            return "last"
    raise UserError(
        f"{name} ({leaf.describe()}) is uint8 but no image whose channels can be told; shape it [channels, height, "
        "width] or [height, width, channels] with fewer channels than rows and columns, or flatten it, in a wrapper"
    )
