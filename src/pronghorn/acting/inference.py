"""The batched forward pass of acting, for any subset of the envs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pronghorn import tree
from pronghorn.acting.numpy_policy import NumpyPolicy
from pronghorn.networks.agent import Agent
from pronghorn.tree import Tree
from pronghorn.types import BoolArray, IntArray


class Choice(NamedTuple):
    """What was chosen for n envs: ``action`` [n, …] as sampled, ``behaviour`` [n, P], the new core state. NumPy.
    ``version`` is that of the weights."""

    action: Tree
    behaviour: NDArray[np.float32]
    core_state: Tree
    version: int


class Place(NamedTuple):
    """Where n observations lie: of these envs of the actor, in these columns and rows of its memory; [n] each."""

    envs: IntArray
    columns: IntArray
    rows: IntArray


class Chooser(Protocol):
    """Who chooses actions for an actor: an ``Inference`` in its process, or a server in another."""

    def __call__(
        self, observation: Tree, first: BoolArray, core_state: Tree, noise: NDArray[np.float32], place: Place
    ) -> Choice:
        """For n envs; ``observation`` [n, …] as ``Agent.seen`` says, which also lies at ``place``, ``noise``
        [n, noise_size] decides the sample."""


class Inference:
    """An agent that only acts, with weights of its own.

    Args:
        agent: its weights change only through ``load``.
        mode: "sample" from the policy, its "mode" (greedy), or "random" legal actions.
        device: where it acts.
    """

    def __init__(self, agent: Agent, mode: Literal["sample", "mode", "random"] = "sample", device: str = "cpu") -> None:
        self._device = torch.device(device)
        self.agent = agent.to(self._device)
        self.mode = mode
        self.version = -1
        self._numpy = NumpyPolicy(agent) if self._device.type == "cpu" and NumpyPolicy.supports(agent) else None

    def load(self, state: dict[str, Any], version: int) -> None:
        """Takes over published weights and statistics."""
        self.agent.load_state_dict(state)
        self.version = version
        if self._numpy is not None:
            self._numpy.refresh()

    def __call__(
        self,
        observation: Tree,
        first: BoolArray,
        core_state: Tree,
        noise: NDArray[np.float32],
        place: Place | None = None,
    ) -> Choice:
        """For a batch of n envs: see ``Chooser``. All that it needs is in the arguments, wherever else it may lie."""
        if self._numpy is None or self.mode == "random":
            return self._choose(observation, first, core_state, noise)
        parameters = self._numpy.parameters(observation)
        action = self._numpy.action(parameters, noise if self.mode == "sample" else None)
        return Choice(action, parameters, (), self.version)

    @torch.inference_mode()
    def _choose(self, observation: Tree, first: BoolArray, core_state: Tree, noise: NDArray[np.float32]) -> Choice:
        agent = self.agent
        observed = tree.map(self._there, observation)
        state = tree.map(self._there, core_state) if agent.recurrent else ()
        parameters, new_state = agent.step(observed, self._there(first), state)
        if self.mode == "random":
            parameters = agent.random_parameters(observed, len(first))
        if self.mode == "mode":
            action = agent.distribution.mode(parameters)
        else:
            action = agent.distribution.sample(parameters, self._there(noise))
        return Choice(
            tree.map(lambda tensor: tensor.cpu().numpy(), action),
            parameters.cpu().numpy(),
            tree.map(lambda tensor: tensor.cpu().numpy(), new_state) if agent.recurrent else (),
            self.version,
        )

    def _there(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def own_stream(self) -> AbstractContextManager[Any]:
        """On a GPU, what is computed within does not queue behind other work of this process."""
        if self._device.type != "cuda":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def log_prob(self, behaviour: NDArray[np.float32], action: Tree) -> NDArray[np.float32]:
        """Log-probabilities [...] of ``action`` [..., …] under the distributions ``behaviour`` [..., P]."""
        actions = tree.map(torch.from_numpy, action)
        found: NDArray[np.float32] = self.agent.distribution.log_prob(torch.from_numpy(behaviour), actions).numpy()
        return found
