"""The distribution of actions: Gaussian, categorical, or an independent product of both over any nesting of spaces.

Its parameters are one flat vector [..., P], so a rollout stores one array whatever the action space. The random
numbers of a sample come in as one flat vector too: a sample is a function of parameters and noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pronghorn import tree
from pronghorn.tree import Tree
from pronghorn.types import Leaf, UserError

ILLEGAL_LOGIT = -1e9
"""So far below any logit that its probability is exactly 0, yet finite: p log p is 0 and not NaN."""

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Part:
    """``size`` entries of a leaf that share one kind of distribution, hence one group of kernels.

    A Gaussian has ``size`` means, then ``size`` logarithms of standard deviations; a categorical has ``categories``
    logits per entry. A leaf is one part, except where the number of categories changes between its entries.
    """

    kind: Literal["gaussian", "categorical"]
    path: str
    """Of the leaf, as ``tree.named`` writes it."""
    leaf: int
    """Its place in the order of leaves."""
    entries: slice
    """Of the flattened leaf."""
    size: int
    categories: int
    """Per entry; 0 for a Gaussian."""
    parameters: slice
    noise: slice


class ActionDistribution:
    """Distributions over the actions of ``action_spec``, a tree of ``Leaf``. Holds no tensor; works on any device.

    A float box is a diagonal Gaussian (unbounded: the env clips), every discrete kind a set of independent
    categoricals over indices. In all methods ``parameters`` are [..., P] and ``noise`` is [..., ``noise_size``]; an
    action is a tree of [..., *leaf.shape], float32 for boxes and int64 indices for the rest.

    Raises:
        UserError: a leaf is a box of integers or has no entries, or there is nothing to choose.
    """

    parts: tuple[Part, ...]
    parameter_size: int
    """P."""
    noise_size: int
    mean_size: int
    """Means of all Gaussian parts; as many standard deviations."""
    logit_size: int
    """Logits of all categorical parts; the size of a mask."""
    choices: tuple[int, ...]
    """Categories of each categorical entry, in the order of logits and mask."""

    def __init__(self, action_spec: Tree) -> None:
        named = tree.named(action_spec)
        self._shapes = [tuple(leaf.shape) for leaf in named.values()]
        self._structure = tree.like(action_spec, list(range(len(named))))
        self.parts = tuple(_parts(named))
        if not self.parts:
            raise UserError("the action space is empty: there is nothing to choose")
        self.parameter_size = self.parts[-1].parameters.stop
        self.noise_size = self.parts[-1].noise.stop
        self.mean_size = sum(part.size for part in self.parts if part.kind == "gaussian")
        self.choices = tuple(part.categories for part in self.parts if part.categories for _ in range(part.size))
        self.logit_size = sum(self.choices)

    def join(self, means: Tensor, logits: Tensor, log_std: Tensor) -> Tensor:
        """Parameters from what heads compute, in the order of parts.

        Args:
            means: [..., ``mean_size``].
            logits: [..., ``logit_size``].
            log_std: [..., ``mean_size``], broadcast against ``means``.
        """
        if not self.mean_size:
            return logits
        log_std = log_std.expand_as(means)
        pieces = []
        mean_at = logit_at = 0
        for part in self.parts:
            if part.kind == "gaussian":
                here = slice(mean_at, mean_at + part.size)
                pieces += [_take(means, here), _take(log_std, here)]
                mean_at = here.stop
            else:
                here = slice(logit_at, logit_at + part.size * part.categories)
                pieces.append(_take(logits, here))
                logit_at = here.stop
        return torch.cat(pieces, -1)

    def log_prob(self, parameters: Tensor, action: Tree) -> Tensor:
        """Log-probability (density for Gaussian leaves) of ``action``, [...]. An illegal action's is about -1e9."""
        leaves = _leaves(self._structure, action)
        terms = []
        for part in self.parts:
            shape = self._shapes[part.leaf]
            value = leaves[part.leaf]
            value = value.flatten(-len(shape)) if shape else value.unsqueeze(-1)
            value = _take(value, part.entries)
            own = _take(parameters, part.parameters)
            if part.kind == "gaussian":
                mean, log_std = own.chunk(2, -1)
                error = (value - mean) / torch.exp(log_std)
                surprise = torch.addcmul(log_std, error, error, value=0.5)
                terms.append(-part.size * HALF_LOG_TAU - surprise.sum(-1))
            else:
                log_probs = _log_probs(part, own)
                terms.append(log_probs.gather(-1, value.unsqueeze(-1)).squeeze(-1).sum(-1))
        return _total(terms)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tree:
        """The action that ``noise`` selects: mean + std · noise, and argmax(logits + noise) (the Gumbel-max trick)."""
        values = []
        for part in self.parts:
            own, drawn = _take(parameters, part.parameters), _take(noise, part.noise)
            if part.kind == "gaussian":
                mean, log_std = own.chunk(2, -1)
                values.append(torch.addcmul(mean, torch.exp(log_std), drawn))
            else:
                values.append(_argmax(part, own + drawn))
        return self._action(values)

    def mode(self, parameters: Tensor) -> Tree:
        """The likeliest action: the mean, and the largest logit (the first of equals)."""
        values = []
        for part in self.parts:
            own = _take(parameters, part.parameters)
            values.append(own[..., : part.size] if part.kind == "gaussian" else _argmax(part, own))
        return self._action(values)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropy in nats (differential for Gaussian leaves), [...]."""
        terms = []
        for part in self.parts:
            own = _take(parameters, part.parameters)
            if part.kind == "gaussian":
                terms.append(own[..., part.size :].sum(-1) + part.size * (0.5 + HALF_LOG_TAU))
            else:
                log_probs = _log_probs(part, own)
                terms.append(-(log_probs.exp() * log_probs).sum((-2, -1)))
        return _total(terms)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old ‖ new) in nats, [...], for two sets of parameters.

        Gaussian: Σ ln(s'/s) + (s² + (m − m')²) / (2 s'²) − ½, with primes on the new ones.
        """
        terms = []
        for part in self.parts:
            own, other = _take(old, part.parameters), _take(new, part.parameters)
            if part.kind == "gaussian":
                (mean, log_std), (new_mean, new_log_std) = own.chunk(2, -1), other.chunk(2, -1)
                shrink = log_std - new_log_std
                shift = (mean - new_mean) * torch.exp(-new_log_std)
                terms.append((0.5 * (torch.expm1(2 * shrink) + shift.square()) - shrink).sum(-1))
            else:
                log_probs, new_log_probs = _log_probs(part, own), _log_probs(part, other)
                terms.append((log_probs.exp() * (log_probs - new_log_probs)).sum((-2, -1)))
        return _total(terms)

    def mask(self, parameters: Tensor, mask: Tensor) -> Tensor:
        """Parameters under which illegal actions have probability 0, and no gradient.

        Args:
            mask: [..., ``logit_size``], non-zero where legal. An entry without any legal category becomes uniform.
        """
        pieces = []
        at = 0
        for part in self.parts:
            own = _take(parameters, part.parameters)
            if part.kind == "categorical":
                here = slice(at, at + part.size * part.categories)
                own = torch.where(_take(mask, here) != 0, own, ILLEGAL_LOGIT)
                at = here.stop
            pieces.append(own)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Finite noise for ``sample``: [*shape, ``noise_size``], standard normal for Gaussian parts, else Gumbel."""
        noise = np.empty((*shape, self.noise_size), np.float32)
        for part in self.parts:
            draw = rng.standard_normal if part.kind == "gaussian" else rng.gumbel
            noise[..., part.noise] = draw(size=(*shape, part.noise.stop - part.noise.start))
        return noise

    def null_parameters(self) -> Tensor:
        """[P] zeros, float32: standard normal, uniform over categories."""
        return torch.zeros(self.parameter_size)

    def _action(self, values: list[Tensor]) -> Tree:
        """The tree from one [..., size] per part."""
        leaves = []
        for index, shape in enumerate(self._shapes):
            own = [value for value, part in zip(values, self.parts, strict=True) if part.leaf == index]
            value = own[0] if len(own) == 1 else torch.cat(own, -1)
            leaves.append(value if len(shape) == 1 else value.reshape((*value.shape[:-1], *shape)))
        return _arrange(self._structure, leaves)


def _parts(named: dict[str, Leaf]) -> Iterator[Part]:
    """Lays parameters and noise out, leaf by leaf."""
    parameters = noise = 0
    for index, (path, leaf) in enumerate(named.items()):
        if leaf.kind == "box" and leaf.dtype.kind != "f":
            raise UserError(f"action {path or 'space'}: a box of {leaf.dtype} is not supported; use MultiDiscrete")
        if not leaf.size:
            raise UserError(f"action {path or 'space'} has no entries: there is nothing to choose; leave it out")
        at = 0
        runs = [(0, leaf.size)] if leaf.kind == "box" else _runs(leaf.categories)
        for categories, size in runs:
            kind: Literal["gaussian", "categorical"] = "categorical" if categories else "gaussian"
            width, drawn = size * (categories or 2), size * (categories or 1)
            yield Part(
                kind=kind,
                path=path,
                leaf=index,
                entries=slice(at, at + size),
                size=size,
                categories=categories,
                parameters=slice(parameters, parameters + width),
                noise=slice(noise, noise + drawn),
            )
            at, parameters, noise = at + size, parameters + width, noise + drawn


def _runs(categories: tuple[int, ...]) -> list[tuple[int, int]]:
    """(value, length) of each run of equal neighbours."""
    return [(value, len(list(run))) for value, run in itertools.groupby(categories)]


def _take(x: Tensor, where: slice) -> Tensor:
    """``x[..., where]``, without a kernel call where that is all of it."""
    return x if where.stop - where.start == x.shape[-1] else x[..., where]


def _log_probs(part: Part, logits: Tensor) -> Tensor:
    """Normalised logits, [..., size, categories]."""
    return torch.log_softmax(torch.unflatten(logits, -1, (part.size, part.categories)), -1)


def _argmax(part: Part, logits: Tensor) -> Tensor:
    """[..., size] int64."""
    return torch.unflatten(logits, -1, (part.size, part.categories)).argmax(-1)


def _total(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _leaves(structure: Tree, value: Tree) -> list[Any]:
    """``tree.leaves`` in plain Python: ``torch.compile`` cannot trace optree."""
    if isinstance(structure, dict):
        return [leaf for key in sorted(structure) for leaf in _leaves(structure[key], value[key])]
    if isinstance(structure, (tuple, list)):
        return [leaf for part, item in zip(structure, value, strict=True) for leaf in _leaves(part, item)]
    return [value]


def _arrange(structure: Tree, leaves: list[Any]) -> Tree:
    """``tree.like`` in plain Python; the leaves of ``structure`` are places in ``leaves``."""
    if isinstance(structure, dict):
        return {key: _arrange(part, leaves) for key, part in structure.items()}
    if isinstance(structure, (tuple, list)):
        return type(structure)(_arrange(part, leaves) for part in structure)
    return leaves[structure]
