"""A trained policy as one ONNX file: all that lies between what an env shows and the action it takes.

Preprocessing, statistics, memory with its resets, masks, the choice of the action and its way into the env's units are
inside. What the file says is held against the network before it is written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pronghorn import api, tree
from pronghorn.acting.inference import Inference
from pronghorn.envs.base import to_env_actions
from pronghorn.envs.images import is_image
from pronghorn.envs.text import BUCKETS, WORDS
from pronghorn.networks.agent import Agent
from pronghorn.networks.encoders import Inputs, sees_texts, without_mask
from pronghorn.policy import Policy
from pronghorn.session import versions
from pronghorn.tree import Tree
from pronghorn.types import Leaf, UserError, action_dtype

FORMAT = 1
"""Version of the layout of ``policy.json``."""

NEEDED = ("onnx", "onnxruntime", "onnxscript")

OPSET = 18
"""Of the operators in the file: what runtimes of 2023 and later know."""

TOLERANCE = 1e-3
"""Largest difference between the file and the network, relative to max(1, |value|); of integers none. As between two
devices: the convolutions of two libraries add up in another order."""

BATCHES = 1, 64
"""Batch sizes at which they are compared."""

STEPS = 6
"""Steps in a row of which they are compared at each size; at about a third of them an episode begins."""

WIDE = 1e6
"""Bounds beyond it say nothing about the values."""


class Exported(NamedTuple):
    """What was written: ``path``, the ONNX file, and the ``description`` that lies beside it in JSON."""

    path: Path
    description: dict[str, Any]

    @property
    def summary(self) -> str:
        """A line for the user."""
        found = self.description
        worst = max(found["verified"]["differences"].values())
        return (
            f"wrote {self.path} and {self.path.with_suffix('.json').name}: the policy of step {found['step']:,}, "
            f"actions {found['actions']}; equal to the network within {worst:.0e} in batches of "
            f"{' and '.join(map(str, found['verified']['batches']))}"
        )


def export(run: Path, out: Path | None = None, sample: bool = False) -> Exported:
    """Writes the policy of the newest good checkpoint to ``out`` (none: ``exports/policy.onnx`` in ``run``), and what
    one must know to use it beside it, with the suffix ``.json``. Files of these names are replaced.

    Args:
        sample: draw actions by noise that is an input, instead of taking the mode.

    Raises:
        UserError: a package is missing, there is no run, no usable checkpoint, or it was made for other spaces; the
            network cannot be exported, or the file differs from it. Then nothing is written.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"export needs {' and '.join(missing)}: pip install 'pronghorn[export]'")
    out = run / "exports" / "policy.onnx" if out is None else out
    if out.suffix != ".onnx":
        raise UserError(f"--out must end in .onnx, not {out.name!r}")
    policy = api.load(run, sample)
    deployed = Deployed(policy.inference.agent, sample)
    model = to_onnx(deployed)
    differences = verify(model, deployed, policy.inference)
    description = {
        **_about(policy, sample),
        **deployed.describe(),
        "opset": OPSET,
        "versions": versions() | {name: package_version(name) for name in NEEDED},
        "verified": {"batches": BATCHES, "steps": STEPS, "tolerance": TOLERANCE, "differences": differences},
        "sha256": hashlib.sha256(model).hexdigest(),
    }
    _write(out, model, json.dumps(description, indent=2).encode() + b"\n")
    return Exported(out, description)


class Deployed(nn.Module):
    """The policy as a function of tensors alone, [batch, …] each.

    ``inputs`` and ``outputs`` are trees of ``Leaf``; a tensor is called by its path in them, as ``tree.named`` writes
    it. What is carried from step to step goes in as ``core_state`` and ``last_action`` and comes out as
    ``next_core_state`` and ``next_last_action``.
    """

    def __init__(self, agent: Agent, sample: bool) -> None:
        super().__init__()
        self.agent = agent
        self._sample = sample
        spec, distribution = agent.spec, agent.distribution
        carried: dict[str, Tree] = {}
        others: dict[str, Tree] = {}
        if agent.recurrent:
            state = tree.map(lambda tensor: tensor[0].numpy(), agent.initial_state(1))
            carried["core_state"] = tree.map(lambda array: _numbers(array.shape, array.dtype), state)
        if agent.last_step is not None:
            carried["last_action"] = tree.map(_as_sampled, spec.action)
            others["last_reward"] = _numbers((), np.float32)
        if carried:
            others["first"] = _numbers((), np.bool_)
        if sample:
            others["noise"] = _numbers((distribution.noise_size,), np.float32)
        self.inputs: dict[str, Tree] = {"observation": spec.observation, **carried, **others}
        self.outputs: dict[str, Tree] = {
            "action": spec.action,
            "parameters": _numbers((distribution.parameter_size,), np.float32),
            **{f"next_{name}": leaves for name, leaves in carried.items()},
        }

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The leaves of ``outputs`` from those of ``inputs``, both in the order of leaves."""
        given = tree.like(self.inputs, list(values))
        observation, first = given["observation"], given.get("first", torch.tensor(False))
        if self.agent.last_step is not None:
            observation = Inputs(observation, given["last_action"], given["last_reward"])
        parameters, core_state = self.agent.step(observation, first, given.get("core_state", ()))
        distribution = self.agent.distribution
        chosen = distribution.sample(parameters, given["noise"]) if self._sample else distribution.mode(parameters)
        found = {
            "action": tree.map(in_env_units, self.agent.spec.action, chosen),
            "parameters": parameters,
            "next_core_state": core_state,
            "next_last_action": chosen,
        }
        return tuple(tree.leaves({name: found[name] for name in self.outputs}))

    def describe(self) -> dict[str, Any]:
        """Names, shapes, dtypes and spaces of inputs and outputs, and what is carried, for JSON."""
        parts = [
            {
                "kind": part.kind,
                "action": part.path,
                "size": part.size,
                "categories": part.categories,
                "parameters": [part.parameters.start, part.parameters.stop],
                "noise": [part.noise.start, part.noise.stop],
            }
            for part in self.agent.distribution.parts
        ]
        carried = [name for name in tree.named(self.inputs) if f"next_{name}" in tree.named(self.outputs)]
        return {
            "inputs": _ports(self.inputs),
            "outputs": _ports(self.outputs),
            "carry": {name: f"next_{name}" for name in carried},
            "distribution": parts,
        }


def in_env_units(leaf: Leaf, action: Tensor) -> Tensor:
    """``envs.base.to_env_actions`` of one leaf, for a graph."""
    dtype = _torch_dtype(leaf)
    if leaf.kind != "box":
        return (action if leaf.start is None else action + torch.as_tensor(leaf.start)).to(dtype)
    assert leaf.low is not None and leaf.high is not None
    finite = np.isfinite(leaf.low) & np.isfinite(leaf.high)
    origin, scale = np.where(finite, leaf.low, 0.0), np.where(finite, leaf.high, 0.0) - np.where(finite, leaf.low, 0.0)
    least, most = np.where(finite, -1.0, leaf.low), np.where(finite, 1.0, leaf.high)
    value = action.double().clamp(torch.from_numpy(least), torch.from_numpy(most))
    scaled = torch.from_numpy(origin) + (value + 1.0) * 0.5 * torch.from_numpy(scale)
    value = torch.where(torch.from_numpy(finite), scaled, value).to(dtype)
    return value.double().clamp(torch.from_numpy(leaf.low), torch.from_numpy(leaf.high)).to(dtype)


def to_onnx(deployed: Deployed) -> bytes:
    """The file's contents. Raises UserError where the network has what ONNX cannot say."""
    example = [torch.zeros(2, *leaf.shape, dtype=_torch_dtype(leaf)) for leaf in tree.leaves(deployed.inputs)]
    batch = torch.export.Dim("batch")
    try:
        with torch.no_grad(), _quiet():
            exported = torch.export.export(
                deployed, tuple(example), dynamic_shapes=(tuple({0: batch} for _ in example),), strict=False
            )
            program = torch.onnx.export(
                exported,
                input_names=list(tree.named(deployed.inputs)),
                output_names=list(tree.named(deployed.outputs)),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # those of the exporter have nothing in common
        raise UserError(f"the network cannot be exported: {str(error).strip().splitlines()[0]}") from error
    assert program is not None
    model = program.model_proto
    graph = model.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer, *graph.value_info):
        part.ClearField("metadata_props")  # where in our source each comes from, with the paths of this machine
    contents: bytes = model.SerializeToString()
    return contents


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of packages that nobody needs and of its own past."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def verify(model: bytes, deployed: Deployed, inference: Inference) -> dict[str, float]:
    """The largest difference in each output, over random inputs, from the network that ``inference`` holds.

    Both are given the same at each step; what is carried into an episode's first step is noise, which must not matter.

    Raises:
        UserError: a difference is larger than ``TOLERANCE``, or a shape or dtype is another.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = list(tree.named(deployed.outputs))
    worst = dict.fromkeys(names, 0.0)
    rng = np.random.default_rng(0)
    for batch in BATCHES:
        given = _random_inputs(deployed, rng, batch)
        for step in range(STEPS):
            if "first" in given:
                given["first"] = rng.random(batch) < (0.3 if step else 1.0)
            found = dict(zip(names, session.run(names, tree.named(given)), strict=True))
            expected = _expected(deployed, inference, given, found["parameters"])
            for (name, value), leaf in zip(tree.named(expected).items(), tree.leaves(deployed.outputs), strict=True):
                difference = _difference(leaf, found[name], value)
                if not difference <= TOLERANCE:
                    raise UserError(
                        f"the exported policy is not the network: {name} differs by {difference:.1e} in a batch of "
                        f"{batch}, more than {TOLERANCE:g}; nothing was written"
                    )
                worst[name] = max(worst[name], difference)
            given = _random_inputs(deployed, rng, batch)
            for name in deployed.outputs:
                if name.startswith("next_"):
                    given[name.removeprefix("next_")] = expected[name]
    return worst


def _expected(deployed: Deployed, inference: Inference, given: dict[str, Tree], parameters: Any) -> dict[str, Tree]:
    """What the file should have found. The action is the one that its own ``parameters`` call for: where two logits
    are equal but for rounding either choice is right."""
    agent, distribution = deployed.agent, deployed.agent.distribution
    batch = len(parameters)
    observation = given["observation"]
    if agent.last_step is not None:
        observation = Inputs(observation, given["last_action"], given["last_reward"])
    noise = given.get("noise", np.zeros((batch, distribution.noise_size), np.float32))
    choice = inference(observation, given.get("first", np.zeros(batch, bool)), given.get("core_state", ()), noise)
    own = torch.from_numpy(parameters)
    chosen = distribution.mode(own) if inference.mode == "mode" else distribution.sample(own, torch.from_numpy(noise))
    action = tree.map(lambda tensor: tensor.numpy(), chosen)
    found = {
        "action": to_env_actions(agent.spec.action, action),
        "parameters": choice.behaviour,
        "next_core_state": choice.core_state,
        "next_last_action": action,
    }
    return {name: found[name] for name in deployed.outputs}


def _difference(leaf: Leaf, found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Relative to max(1, |expected|) and to the width of the space; of integers any is infinite."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return np.inf
    if found.dtype.kind != "f":
        return 0.0 if np.array_equal(found, expected) else np.inf
    assert leaf.low is not None and leaf.high is not None
    finite = np.isfinite(leaf.low) & np.isfinite(leaf.high)
    width = np.where(finite, leaf.high, 0.0) - np.where(finite, leaf.low, 0.0)
    unit = np.maximum(np.maximum(1.0, np.abs(expected)), width)
    return float((np.abs(found.astype(np.float64) - expected) / unit).max(initial=0.0))


def _random_inputs(deployed: Deployed, rng: np.random.Generator, batch: int) -> dict[str, Tree]:
    """Of every input [batch, …]: what is normalised is spread as it was in training, the rest over its space."""
    encoder, spec = deployed.agent.encoder, without_mask(deployed.agent.spec.observation)
    given: dict[str, Tree] = tree.map(lambda leaf: _random(leaf, rng, batch), deployed.inputs)
    if encoder.normaliser is not None:
        mean, std = encoder.normaliser.moments.mean.numpy(), encoder.normaliser.moments.std.numpy()
        seen = mean + 2.0 * std * rng.standard_normal((batch, encoder.vector_size))
        at = 0
        for leaf, values in zip(tree.leaves(spec), tree.leaves(without_mask(given["observation"])), strict=True):
            if leaf.kind == "box" and not is_image(leaf):
                part = seen[:, at : at + leaf.size].reshape(values.shape)
                values[...] = np.clip(part, leaf.low, leaf.high)
                at += leaf.size
    return given


def _random(leaf: Leaf, rng: np.random.Generator, batch: int) -> NDArray[Any]:
    """[batch, *shape]: any of its values, standard normal where it has no bounds or wide ones."""
    shape = (batch, *leaf.shape)
    if leaf.kind == "text":
        words, lengths = rng.integers(1, leaf.categories[0], shape), rng.integers(0, WORDS + 1, (batch, 1))
        return np.where(np.arange(WORDS) < lengths, words, 0).astype(leaf.dtype)
    if leaf.categories:
        index = rng.integers(0, np.reshape(leaf.categories, leaf.shape), shape)
        return (index if leaf.start is None else index + leaf.start).astype(leaf.dtype)
    assert leaf.low is not None and leaf.high is not None
    narrow = (leaf.low > -WIDE) & (leaf.high < WIDE)
    value = rng.uniform(np.where(narrow, leaf.low, 0.0), np.where(narrow, leaf.high, 0.0), shape)
    value = np.clip(np.where(narrow, value, rng.standard_normal(shape)), leaf.low, leaf.high)
    return (np.rint(value) if leaf.dtype.kind in "iu" else value).astype(leaf.dtype)


def _numbers(shape: tuple[int, ...], dtype: Any) -> Leaf:
    """What has no bounds."""
    return Leaf("box", shape, np.dtype(dtype), low=np.full(shape, -np.inf), high=np.full(shape, np.inf))


def _as_sampled(leaf: Leaf) -> Leaf:
    """An action before it is taken into the env's units."""
    if leaf.kind == "box":
        return _numbers(leaf.shape, action_dtype(leaf))
    return dataclasses.replace(leaf, dtype=action_dtype(leaf), start=None)


def _torch_dtype(leaf: Leaf) -> torch.dtype:
    return torch.from_numpy(np.empty(0, leaf.dtype)).dtype


def _ports(leaves: dict[str, Tree]) -> list[dict[str, Any]]:
    """Inputs or outputs for JSON. ``path`` begins with what it is, e.g. "observation", and leads to the leaf in it."""
    return [
        {
            "name": name,
            "path": path,
            "kind": leaf.kind,
            "shape": ["batch", *leaf.shape],
            "dtype": str(leaf.dtype),
            "space": leaf.describe(),
        }
        for (name, leaf), path in zip(tree.named(leaves).items(), tree.paths(leaves), strict=True)
    ]


def _about(policy: Policy, sample: bool) -> dict[str, Any]:
    """Where the policy comes from."""
    config = policy.config
    about = {
        "format": FORMAT,
        "env": config.env,
        "env_args": config.env_args,
        "algorithm": config.algorithm,
        "step": policy.step,
        "actions": "sampled" if sample else "the most likely",
    }
    if sees_texts(policy.spec.observation):
        about["texts"] = {"words": WORDS, "buckets": BUCKETS}
    return about


def _write(out: Path, model: bytes, description: bytes) -> None:
    """Both files, each complete or absent; the description, which holds the checksum of the other, comes last."""
    contents = {out: model, out.with_suffix(".json"): description}
    fresh = {path: path.with_name(f".{path.name}") for path in contents}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            for path, data in contents.items():
                fresh[path].write_bytes(data)
            for path in contents:
                fresh[path].replace(path)
        finally:
            for path in fresh.values():
                path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}; --out names another place") from error
