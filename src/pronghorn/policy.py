"""A trained agent to call from one's own code."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pronghorn import build, tree
from pronghorn.acting.inference import Inference
from pronghorn.checkpoint import Loaded
from pronghorn.config import RunConfig
from pronghorn.envs import own
from pronghorn.envs.base import to_env_actions
from pronghorn.envs.stack import Stack
from pronghorn.envs.text import word_numbers
from pronghorn.networks.encoders import Inputs
from pronghorn.seeding import Domain, generator
from pronghorn.tree import Tree
from pronghorn.types import Leaf, UserError, action_dtype


class Policy:
    """A trained agent to call from one's own code, for one env or several at once. It keeps the core state between
    calls; ``reset`` begins an episode.

    ``inference`` holds the network, with the weights of ``step``.

    Args:
        config: of the run.
        loaded: a checkpoint of it.
        sample: draw actions from the policy instead of taking its mode.

    Raises:
        UserError: the checkpoint was made for other spaces or another network.
    """

    def __init__(self, config: RunConfig, loaded: Loaded, sample: bool = False) -> None:
        self.config = config
        self.spec = build.env_spec(self.config)
        self._shown, self._stacks = self.spec.observation, list[Stack]()
        if self.config.frame_stack > 1:  # whoever calls has single observations
            self._shown = build.env_spec(dataclasses.replace(self.config, frame_stack=1)).observation
        loaded.check_spec(self.spec)
        agent = build.agent(self.config, self.spec)
        weights, version = loaded.agent(agent.state_dict())
        self.step = loaded.step
        self.inference = Inference(agent, "sample" if sample else "mode")
        self.inference.load(weights, version)
        self._rng = generator(self.config.seed, Domain.EVALUATION_NOISE, 0)
        self.reset()

    def reset(self) -> None:
        """The next observation starts an episode, those of a batch one each; there may be more or fewer envs now."""
        self._first = True
        self._rows = 0

    def act(self, observation: Tree, reward: Any = 0.0, first: Any = False) -> Tree:
        """The action, in the env's own units, for one observation of the env; or for n at once, of n envs.

        The observations of n envs are stacked: [n, …] in every array (n texts in a list), and so are the actions. Row i
        is the same env in every call, and has a core state of its own. The first call after ``reset`` says how many
        there are.

        Args:
            observation: as the env gives it.
            reward: of the last action, or [n]; it matters where the agent was trained with ``last_action_and_reward``.
            first: whether the observation starts an episode, or [n] bools. After ``reset`` all do.

        Raises:
            UserError: an array has another shape than the env's space says.
        """
        batch, single = self._stacked(observation)
        rows = len(tree.leaves(batch)[0])
        agent = self.inference.agent
        if not self._rows:
            self._rows = rows
            if self.config.frame_stack > 1:
                self._stacks = [Stack(self._shown, self.config.frame_stack) for _ in range(rows)]
            self._core_state = tree.map(lambda tensor: tensor.numpy(), agent.initial_state(rows))
            self._last_action = tree.map(
                lambda leaf: np.zeros((rows, *leaf.shape), action_dtype(leaf)), self.spec.action
            )
        if rows != self._rows:
            raise UserError(f"{rows} observations where there were {self._rows} before; call reset() in between")
        starts = self._per_row("first", first, np.bool_) | self._first
        if self._stacks:
            shown = [
                stack(tree.map(lambda array, row=row: array[row], batch), bool(starts[row]))
                for row, stack in enumerate(self._stacks)
            ]
            batch = tree.map(lambda *frames: np.stack(frames), *shown)
        noise = agent.distribution.draw_noise(self._rng, (rows,))
        if agent.last_step is not None:
            batch = Inputs(batch, self._last_action, self._per_row("reward", reward, np.float32))
        choice = self.inference(batch, starts, self._core_state, noise)
        self._first, self._core_state, self._last_action = False, choice.core_state, choice.action
        actions = to_env_actions(self.spec.action, choice.action)
        return tree.map(lambda array: array[0], actions) if single else actions

    def _stacked(self, observation: Tree) -> tuple[Tree, bool]:
        """(arrays [n, …], whether it was one observation)."""

        def array(leaf: Leaf, value: Any) -> Any:
            if leaf.kind == "text":
                value = word_numbers(value) if isinstance(value, str) else [word_numbers(text) for text in value]
            return np.array(value, leaf.dtype)

        try:
            arrays = tree.map(array, self._shown, tree.conform(self._shown, observation))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is no observation of {self.spec.name}: {own.line(error)}") from error
        leaves = tree.named(self._shown)
        rows = None
        for (name, leaf), found in zip(leaves.items(), tree.leaves(arrays), strict=True):
            inner = found.ndim - len(leaf.shape)
            rows = found.shape[:inner] if rows is None else rows
            if found.shape != (*rows, *leaf.shape) or len(rows) > 1 or 0 in rows:
                where = f"observation/{name}".rstrip("/")
                raise UserError(
                    f"{where} has shape {found.shape}; it must be {leaf.shape}, or (n, ...) in every array for n envs"
                )
        return (arrays, False) if rows else (tree.map(lambda array: array[None], arrays), True)

    def _per_row(self, name: str, value: Any, dtype: Any) -> Any:
        array = np.asarray(value, dtype)
        if array.shape not in ((), (self._rows,)):
            raise UserError(f"{name} has shape {array.shape} for {self._rows} observations")
        return np.full(self._rows, array)
