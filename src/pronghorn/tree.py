"""Nested data: dicts, tuples and lists of arrays, handled leaf by leaf (a thin layer over optree).

A *tree* is any nesting of dict, tuple and list; everything else is a leaf. ``()`` is the empty tree. Dict keys are
visited in sorted order. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import optree

Tree: TypeAlias = Any
"""A nesting of dict, tuple and list whose leaves are arrays, tensors or specs."""


def map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Applies ``function`` to corresponding leaves. Raises ValueError where the structures differ."""
    if type(tree) is np.ndarray:  # the common case, at a tenth of the cost
        return function(tree, *rest)
    return optree.tree_map(function, tree, *rest)


def leaves(tree: Tree) -> list[Any]:
    """The leaves in order."""
    if type(tree) is np.ndarray:
        return [tree]
    return optree.tree_leaves(tree)


def named(tree: Tree) -> dict[str, Any]:
    """Leaves by path, e.g. ``{"camera/left": …}``; a tree that is one leaf has the name ``""``."""
    paths, values, _ = optree.tree_flatten_with_path(tree)
    return {"/".join(str(part) for part in path): value for path, value in zip(paths, values, strict=True)}


def paths(tree: Tree) -> list[tuple[Any, ...]]:
    """The keys and indices that lead to each leaf, in the order of leaves."""
    return list(optree.tree_paths(tree))


def below(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The named values whose names lie below ``prefix``, without it: ``{"a/b": 1}`` below "a" is ``{"b": 1}``."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def like(tree: Tree, values: list[Any]) -> Tree:
    """Puts ``values`` into the structure of ``tree``. Raises ValueError if their number differs."""
    return optree.tree_unflatten(optree.tree_structure(tree), values)


def conform(spec: Tree, value: Tree) -> Tree:
    """Rearranges ``value`` to the structure of ``spec``: extra dict keys are dropped, mappings become dicts.

    Raises:
        KeyError, TypeError: ``value`` lacks a key or is not nested where ``spec`` is.
    """
    if isinstance(spec, dict):
        return {key: conform(part, value[key]) for key, part in spec.items()}
    if isinstance(spec, (tuple, list)):
        if len(value) != len(spec):
            raise TypeError(f"expected {len(spec)} parts, got {len(value)}")
        return type(spec)(conform(part, item) for part, item in zip(spec, value, strict=True))
    return value
