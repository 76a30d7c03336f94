"""What a run decides at its start, once: how envs are stepped, whether the update is compiled, threads, memory."""

from __future__ import annotations

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
    """The config with everything chosen that was left open, and why, a line each. ``watchdog`` looks after the envs
    that are made to look at them.

    Raises:
        EnvError, UserError: the env cannot be made, no agent fits its spaces, or what is asked for does not fit.
    """
    engine = native_rule(config.env) if config.vec.layout == "auto" else None
    reasons = []
    if engine:
        reasons = [f"native: {engine} steps these environments"]
        config = override(config, layout="native")
    validate(config)  # an engine cannot do everything
    spec = build.env_spec(config, watchdog)
    build.agent(config, spec)  # before anything else starts: can one be made?
    config, where = _where_envs_run(config, watchdog)
    config, compiling = _compiling(config, spec)
    config, threads = _learner_threads(config, spec)
    config, needed = fitted(config, spec)
    return config, [*reasons, *where, *build.env_options(config), *compiling, *threads, *needed]


def _where_envs_run(config: RunConfig, watchdog: Watchdog) -> tuple[RunConfig, list[str]]:
    cores, vec = len(available_cores()), config.vec
    if config.runner == "async":
        actors = min(config.actors or cores, vec.num_envs)
        layout = "serial" if vec.layout == "auto" else vec.layout
        chosen = override(config, actors=actors, workers=vec.workers or 1, layout=layout)
        return chosen, [f"actors: {actors}, with {-(-vec.num_envs // actors)} environments each at most"]
    if vec.layout == "auto":
        most = min(cores, vec.workers or cores)
        layout, workers, reason = choose(build.one_env(config), vec.num_envs, most, vec.groups, watchdog.note)
        return override(config, layout=layout, workers=workers), [reason]
    workers = {"serial": 1, "pool": min(cores, vec.num_envs), "native": cores}[vec.layout]
    return override(config, workers=vec.workers or workers), []


def _compiling(config: RunConfig, spec: EnvSpec) -> tuple[RunConfig, list[str]]:
    obstacle = compiler.obstacle()
    if config.compile is None:
        against = _against_compiling(config, spec) or obstacle
        words = f"not compiled: {against}" if against else "compiled: the run is long enough to repay it"
        return override(config, compile=not against), [f"update {words}"]
    if config.compile and obstacle:
        return override(config, compile=False), [f"update not compiled: {obstacle}"]
    return config, []


def _against_compiling(config: RunConfig, spec: EnvSpec) -> str:
    if sees_images(spec.observation):
        return "convolutions gain nothing from it"
    if config.network.core in ("lstm", "gru") or sees_texts(spec.observation):
        return "an LSTM or a GRU takes minutes to compile"
    batches = config.steps / (config.columns_per_update * config.loss.unroll_length)
    if batches * config.loss.epochs * config.loss.minibatches < COMPILING_PAYS_FROM:
        return "the run is too short to repay it"
    return ""


def _learner_threads(config: RunConfig, spec: EnvSpec) -> tuple[RunConfig, list[str]]:
    if config.threads is not None:
        return config, []
    images = sees_images(spec.observation)
    columns = config.columns_per_update + config.replayed_columns
    rows = config.loss.unroll_length * columns // config.loss.minibatches
    threads = len(available_cores()) if images or rows >= THREADS_PAY_FROM else 1
    kind = "images" if images else "rows"
    return override(config, threads=threads), [f"learner threads: {threads}, for gradient steps of {rows:,} {kind}"]


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
