"""What an algorithm is to the learner: two pure functions and the way it walks over the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from torch import Tensor

from pronghorn.networks.agent import AgentOutput
from pronghorn.tree import Tree
from pronghorn.types import Metrics, Trajectory

BoundAgent: TypeAlias = Callable[..., AgentOutput]
"""``Agent.forward`` with some parameters bound: ``agent(observation, first, core_state, policy=…, value=…)``."""

Hyperparameters: TypeAlias = dict[str, Tensor]
"""Whatever can change during a run, as 0-d tensors, so that a compiled update sees the change."""


class Walk(NamedTuple):
    """How gradient steps walk over a batch.

    ``columns``: minibatches are whole columns with their rows in order; otherwise single rows, shuffled.
    ``recompute``: targets are computed anew before every pass.
    """

    epochs: int
    minibatches: int
    columns: bool
    recompute: bool

    @property
    def one_step(self) -> bool:
        """Whether a batch is used for a single gradient step."""
        return self.epochs == self.minibatches == 1


class Rows(NamedTuple):
    """What a loss sees of a trajectory: leading dimensions [T, B] in a walk over columns, else [N].

    ``core_state`` is [B, …], or () in a walk over single rows.
    """

    observation: Tree
    first: Tensor
    action: Tree
    behaviour: Tensor
    behaviour_log_prob: Tensor
    valid: Tensor
    core_state: Tree


class Targets(NamedTuple):
    """Constants of the loss, [T, B]: value targets and advantages in units of scaled rewards, and the values they
    were computed with."""

    vs: Tensor
    advantages: Tensor
    values: Tensor


class Algorithm(Protocol):
    """Pure; what must be remembered between updates is a dict of plain numbers that goes in and comes out."""

    walk: Walk

    def initial_state(self) -> dict[str, float]:
        """Numbers that adapt from update to update."""

    def hyperparameters(self, state: dict[str, float], fraction_done: float) -> dict[str, float]:
        """The numbers of the next update by name, ``fraction_done`` of the run in [0, 1]; they reach ``loss`` as 0-d
        tensors."""

    def targets(self, agent: BoundAgent, batch: Trajectory, reward_scale: Tensor) -> Targets:
        """Computed without gradients; ``reward_scale`` divides the rewards."""

    def loss(
        self, agent: BoundAgent, rows: Rows, targets: Targets, hyperparameters: Hyperparameters
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(0-d loss, 0-d metrics)."""

    def adapt(self, state: dict[str, float], metrics: Metrics) -> dict[str, float]:
        """The state after an update that ended with ``metrics``."""

    def reward_statistics(self, batch: Trajectory, targets: Targets, reward_scale: Tensor) -> Any:
        """Raw numbers [T, B] whose standard deviation becomes the reward scale, or None."""


def scaling_numbers(
    scaling: Literal["returns", "rewards", "none"], batch: Trajectory, targets: Targets, reward_scale: Tensor
) -> Tensor | None:
    """What rewards are scaled by: [T, B] unscaled value targets, or single rewards, or None."""
    if scaling == "returns":
        return targets.vs * reward_scale
    rewards: Tensor = batch.reward
    return rewards if scaling == "rewards" else None
