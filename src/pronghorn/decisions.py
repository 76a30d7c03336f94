"""What a run decides at its start, once: how envs are stepped, whether the update is compiled, threads, memory."""

from __future__ import annotations

import dataclasses

from pronghorn import build
from pronghorn.config import RunConfig, override, validate
from pronghorn.learning import compiler
from pronghorn.networks.encoders import sees_images, sees_texts
from pronghorn.processes import preflight
from pronghorn.processes.launch import available_cores
from pronghorn.processes.supervise import Watchdog
from pronghorn.types import EnvSpec
from pronghorn.vec.engines import native_rule
from pronghorn.vec.layout import choose

COMPILING_PAYS_FROM = 20_000
"""Gradient steps of a run from which compiling (10 to 30 s) repays itself, at about 1 ms saved by each."""

THREADS_PAY_FROM = 8192
"""Rows of a gradient step from which a small network is learnt faster by all cores than by one."""


def decided(config: RunConfig, watchdog: Watchdog) -> tuple[RunConfig, list[str]]:
    reasons = []
    cores = len(available_cores())
    vec = config.vec
    if vec.layout == "auto" and (engine := native_rule(config.env)):
        reasons.append(f"native: {engine} steps these environments")
        vec = dataclasses.replace(vec, layout="native")
    config = dataclasses.replace(config, vec=vec)
    validate(config)  # an engine cannot do everything
    spec = build.env_spec(config, watchdog)
    build.agent(config, spec)  # before anything else starts: can one be made?
    images = sees_images(spec.observation)
    if config.runner == "async":
        actors = min(config.actors or cores, vec.num_envs)
        reasons.append(f"actors: {actors}, with {-(-vec.num_envs // actors)} environments each at most")
        vec = dataclasses.replace(vec, workers=vec.workers or 1)
        if vec.layout == "auto":
            vec = dataclasses.replace(vec, layout="serial")
        config = dataclasses.replace(config, actors=actors)
    elif vec.layout == "auto":
        most = min(cores, vec.workers or cores)
        layout, workers, reason = choose(build.one_env(config), vec.num_envs, most, vec.groups, watchdog.note)
        reasons.append(reason)
        vec = dataclasses.replace(vec, layout=layout, workers=workers)
    elif vec.workers is None:
        workers = {"serial": 1, "pool": min(cores, vec.num_envs), "native": cores}[vec.layout]
        vec = dataclasses.replace(vec, workers=workers)
    reasons += build.env_options(config)
    compiled = config.compile
    obstacle = compiler.obstacle()
    if compiled is None:
        batches = config.steps / (config.columns_per_update * config.loss.unroll_length)
        long = batches * config.loss.epochs * config.loss.minibatches >= COMPILING_PAYS_FROM
        unrolled = config.network.core in ("lstm", "gru") or sees_texts(spec.observation)
        compiled = long and not images and not unrolled and not obstacle
        against = obstacle or "the run is too short to repay it"
        if images or unrolled:
            against = "convolutions gain nothing from it" if images else "an LSTM or a GRU takes minutes to compile"
        reasons.append(
            f"update {'compiled' if compiled else 'not compiled'}: "
            + ("the run is long enough to repay it" if compiled else against)
        )
    elif compiled and obstacle:
        reasons.append(f"update not compiled: {obstacle}")
        compiled = False
    threads = config.threads
    if threads is None:
        columns = config.columns_per_update + config.replayed_columns
        rows = config.loss.unroll_length * columns // config.loss.minibatches
        threads = cores if images or rows >= THREADS_PAY_FROM else 1
        reasons.append(f"learner threads: {threads}, for gradient steps of {rows:,} {'images' if images else 'rows'}")
    config, needed = fitted(dataclasses.replace(config, vec=vec, compile=compiled, threads=threads), spec)
    return config, [*reasons, *needed]


def fitted(config: RunConfig, spec: EnvSpec) -> tuple[RunConfig, list[str]]:
    """The config with no more replay than fits; what it needs, in a line, and what speaks against it.

    Raises UserError where it does not fit.
    """
    machine, needs = preflight.Machine.here(), build.needs(config, spec)
    warnings = []
    if needs.replay and needs.memory > machine.memory:
        asked, takes = config.loss.replay_capacity, preflight.size_of(needs.replay)
        fitting = asked * preflight.room_for_replay(needs, machine) // needs.replay
        capacity = max(fitting, config.columns_per_update, config.replayed_columns)
        config = override(config, replay_capacity=capacity)
        needs = build.needs(config, spec)
        warnings = [
            f"--replay-capacity lowered to {capacity:,} unrolls ({preflight.size_of(needs.replay)}): {asked:,} take "
            f"{takes}, and {preflight.size_of(machine.memory)} are available to the whole run"
        ]
    return config, [preflight.describe(needs), *warnings, *preflight.check(needs, machine)]


def acting_threads(config: RunConfig, spec: EnvSpec) -> int:
    """One is best for acting on few rows, unless they are images: envs wait while those are seen."""
    return config.threads or 1 if sees_images(spec.observation) else 1
