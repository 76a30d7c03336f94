"""The one update: gradients → reduce → finite check and norm clip → optimiser, then statistics.

The algorithm gives ``targets`` and ``loss``; nothing here names one. Parameters live in one flat vector and every
step is a pure function of it, so a bad gradient leaves everything as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.func import functional_call

from pronghorn import tree
from pronghorn.algorithms.base import Algorithm, BoundAgent, Hyperparameters, Rows, Targets
from pronghorn.config import OptimiserConfig
from pronghorn.learning import compiler
from pronghorn.learning.optimisers import OPTIMISERS, clip_by_global_norm
from pronghorn.learning.schedules import SCHEDULES
from pronghorn.learning.staging import Staged, Staging
from pronghorn.networks.agent import Agent, AgentOutput
from pronghorn.ops.losses import explained_variance, weighted_mean
from pronghorn.ops.running import batch_moments
from pronghorn.seeding import Domain, stream_seed
from pronghorn.tree import Tree
from pronghorn.types import Metrics, Trajectory

Reduce: TypeAlias = Callable[[Tensor], Tensor]
"""Combines the flat gradients of several learners, e.g. an all-reduce mean."""

TOLERANCE = 1e-5
CROSS_DEVICE_TOLERANCE = 1e-3
HALF_TOLERANCE = 5e-2
"""Largest difference of actor's and learner's log-probabilities, relative to max(1, |log-prob|)."""

LOOKED_AT = 4
"""At most so many columns are looked at again to say how far a single step moved the policy."""

EVERY = slice(None)


class NonFiniteError(RuntimeError):
    """An observation, reward or gradient is not finite. Parameters, optimiser and statistics are untouched."""


class Learner:
    """Args:
    agent: the learner's own; its parameters are the start.
    algorithm: targets, loss and walk.
    optimiser: which, and its settings.
    run_seed: names the shuffling of minibatches.
    device: where everything is computed.
    half: whether the network computes in bfloat16, where torch deems that safe, with float32 weights.
    reduce: combines gradients with those of other learners; None for the only learner.
    compiled: whether the update is compiled, to one graph without ``reduce``, else to two.
    threads: of the update alone; afterwards torch has as many as before.
    """

    def __init__(
        self,
        agent: Agent,
        algorithm: Algorithm,
        optimiser: OptimiserConfig,
        *,
        run_seed: int,
        device: str = "cpu",
        half: bool = False,
        reduce: Reduce | None = None,
        compiled: bool = False,
        threads: int = 1,
    ) -> None:
        self.agent = agent.to(device).requires_grad_(False)
        self.algorithm = algorithm
        self.version = 0
        self.algorithm_state = algorithm.initial_state()
        self._device = torch.device(device)
        self.staging = Staging(self._device)
        self._half = half
        self._optimiser = optimiser
        self._run_seed = run_seed
        self._threads = threads
        self._shapes = {name: value.shape for name, value in agent.named_parameters()}
        self._flat = torch.cat([value.detach().flatten() for value in agent.parameters()])
        start, self._optimise = OPTIMISERS[optimiser.optimiser_name]
        self._optimiser_state = start(self._flat)
        self._checked = False
        prepare = compiler.compiled if compiled else _as_it_is
        differentiate = self._gradient_at_once if algorithm.walk.one_step else self._gradient
        gradient, apply = prepare(differentiate), prepare(self._apply)

        def reduced_step(flat: Tensor, state: dict[str, Tensor], *data: Any) -> Any:
            assert reduce is not None
            found, *rest = gradient(flat, *data)
            return *apply(flat, state, reduce(found), data[-1]), *rest

        def whole_step(flat: Tensor, state: dict[str, Tensor], *data: Any) -> Any:
            found, *rest = differentiate(flat, *data)
            return *self._apply(flat, state, found, data[-1]), *rest

        self._step = prepare(whole_step) if reduce is None else reduced_step
        self._targets = prepare(self._compute_targets)

    def observe(self, batch: Trajectory) -> None:
        """Takes statistics alone from a batch of random actions: those of version 0."""
        batch = self._on_device(batch)
        self._check_finite(batch)
        one = torch.ones((), device=self._device)

        def nothing_expected(observation: Tree, first: Tensor, core_state: Tree, **options: Any) -> AgentOutput:
            parameters = torch.cat((batch.behaviour, batch.behaviour[-1:]))
            return AgentOutput(parameters, torch.zeros_like(first, dtype=torch.float32), core_state)

        self._update_statistics(batch, self.algorithm.targets(nothing_expected, batch, one), one)

    def update(self, batch: Trajectory | Staged, fraction_done: float, diagnose: bool = True) -> Metrics:
        """Learns from a batch, of arrays or from ``staging``, and raises the version by one.

        ``fraction_done`` of the run, in [0, 1], sets the rate. What takes a pass of its own to know, how far the update
        moved the policy, is left out without ``diagnose``, unless the algorithm adapts to it.

        Raises:
            NonFiniteError: naming key, env and row; nothing has changed then.
            RuntimeError: the first batch was not made by the weights of this learner.
        """
        batch = self._on_device(batch)
        self._check_finite(batch)
        differences = {} if self._checked else {"check/log_prob_difference": self._check_behaviour(batch)}
        rate = SCHEDULES[self._optimiser.schedule](self._optimiser.learning_rate, fraction_done)
        numbers = {"learning_rate": rate, **self.algorithm.hyperparameters(self.algorithm_state, fraction_done)}
        flat, state, targets, collected, finite = self._walk(batch, self._tensors(numbers))
        if not bool(torch.stack(finite).all()):
            raise NonFiniteError(
                f"a gradient of update {self.version + 1} is not finite; the weights are as they were before it"
            )
        self._flat, self._optimiser_state = flat, state
        metrics = {name: float(torch.stack([item[name] for item in collected]).mean()) for name in collected[0]}
        if diagnose or self.algorithm_state:
            metrics |= self._diagnose(batch, targets)
        self._update_statistics(batch, targets, self.agent.reward_scale.scale.clone())
        self.algorithm_state = self.algorithm.adapt(self.algorithm_state, metrics)
        self.version += 1
        return {**metrics, **{f"hyper/{name}": value for name, value in numbers.items()}, **differences}

    def prepare(self, batch: Trajectory) -> None:
        """Compiles for batches of this shape, changing nothing."""
        numbers = {"learning_rate": 0.0, **self.algorithm.hyperparameters(self.algorithm_state, 0.0)}
        self._walk(self._on_device(batch), self._tensors(numbers), most=1)

    def weights(self) -> dict[str, Tensor]:
        """Parameters and statistics, one state dict; never changed afterwards."""
        buffers = {name: value.clone() for name, value in self.agent.named_buffers()}
        return {**self._views(self._flat), **buffers}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, numbers) for a checkpoint."""
        tensors = {f"agent/{name}": value for name, value in self.weights().items()}
        tensors |= {f"optimiser/{name}": value for name, value in self._optimiser_state.items()}
        return tensors, {"version": self.version, "algorithm": self.algorithm_state}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """The inverse of ``state``."""
        self.agent.load_state_dict(tree.below(tensors, "agent"))
        self._flat = torch.cat([value.detach().flatten() for value in self.agent.parameters()])
        self._optimiser_state = {name: tensors[f"optimiser/{name}"].to(self._device) for name in self._optimiser_state}
        self.version = int(numbers["version"])
        self.algorithm_state = dict(numbers["algorithm"])

    def _walk(self, batch: Trajectory, hyperparameters: Hyperparameters, most: int | None = None) -> Any:
        batch = self.agent.seen(batch)
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        flat, state = self._flat, self._optimiser_state
        if self.algorithm.walk.one_step:
            scale = self.agent.reward_scale.scale
            flat, state, ok, metrics, targets = self._step(flat, state, batch, scale, hyperparameters)
            torch.set_num_threads(threads)
            return flat, state, targets, [metrics], [ok]
        rows, collected, finite, targets, walked = None, [], [], None, None
        for epoch, index in islice(self._indices(batch), most):
            if targets is None or (self.algorithm.walk.recompute and epoch != walked):
                with torch.no_grad():
                    targets = self._targets(flat, batch, self.agent.reward_scale.scale)
            walked = epoch
            if rows is None:
                rows = self._rows(batch)
            flat, state, ok, metrics = self._step(flat, state, rows, self._fold(targets), index, hyperparameters)
            collected.append(metrics)
            finite.append(ok)
        torch.set_num_threads(threads)
        return flat, state, targets, collected, finite

    def _indices(self, batch: Trajectory) -> Iterator[tuple[int, Tensor | None]]:
        """(pass, which columns or rows) of each gradient step; None for all. A remainder is spread by dropping none:
        minibatches differ in size by at most one."""
        walk = self.algorithm.walk
        rows, columns = batch.reward.shape
        count = columns if walk.columns else rows * columns
        generator = torch.Generator().manual_seed(stream_seed(self._run_seed, Domain.MINIBATCHES, self.version))
        for epoch in range(walk.epochs):
            if walk.minibatches == 1:
                yield epoch, None
                continue
            order = torch.randperm(count, generator=generator).to(self._device)
            for part in order.tensor_split(min(walk.minibatches, count)):
                yield epoch, part

    def _rows(self, batch: Trajectory) -> Rows:
        observation, first = _acted_on(batch)
        selected = Rows(
            observation,
            first,
            batch.action,
            batch.behaviour,
            batch.behaviour_log_prob,
            batch.valid,
            (),
        )
        folded: Rows = self._fold(selected)
        return folded._replace(core_state=batch.core_state if self.algorithm.walk.columns else ())

    def _fold(self, values: Any) -> Any:
        """[T, B, …] → [N, …] where single rows are walked over."""
        if self.algorithm.walk.columns:
            return values
        return tree.map(lambda array: array.flatten(0, 1), values)

    def _select(self, rows: Rows, targets: Targets, index: Tensor | None) -> tuple[Rows, Targets]:
        if index is None:
            return rows, targets
        if not self.algorithm.walk.columns:
            return _gather(rows, 0, index), _gather(targets, 0, index)
        chosen = _gather(rows._replace(core_state=()), 1, index)
        core_state = _gather(rows.core_state, 0, index)
        return chosen._replace(core_state=core_state), _gather(targets, 1, index)

    def _compute_targets(self, flat: Tensor, batch: Trajectory, reward_scale: Tensor) -> Targets:
        return self.algorithm.targets(self._bind(self._views(flat)), batch, reward_scale)

    def _gradient(
        self, flat: Tensor, rows: Rows, targets: Targets, index: Tensor | None, hyperparameters: Hyperparameters
    ) -> tuple[Tensor, dict[str, Tensor]]:
        rows, targets = self._select(rows, targets, index)
        parameters = self._leaves(flat)
        loss, metrics = self.algorithm.loss(self._bind(parameters), rows, targets, hyperparameters)
        return _flat_gradient(loss, parameters), _detached(metrics)

    def _gradient_at_once(
        self, flat: Tensor, batch: Trajectory, reward_scale: Tensor, hyperparameters: Hyperparameters
    ) -> tuple[Tensor, dict[str, Tensor], Targets]:
        """Of a walk of one step: the same weights give targets and loss, so one forward pass answers for both."""
        parameters = self._leaves(flat)
        output = self._bind(parameters)(batch.observation, batch.first, batch.core_state)
        constant = AgentOutput(output.parameters.detach(), output.values.detach(), ())
        targets = self.algorithm.targets(lambda *_, **__: constant, batch, reward_scale)
        acted = AgentOutput(self._fold(output.parameters[:-1]), self._fold(output.values[:-1]), ())
        loss, metrics = self.algorithm.loss(
            lambda *_, **__: acted, self._rows(batch), self._fold(targets), hyperparameters
        )
        return _flat_gradient(loss, parameters), _detached(metrics), targets

    def _leaves(self, flat: Tensor) -> dict[str, Tensor]:
        return {name: value.detach().requires_grad_() for name, value in self._views(flat).items()}

    def _apply(
        self, flat: Tensor, state: dict[str, Tensor], gradient: Tensor, hyperparameters: Hyperparameters
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        gradient, norm = clip_by_global_norm(gradient, self._optimiser.max_gradient_norm)
        finite = torch.isfinite(norm)
        new_flat, new_state = self._optimise(
            flat, gradient, state, hyperparameters["learning_rate"], epsilon=self._optimiser.epsilon
        )
        kept = {name: torch.where(finite, new_state[name], state[name]) for name in state}
        return torch.where(finite, new_flat, flat), kept, finite

    def _bind(self, parameters: dict[str, Tensor]) -> BoundAgent:
        def bound(*args: Any, **options: Any) -> AgentOutput:
            if not self._half:
                found: AgentOutput = functional_call(self.agent, parameters, args, options)
                return found
            with torch.autocast(self._device.type, torch.bfloat16):
                found = functional_call(self.agent, parameters, args, options)
            return AgentOutput(found.parameters.float(), found.values.float(), found.core_state)

        return bound

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        parts = torch.split(flat, sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def _policy(self, batch: Trajectory, columns: slice = EVERY) -> Tensor:
        """Distribution parameters [T, B, P] of the newest weights for the rows of a batch, or of some columns."""
        observation, first = tree.map(lambda array: array[:, columns], _acted_on(self.agent.seen(batch)))
        core_state = tree.map(lambda array: array[columns], batch.core_state)
        return self._bind(self._views(self._flat))(observation, first, core_state, value=False).parameters

    @torch.no_grad()
    def _diagnose(self, batch: Trajectory, targets: Targets) -> Metrics:
        """How far the whole update moved the policy, and how well the values of its start explain the targets.

        After a single step a look at all rows would cost a third of it, so the policy is looked at in a few columns.
        """
        every = -(-batch.reward.shape[1] // LOOKED_AT) if self.algorithm.walk.one_step else 1
        columns = slice(None, None, every)
        parameters = self._policy(batch, columns)
        distribution = self.agent.distribution
        weights = batch.fresh.to(torch.float32)  # old rows would tell how far it has come since
        some = weights[:, columns]
        return {
            "policy/kl": float(weighted_mean(distribution.kl(batch.behaviour[:, columns], parameters), some)),
            "policy/entropy": float(weighted_mean(distribution.entropy(parameters), some)),
            "value/explained_variance": float(explained_variance(targets.values, targets.vs, weights)),
        }

    @torch.no_grad()
    def _check_behaviour(self, batch: Trajectory) -> float:
        """The largest difference between the actor's log-probabilities and this learner's, on fresh rows."""
        log_prob = self.agent.distribution.log_prob(self._policy(batch), batch.action)
        relative = (log_prob - batch.behaviour_log_prob).abs() / log_prob.abs().clamp(min=1.0)
        own = batch.policy_version == self.version
        if self.agent.recurrent:  # rows of older weights leave a state that these do not come to
            own = own.cumprod(0).bool()
        counted = batch.fresh & own
        difference = float(torch.where(counted, relative, 0.0).max())
        tolerance = TOLERANCE if self._device.type == "cpu" else CROSS_DEVICE_TOLERANCE
        if self._half:
            tolerance = HALF_TOLERANCE
        if not difference <= tolerance:
            raise RuntimeError(
                f"actor and learner disagree: log-probabilities of the first batch differ by {difference:.2e}, more "
                f"than {tolerance:.0e}; they do not hold the same weights, statistics or core state"
            )
        self._checked = True
        return difference

    def _check_finite(self, batch: Trajectory) -> None:
        keys = {f"observation/{name}".rstrip("/"): value for name, value in tree.named(batch.observation).items()}
        for name, value in {**keys, "reward": batch.reward}.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                bad = (~torch.isfinite(value)).nonzero()[0].tolist()
                raise NonFiniteError(
                    f"{name} of env {int(batch.env[bad[1]])} is not finite in row {bad[0]} of the batch for update "
                    f"{self.version + 1}; nothing was learnt from it"
                )

    @torch.no_grad()
    def _update_statistics(self, batch: Trajectory, targets: Targets, reward_scale: Tensor) -> None:
        observation, _ = _acted_on(batch)
        self.agent.encoder.observe(observation, batch.fresh)
        numbers = self.algorithm.reward_statistics(batch, targets, reward_scale)
        if numbers is not None:
            self.agent.reward_scale.update(batch_moments(numbers, batch.fresh))

    def _on_device(self, batch: Trajectory | Staged) -> Trajectory:
        return self.staging.finish(batch if isinstance(batch, Staged) else self.staging.begin(batch))

    def _tensors(self, numbers: dict[str, float]) -> Hyperparameters:
        return {name: torch.tensor(value, dtype=torch.float32, device=self._device) for name, value in numbers.items()}


def _acted_on(batch: Trajectory) -> tuple[Tree, Tensor]:
    """``observation`` and ``first`` of the T rows that were acted on, without the last, which is only looked at."""
    rows = batch.reward.shape[0]
    return tree.map(lambda array: array[:rows], batch.observation), batch.first[:rows]


def _gather(values: Any, dim: int, index: Tensor) -> Any:
    # Of images this is many times faster than values[index].
    return tree.map(lambda array: array.index_select(dim, index), values)


def _flat_gradient(loss: Tensor, parameters: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in torch.autograd.grad(loss, list(parameters.values()))])


def _detached(metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in metrics.items()}


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
