"""From a configuration to the parts of a run: the only tables from names to constructors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from pronghorn import tree
from pronghorn.acting.actor import Actor
from pronghorn.acting.inference import Inference
from pronghorn.acting.server import Client, Desk, DeskFds, InferenceServer, desk_layout
from pronghorn.algorithms.base import Algorithm
from pronghorn.algorithms.impala import Impala
from pronghorn.algorithms.ppo import PPO
from pronghorn.config import LOSSES, ImpalaConfig, PPOConfig, RunConfig
from pronghorn.envs import own
from pronghorn.envs.ale import AtariOptions
from pronghorn.envs.base import EnvFactory
from pronghorn.envs.gymnasium import env_factory
from pronghorn.evaluation import Evaluator
from pronghorn.learning.learner import Learner
from pronghorn.memory.replay import ReplayBuffer
from pronghorn.memory.rollout import RolloutMemory
from pronghorn.memory.slots import SharedColumns, slots_layout
from pronghorn.networks.agent import Agent
from pronghorn.processes.preflight import Needs
from pronghorn.processes.shared import BLOCK_FDS, mapped
from pronghorn.processes.supervise import Incident, Supervisor, Watchdog
from pronghorn.processes.wake import WAKE_FDS
from pronghorn.runners.asynchronous import ActorPlan, RemoteActors
from pronghorn.runners.replay import ReplayingCollector
from pronghorn.runners.sync import Collector
from pronghorn.seeding import Domain, stream_seed
from pronghorn.telemetry.timers import PhaseTimers
from pronghorn.transport.base import WeightsIn
from pronghorn.transport.shared import SharedWeights, weights_layout
from pronghorn.types import EnvSpec, Trajectory, UserError, column_slots
from pronghorn.vec.base import BatchedEnv, Failed, Timeouts
from pronghorn.vec.engines import make_native, native_spec
from pronghorn.vec.layout import look_at, make_vec
from pronghorn.vec.native import unwatched
from pronghorn.vec.pool import footprint


def _ppo(config: RunConfig, agent: Agent) -> Algorithm:
    assert isinstance(config.loss, PPOConfig)
    return PPO(config.loss, agent.distribution, agent.recurrent, corrected=config.lags)


def _impala(config: RunConfig, agent: Agent) -> Algorithm:
    assert isinstance(config.loss, ImpalaConfig)
    return Impala(config.loss, agent.distribution)


ALGORITHMS: dict[str, Callable[[RunConfig, Agent], Algorithm]] = {
    "ppo": _ppo,
    "batchppo": _ppo,
    "impala": _impala,
    "a2c": _impala,
}
"""By name of the algorithm; BatchPPO is PPO with other settings, A2C is IMPALA where nothing is corrected."""

_BUILT_IN = tuple(ALGORITHMS)


def register_algorithm(
    name: str, options: type[PPOConfig] | type[ImpalaConfig], make: Callable[[RunConfig, Agent], Algorithm]
) -> None:
    """Adds an algorithm. ``options`` is a dataclass derived from that of PPO or of IMPALA, which have what the rest of
    the system reads; ``make(config, agent)`` is called once for each learner, with ``config.loss`` of that class.

    Raises:
        UserError: ``name`` is one of ours or has a hyphen, or ``options`` is not so derived.
    """
    if name in _BUILT_IN or not name or "-" in name:
        raise UserError(
            f"an algorithm cannot be registered as {name!r}; use a name without '-' that is not one of ours"
        )
    if not issubclass(options, PPOConfig | ImpalaConfig):
        raise UserError(f"the options of {name} must be derived from PPOConfig or ImpalaConfig")
    LOSSES[name], ALGORITHMS[name] = options, make


EVALUATION_UNROLL = 64
"""Rows of evaluation's columns: short, so that little is played beyond the last episode."""

OWN_BYTES, COMPILER_BYTES = 50_000_000, 200_000_000
"""That this process grows by once it has torch and an env loaded, and if it compiles: estimates, from measurements."""

COPIES_OF_WEIGHTS = 8
"""The learner's, their gradients and two moments; the actor's, the evaluator's, those published, a checkpoint's."""

OWN_FILES = 2
"""``metrics.jsonl`` and ``events.jsonl``; TensorBoard opens its file only to write."""


def vec(
    config: RunConfig,
    domain: Domain,
    num_envs: int | None = None,
    supervisor: Supervisor | None = None,
    watchdog: Watchdog | None = None,
    first_index: int = 0,
) -> BatchedEnv:
    """The envs of ``domain``: those of the config, or ``num_envs`` of them in one group, from ``first_index`` on.

    ``supervisor`` decides whether what fails is started again, ``watchdog`` looks after envs that run in this process.
    """
    count = num_envs or config.vec.num_envs
    groups, ready = (config.vec.groups, config.vec.ready_envs) if num_envs is None else (1, None)
    if config.vec.layout == "native":
        watch = unwatched if watchdog is None else watchdog.watch
        threads = config.vec.workers
        return make_native(
            config.env, config.env_args, count, config.seed, domain, groups, ready, first_index, watch, threads
        )
    return make_vec(
        [one_env(config)] * count,
        layout="pool" if config.vec.layout == "pool" else "serial",
        workers=min(config.vec.workers or 1, count),
        run_seed=config.seed,
        domain=domain,
        groups=groups,
        timeouts=timeouts(config),
        first_index=first_index,
        supervisor=supervisor,
        notes=None if watchdog is None else watchdog.note,
        ready=ready,
    )


def one_env(config: RunConfig) -> EnvFactory:
    """What makes one of the config's envs, unless they are stepped by an engine."""
    return env_factory(config.env, config.env_args, config.imports, config.frame_stack)


def timeouts(config: RunConfig) -> Timeouts:
    """Of the phases of an env."""
    return Timeouts(**(asdict(Timeouts()) | config.timeouts))


def env_spec(config: RunConfig, watchdog: Watchdog | None = None) -> EnvSpec:
    """Of the config's env, of which one is made for it and closed again; ``watchdog`` looks after it.

    Raises:
        EnvError, UserError: it cannot be made.
    """
    if config.vec.layout == "native":
        return native_spec(config.env, config.env_args, unwatched if watchdog is None else watchdog.watch)
    return look_at(one_env(config), None if watchdog is None else watchdog.note)


def env_options(config: RunConfig) -> list[str]:
    """What a user should know about how the env is played, a line each."""
    if config.env.startswith("ALE/"):
        return [AtariOptions.of(config.env_args).describe()]
    return []


def agent(config: RunConfig, spec: EnvSpec) -> Agent:
    """An agent with the initial weights of the run."""
    return Agent(spec, config.network, stream_seed(config.seed, Domain.PARAMETERS))


def learner(config: RunConfig, spec: EnvSpec) -> Learner:
    """The learner with its own agent, on the device of the config."""
    learning = agent(config, spec)
    return Learner(
        learning,
        ALGORITHMS[config.algorithm](config, learning),
        config.optimiser,
        run_seed=config.seed,
        device=config.device,
        half=config.precision == "bfloat16",
        compiled=bool(config.compile),
        threads=config.threads or 1,
    )


def actor(config: RunConfig, envs: BatchedEnv, timers: PhaseTimers) -> Actor:
    """The training actor with its memory: one column per env, or enough for a batch of whole episodes."""
    acting = agent(config, envs.spec)
    episodes = config.loss.episodes_per_update
    memory = RolloutMemory(
        _slots(acting, envs.spec, config.loss.unroll_length),
        columns=range(_columns(envs, config.columns_per_update, in_step=episodes is None)),
        batch_size=config.columns_per_update,
        sort_by_env=episodes is None,
    )
    return Actor(envs, memory, Inference(acting), config.seed, whole_episodes=episodes is not None, timers=timers)


def remote_actors(
    config: RunConfig,
    spec: EnvSpec,
    weights: SharedWeights,
    supervisor: Supervisor,
    warn: Callable[[str], None],
) -> tuple[RemoteActors, Callable[[], None]]:
    """The actor processes of the config (not started), and what ends them."""
    acting = agent(config, spec)
    slots = _slots(acting, spec, config.loss.unroll_length)
    ring = SharedColumns(slots, ring_columns(config))
    batch_size = config.columns_per_update
    memory = RolloutMemory(slots, (), batch_size, sort_by_env=False, storage=ring.storage)
    fds, desk, server = [ring.fd, weights.fd], None, None
    if config.inference == "learner":
        desk = Desk(desk_layout(acting, config.vec.num_envs, config.actors or 1))
        fds += desk.fds.all()
    plans = list(_actor_plans(config, ring, weights, None if desk is None else desk.fds))
    if desk is not None:
        server = InferenceServer(
            desk,
            [plan.envs for plan in plans],
            ring.storage.arrays["observation"],
            Inference(acting, device=config.device),
            weights,
            config.inference_minimum,
            config.inference_maximum,
            config.inference_timeout,
        )
    actors = RemoteActors(plans, memory, spec, batch_size, config.max_policy_lag, supervisor, fds, warn, server)

    def close() -> None:
        actors.close()
        ring.close()
        if desk is not None:
            desk.close()

    return actors, close


def _actor_plans(
    config: RunConfig, ring: SharedColumns, weights: SharedWeights, desk: DeskFds | None
) -> Iterator[ActorPlan]:
    """The envs of the config, shared out among its actors, each with its part of the ring."""
    columns = ring_columns(config)
    per_env = columns // config.vec.num_envs
    for number, envs in enumerate(np.array_split(np.arange(config.vec.num_envs), config.actors or 1)):
        first, count = int(envs[0]), len(envs)
        filled = range(first * per_env, (first + count) * per_env)
        make = functools.partial(
            remote_actor, config, number, first, count, filled, columns, ring.fd, weights.layout, weights.fd, desk
        )
        yield ActorPlan(range(first, first + count), filled, make)


def ring_columns(config: RunConfig) -> int:
    """Columns of the ring: one that every env fills, and as many as a batch may have to wait for."""
    num_envs = config.vec.num_envs
    return num_envs * (1 + -(-config.columns_per_update // num_envs))


def remote_actor(
    config: RunConfig,
    number: int,
    first: int,
    count: int,
    columns_here: range,
    columns: int,
    ring_fd: int,
    layout: dict[str, Any],
    weights_fd: int,
    desk_fds: DeskFds | None,
    report: Callable[[Incident | Failed], None],
) -> tuple[Actor, SharedWeights]:
    """In the actor process ``number``: ``count`` envs from ``first`` on, with ``columns_here``, and the weights to
    act with. With a desk, its actions are asked for there."""
    own.read_parts(config.imports)
    supervisor = Supervisor(config.vec.env_errors, config.vec.env_restarts, report)

    def hung(env: int, phase: str, seconds: float) -> None:
        who = f"env {env}" if config.vec.layout == "serial" else "its engine"
        report(Failed(f"{who} gave no answer for {seconds:g} s in {phase}", False))
        os._exit(1)

    watchdog = Watchdog(vars(timeouts(config)), hung)
    watchdog.__enter__()  # as long as the process lives
    envs = vec(config, Domain.TRAINING_ENV, count, supervisor, watchdog, first)
    acting = agent(config, envs.spec)
    slots = _slots(acting, envs.spec, config.loss.unroll_length)
    storage = SharedColumns(slots, columns, ring_fd).storage
    memory = RolloutMemory(slots, columns_here, count, sort_by_env=True, storage=storage)
    inference, choose = Inference(acting), None
    if desk_fds is not None:
        desk = Desk(desk_layout(acting, config.vec.num_envs, config.actors or 1), desk_fds)
        choose = Client(desk, number, range(first, first + count), inference)
    actor = Actor(envs, memory, inference, config.seed, first_index=first, choose=choose)
    return actor, SharedWeights(layout, weights_fd)


def evaluator(
    config: RunConfig, envs: BatchedEnv, weights: WeightsIn, episodes: int, sample: bool = False
) -> Evaluator:
    """Plays ``episodes`` with the policy's mode, or sampled, in ``envs``."""
    acting = agent(config, envs.spec)
    count = envs.num_envs
    memory = RolloutMemory(
        _slots(acting, envs.spec, EVALUATION_UNROLL), range(_columns(envs, count)), count, sort_by_env=True
    )
    inference = Inference(acting, "sample" if sample else "mode")
    return Evaluator(Actor(envs, memory, inference, config.seed, Domain.EVALUATION_NOISE), weights, episodes)


def replaying(config: RunConfig, spec: EnvSpec, collector: Collector) -> Collector:
    """The collector, with the buffer of the config behind it if there is to be one."""
    if not config.replayed_columns:
        return collector
    slots = _slots(agent(config, spec), spec, config.loss.unroll_length)
    buffer = ReplayBuffer(slots, config.loss.replay_capacity, config.loss.replay_burn_in, config.seed)
    return ReplayingCollector(collector, buffer, config.replayed_columns)


def example_batch(config: RunConfig, spec: EnvSpec, columns: int) -> Trajectory:
    """A batch of zeros in the shape of training's: what a compiler needs to see."""
    acting = agent(config, spec)
    memory = RolloutMemory(_slots(acting, spec, config.loss.unroll_length), range(columns), columns, sort_by_env=False)
    for array in tree.leaves(memory.arrays):
        array[...] = np.zeros((), array.dtype)
    for env in range(columns):
        memory.finish(memory.begin(env), memory.rows)
    return memory.take()


def _columns(envs: BatchedEnv, batch_size: int, in_step: bool = True) -> int:
    """One for each env where all fill theirs ``in_step``; else so many that none ever has to wait for one."""
    return envs.num_envs if in_step and envs.pausable else 2 * envs.num_envs + batch_size


def needs(config: RunConfig, spec: EnvSpec) -> Needs:
    """What a run takes, once it is decided where its envs run."""
    acting = agent(config, spec)
    column, short = (
        sum(slot.nbytes for slot in tree.leaves(_slots(acting, spec, rows)))
        for rows in (config.loss.unroll_length, EVALUATION_UNROLL)
    )
    num_envs, episodes = config.vec.num_envs, config.loss.episodes_per_update or 0
    evaluated = min(config.evaluation_episodes, num_envs)
    batches = 1 + bool(config.compile)  # what is learnt from, and the example that the compiler sees
    growing = num_envs * column * (2 if episodes else 1 + batches)
    counts = (num_envs, evaluated) if config.vec.layout == "pool" else ()
    workers = [min(config.vec.workers or 1, count) for count in counts]
    pools = [footprint(spec, count, number) for count, number in zip(counts, workers, strict=True)]
    if config.actors is not None:
        columns = ring_columns(config)
        ring = mapped(slots_layout(_slots(acting, spec, config.loss.unroll_length), columns))
        weights = mapped(weights_layout(acting.state_dict()))
        growing = columns * column
        pools = [(ring + weights, 2 * BLOCK_FDS + config.actors)]
        if config.inference == "learner":
            desk = mapped(desk_layout(acting, num_envs, config.actors))
            pools = [(ring + weights + desk, 3 * BLOCK_FDS + config.actors + (1 + config.actors) * WAKE_FDS)]
    if replayed := config.replayed_columns:  # those drawn, and the batch that is put together with them
        growing += column * (config.columns_per_update + (1 + batches) * replayed)
    return Needs(
        num_envs=num_envs,
        actors=config.actors or 0,
        rollouts=growing + episodes * (1 + batches) * column + 2 * evaluated * short,
        own=OWN_BYTES
        + bool(config.compile) * COMPILER_BYTES
        + COPIES_OF_WEIGHTS * sum(weight.nbytes for weight in acting.parameters()),
        growing=growing + (pools[0][0] if pools else 0),
        replay=column * config.loss.replay_capacity if replayed else 0,
        shared=sum(pool[0] for pool in pools),
        workers=workers[0] if workers else 0,
        processes=sum(workers),
        descriptors=OWN_FILES + sum(pool[1] for pool in pools),
    )


def _slots(acting: Agent, spec: EnvSpec, unroll_length: int) -> dict[str, Any]:
    core_state = tree.map(lambda tensor: tensor.numpy()[0], acting.initial_state(1))
    return column_slots(spec, unroll_length, acting.distribution.parameter_size, core_state)
