"""The batched forward pass of acting, for any subset of the envs."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pronghorn import tree
from pronghorn.acting.numpy_policy import NumpyPolicy
from pronghorn.networks.agent import Agent
from pronghorn.tree import Tree
from pronghorn.types import BoolArray


class Choice(NamedTuple):
    """What was chosen for n envs: ``action`` [n, …] as sampled, ``behaviour`` [n, P], the new core state. NumPy."""

    action: Tree
    behaviour: NDArray[np.float32]
    core_state: Tree


class Inference:
    """An agent that only acts, with weights of its own.

    Args:
        agent: acts on the CPU; its weights change only through ``load``.
        mode: "sample" from the policy, its "mode" (greedy), or "random" legal actions.
    """

    def __init__(self, agent: Agent, mode: Literal["sample", "mode", "random"] = "sample") -> None:
        self.agent = agent
        self.mode = mode
        self.version = -1
        self._numpy = NumpyPolicy(agent) if NumpyPolicy.supports(agent) else None

    def load(self, state: dict[str, Any], version: int) -> None:
        """Takes over published weights and statistics."""
        self.agent.load_state_dict(state)
        self.version = version
        if self._numpy is not None:
            self._numpy.refresh()

    def __call__(self, observation: Tree, first: BoolArray, core_state: Tree, noise: NDArray[np.float32]) -> Choice:
        """For a batch of n envs; ``observation`` [n, …] as ``Agent.seen`` says, ``noise`` [n, noise_size] decides the
        sample."""
        if self._numpy is None or self.mode == "random":
            return self._choose(observation, first, core_state, noise)
        parameters = self._numpy.parameters(observation)
        return Choice(self._numpy.action(parameters, noise if self.mode == "sample" else None), parameters, ())

    @torch.inference_mode()
    def _choose(self, observation: Tree, first: BoolArray, core_state: Tree, noise: NDArray[np.float32]) -> Choice:
        agent = self.agent
        observed = tree.map(torch.from_numpy, observation)
        state = tree.map(torch.from_numpy, core_state) if agent.recurrent else ()
        parameters, new_state = agent.step(observed, torch.from_numpy(first), state)
        if self.mode == "random":
            parameters = agent.random_parameters(observed, len(first))
        if self.mode == "mode":
            action = agent.distribution.mode(parameters)
        else:
            action = agent.distribution.sample(parameters, torch.from_numpy(noise))
        return Choice(
            tree.map(lambda tensor: tensor.numpy(), action),
            parameters.numpy(),
            tree.map(lambda tensor: tensor.numpy(), new_state) if agent.recurrent else (),
        )

    @torch.inference_mode()
    def log_prob(self, behaviour: NDArray[np.float32], action: Tree) -> NDArray[np.float32]:
        """Log-probabilities [...] of ``action`` [..., …] under the distributions ``behaviour`` [..., P]."""
        actions = tree.map(torch.from_numpy, action)
        found: NDArray[np.float32] = self.agent.distribution.log_prob(torch.from_numpy(behaviour), actions).numpy()
        return found
