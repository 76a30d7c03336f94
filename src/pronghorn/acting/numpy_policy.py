"""The policy of a feed-forward agent in NumPy: for the few rows of acting it takes a third of torch's time.

Torch's cost per call is in its dispatcher, not in the arithmetic, and grows when simulators have used the caches
meanwhile. The results equal the agent's to rounding, which the learner checks at the start of every run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pronghorn.networks.agent import Agent
from pronghorn.types import Leaf

Array = NDArray[np.float32]


class NumpyPolicy:
    """Reads the weights of ``agent`` where they are; ``refresh`` after they have changed.

    Only for agents that ``supports`` allows: one Box in, one Gaussian or categorical action out, and between them no
    mask and nothing but the streams.
    """

    @staticmethod
    def supports(agent: Agent) -> bool:
        """Whether the agent is of the kind that is worth it: see the class."""
        one_box = agent.encoder.size == agent.encoder.vector_size == getattr(agent.spec.observation, "size", -1)
        parts = agent.distribution.parts
        bare = isinstance(agent.spec.action, Leaf)  # in no Dict or Tuple
        one_action = bare and len(parts) == 1 and (parts[0].kind == "gaussian" or parts[0].size == 1)
        only_streams = not agent.recurrent and agent.torso is None and agent.last_step is None
        return one_box and one_action and only_streams and not agent.masked

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._gaussian = agent.distribution.parts[0].kind == "gaussian"
        self._shape: tuple[int, ...] = agent.spec.action.shape
        self._relu = agent.policy.relu
        self._tanh_mean = agent.tanh_mean
        layers = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in agent.policy.linears]
        *self._hidden, self._last = layers
        self._normaliser: tuple[Array, Array, float] | None = None
        if agent.encoder.normaliser is not None:
            normaliser = agent.encoder.normaliser
            self._normaliser = normaliser.shift.numpy(), normaliser.scale.numpy(), normaliser.clip
        self.refresh()

    def refresh(self) -> None:
        """Takes over a changed standard deviation; everything else is read in place."""
        if self._gaussian:
            self._log_std: Array = self._agent.log_std().detach().numpy()
            self._std: Array = np.exp(self._log_std)

    def parameters(self, observation: NDArray[Any]) -> Array:
        """Distribution parameters [n, P] for observations [n, …]."""
        x: Array = observation.reshape(len(observation), -1).astype(np.float32)
        if self._normaliser is not None:
            shift, scale, clip = self._normaliser
            x -= shift
            x *= scale
            np.minimum(np.maximum(x, -clip, out=x), clip, out=x)
        for weight, bias in self._hidden:
            x = x @ weight
            x += bias
            if self._relu:
                np.maximum(x, 0.0, out=x)
            else:
                np.tanh(x, out=x)
        weight, bias = self._last
        x = x @ weight
        x += bias
        if not self._gaussian:
            return x
        size = x.shape[1]
        parameters = np.empty((len(x), 2 * size), np.float32)
        parameters[:, :size] = np.tanh(x, out=x) if self._tanh_mean else x
        parameters[:, size:] = self._log_std
        return parameters

    def action(self, parameters: Array, noise: Array | None) -> NDArray[Any]:
        """The sample that ``noise`` [n, noise_size] selects, or without it the likeliest: [n, …] as sampled."""
        if not self._gaussian:
            index: NDArray[np.int64] = (parameters if noise is None else parameters + noise).argmax(1)
            return index.reshape(-1, *self._shape)
        mean = parameters[:, : len(self._log_std)]
        action: Array = mean.copy() if noise is None else mean + self._std * noise
        return action.reshape(-1, *self._shape)
