"""Everything that decides a run, in dataclasses: written to ``config.json``, read back by ``resume``.

Field docstrings are the help texts of the command line. Options that say "chosen" hold None until the start and the
decision afterwards. NumPy only.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pronghorn.types import UserError

Config = TypeVar("Config")

IMAGE_ENCODERS = ["nature", "shallow", "deep"]
"""Names of the networks for images; ``networks.encoders`` has them, and adds those a user registers."""

SINKS = ["tensorboard", "csv", "wandb"]
"""Names of where metrics go beside ``metrics.jsonl``; ``telemetry.sinks`` has them, and adds those a user registers."""

CALLBACKS: list[str] = []
"""Names of the callbacks that a user registers; ``telemetry.callbacks`` has them."""


@dataclass(frozen=True)
class VecConfig:
    """Many envs at once."""

    num_envs: int = 16
    """parallel environments"""
    groups: int = 1
    """parts the envs are stepped in: one is inferred while the others step"""
    ready_envs: int | None = None
    """learn from whichever envs are ready first, this many at a time (none: groups in turn, which is reproducible)"""
    layout: Literal["auto", "serial", "pool", "native"] = "auto"
    """where envs run: in this process, in worker processes, in an engine of their own, or chosen: such an engine where
    a rule names one, else by the measured step time"""
    workers: int | None = None
    """env worker processes of the pool, threads of an engine (chosen: the number of cores)"""
    env_timeout: float | None = None
    """seconds an env may take in any phase (none: construct and reset 60, step 30, or 60 in an engine)"""
    env_restarts: int = 10
    """failed envs and workers that are started again within an hour before the run gives up"""
    env_errors: Literal["restart", "fail"] = "restart"
    """what happens where an env fails: it is started again, or the run ends"""


@dataclass(frozen=True)
class NetworkConfig:
    """Two separate streams, one for the policy, one for the value; behind what they share: images' encoder, core."""

    layers: tuple[int, ...] = (64, 64)
    """hidden units of each layer of both streams"""
    activation: Literal["tanh", "relu"] = "tanh"
    """after each hidden layer"""
    mean_activation: Literal["linear", "tanh"] = "linear"
    """on the mean of a Gaussian"""
    initial_std: float = 0.6065
    """standard deviation of a Gaussian at the start (exp(-0.5))"""
    std_parametrisation: Literal["log", "softplus"] = "log"
    """how the state-independent standard deviation is stored"""
    init: Literal["orthogonal", "glorot", "lecun"] = "orthogonal"
    """orthogonal: gain √2, last policy layer 0.01; glorot: uniform, last policy layer truncated normal; lecun:
    IMPALA's, truncated normal of standard deviation 1/√inputs"""
    torso: tuple[int, ...] = ()
    """hidden units of each layer before the core, shared by both streams"""
    core: Literal["none", "counting", "lstm", "gru"] = "none"
    """memory of the episode, before both streams; "counting" counts its steps, for tests"""
    core_size: int = 256
    """units of an LSTM or a GRU"""
    last_action_and_reward: bool = False
    """whether the core (without one: the streams) also sees the last action and the last reward, clipped to [-1, 1]"""
    image_encoder: str = "nature"
    """network of uint8 images, shared by both streams: nature (3 convolutions, 512 features), shallow (IMPALA's small
    one: 2, 256), deep (IMPALA's residual one: 15, 256), or one of your own"""
    normalise_observations: bool = True
    """by streaming mean and standard deviation (vectors only)"""
    normalise_images: bool = False
    """each pixel by its streaming mean and standard deviation, instead of scaling bytes to [0, 1]"""
    observation_clip: float = 10.0
    """bound of normalised observations"""


@dataclass(frozen=True)
class PPOConfig:
    """PPO, with a clipped ratio, a KL penalty, or both."""

    unroll_length: int = 128
    """rows of a column; in episode mode the longest episode before it is closed as truncated"""
    episodes_per_update: int | None = None
    """learn from this many whole episodes at a time instead of from unrolls"""
    epochs: int = 10
    """passes over each batch"""
    minibatches: int = 4
    """gradient steps per pass"""
    discount: float = 0.99
    """γ"""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation; 1 gives Monte-Carlo returns"""
    recompute_advantages: bool = True
    """with the newest value function before every pass"""
    normalise_advantages: Literal["none", "minibatch", "batch"] = "minibatch"
    """to mean 0 and standard deviation 1 over valid rows"""
    clip_ratio: float | None = 0.2
    """PPO's clip range ε"""
    kl_penalty: float | None = None
    """initial coefficient β of the adaptive KL penalty"""
    kl_target: float = 0.01
    """KL divergence the penalty aims at"""
    kl_cutoff_factor: float = 2.0
    """the quadratic cut-off starts at this multiple of the target"""
    kl_cutoff_coefficient: float = 1000.0
    """weight of the quadratic cut-off"""
    value_cost: float = 0.5
    """weight of the value loss"""
    entropy_cost: float = 0.0
    """weight of the entropy bonus"""
    entropy_schedule: Literal["linear", "constant"] = "constant"
    """linear: the entropy cost falls to 0 at the end of the run"""
    reward_scaling: Literal["returns", "rewards", "none"] = "returns"
    """divide rewards by the running std of the value targets, of single rewards, or not"""
    reward_clip: float | None = None
    """bound of scaled rewards"""

    # No options: it learns only from what the newest weights have done.
    replay_share = 0.0
    replay_capacity = replay_burn_in = 0


@dataclass(frozen=True)
class ImpalaConfig:
    """IMPALA and A2C: one pass over each batch, V-trace where it was not made by the newest policy."""

    unroll_length: int = 20
    """rows of a column"""
    discount: float = 0.99
    """γ"""
    corrections: Literal["vtrace", "one-step", "epsilon", "none"] = "vtrace"
    """for the policy lag: V-trace; ratios of the policy gradient alone; 1e-6 added to the probability inside the
    logarithm; none"""
    rho_bar: float | None = 1.0
    """ρ̄, cap of the ratio that weights an error of the values"""
    c_bar: float | None = 1.0
    """c̄, cap of the ratio in the traces"""
    pg_rho_bar: float | None = 1.0
    """cap of the ratio that weights the policy gradient"""
    trace_lambda: float = 1.0
    """λ of the traces; 1 gives the return of the whole unroll"""
    mix_bootstrap: bool = False
    """advantages bootstrap from λ vs + (1 - λ) V instead of vs: GAE(λ) where nothing is corrected"""
    reduction: Literal["mean", "sum"] = "mean"
    """of losses, over the valid rows of a batch"""
    value_cost: float = 0.5
    """weight of the value loss"""
    entropy_cost: float = 0.01
    """weight of the entropy bonus"""
    entropy_schedule: Literal["linear", "constant"] = "constant"
    """linear: the entropy cost falls to 0 at the end of the run"""
    reward_scaling: Literal["returns", "rewards", "none"] = "returns"
    """divide rewards by the running std of the value targets, of single rewards, or not"""
    reward_clip: Literal["none", "unit", "soft_asymmetric"] = "none"
    """of scaled rewards: to [-1, 1]; or 5 tanh(r / 5), times 0.3 where negative"""
    replay_share: float = 0.0
    """share of each batch that was learnt from before, drawn from the newest unrolls; 0: nothing is kept"""
    replay_capacity: int = 10_000
    """unrolls that are kept to be replayed (lowered where the memory is too small)"""
    replay_burn_in: int = 0
    """first rows of a replayed unroll that are not learnt from, but bring a recurrent core's state up to date"""

    # No options: a batch is one unroll of every env, walked over once as a whole.
    episodes_per_update = None
    epochs = minibatches = 1


LOSSES: dict[str, type[PPOConfig] | type[ImpalaConfig]] = {
    "ppo": PPOConfig,
    "batchppo": PPOConfig,
    "impala": ImpalaConfig,
    "a2c": ImpalaConfig,
}
"""The options of each algorithm; ``build.register_algorithm`` adds those of a user's own."""


@dataclass(frozen=True)
class OptimiserConfig:
    """Adam, or RMSProp as TensorFlow computes it."""

    optimiser_name: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: without momentum, decay 0.99, as in the paper of IMPALA"""
    learning_rate: float = 3e-4
    """step size at the start"""
    schedule: Literal["linear", "constant"] = "linear"
    """linear: falls to 0 at the end of the run"""
    epsilon: float = 1e-5
    """added to the root of the second moment; by rmsprop inside the root"""
    max_gradient_norm: float | None = 0.5
    """global norm the gradient is clipped to"""


@dataclass(frozen=True)
class RunConfig:
    """A whole run."""

    env: str
    """Gymnasium id, package.module:Class, or ./file.py:Class"""
    env_args: dict[str, Any] = field(default_factory=dict)
    """keyword arguments of the environment"""
    frame_stack: int = 1
    """newest observations that are seen at once"""
    imports: tuple[str, ...] = ()
    """modules or files (./mine.py) that register own parts, read before anything is made"""
    algorithm: str = "ppo"
    """how it learns: ppo, batchppo, impala, a2c, or one of your own"""
    runner: Literal["sync", "async"] = "sync"
    """who waits for whom: sync collects, learns, and repeats; async has actor processes that act meanwhile"""
    actors: int | None = None
    """actor processes of the async runner (chosen: one per core, as far as there are envs)"""
    batch_size: int | None = None
    """unrolls of an update of the async runner (none: as many as envs)"""
    max_policy_lag: int = 4
    """updates that an unroll of the async runner may be old when it is learnt from; 0: lock-step, as with sync"""
    force_lag: int = 0
    """for experiments: act with weights that are this many updates old"""
    inference: Literal["actor", "learner"] = "actor"
    """where actions are chosen for the actors of the async runner: each has its own copy of the weights, or one forward
    pass on the learner's device serves all that wait"""
    inference_minimum: int = 1
    """envs that must wait before the learner makes a forward pass for them"""
    inference_maximum: int = 1024
    """envs of one such pass"""
    inference_timeout: float = 0.1
    """seconds after which fewer than the minimum are served"""
    preset: str = ""
    """named default values (empty: by algorithm and env family)"""
    steps: int = 1_000_000
    """environment steps to train for"""
    seed: int = 0
    """of everything random"""
    run: str = ""
    """directory of the run (empty: runs/ENV-ALGORITHM-seedSEED)"""
    device: str = "cpu"
    """where the learner computes: cpu, cuda, cuda:1, …"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """of the learner's forward and backward passes; weights, losses and statistics are float32 always"""
    threads: int | None = None
    """threads of the learner (chosen: 1, or all cores where a gradient step has many rows)"""
    compile: bool | None = None
    """compile the update to one graph (chosen: where the run is long enough to repay it)"""
    evaluate_every: int | None = None
    """steps between evaluations (none: as often as 10% of the run's steps allow)"""
    evaluation_episodes: int = 10
    """episodes of each evaluation"""
    checkpoint_every: int = 100_000
    """steps between checkpoints (at most 10 minutes); the end always saves one"""
    keep_checkpoints: int = 3
    """newest checkpoints to keep"""
    sinks: tuple[str, ...] = ("tensorboard",)
    """where metrics go beside metrics.jsonl: tensorboard, csv, wandb, or your own"""
    callbacks: tuple[str, ...] = ()
    """your own, which are told what happens and may end the run"""
    vec: VecConfig = field(default_factory=VecConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    loss: PPOConfig | ImpalaConfig = field(default_factory=PPOConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    @property
    def columns_per_update(self) -> int:
        """Fresh columns of a batch: whole episodes, so many unrolls, or one unroll of every env."""
        return self.loss.episodes_per_update or self.batch_size or self.vec.num_envs

    @property
    def replayed_columns(self) -> int:
        """Columns from replay in a batch, behind the fresh ones."""
        share = self.loss.replay_share
        return round(self.columns_per_update * share / (1 - share))

    @property
    def lags(self) -> bool:
        """Whether batches may be of older weights than those that learn from them."""
        return self.force_lag > 0 or (self.runner == "async" and self.max_policy_lag > 0)

    @property
    def timeouts(self) -> dict[str, float]:
        """Overrides for the time-outs of env phases."""
        if self.vec.env_timeout is None:
            return {"step": 60.0} if self.vec.layout == "native" else {}
        return dict.fromkeys(("construct", "reset", "step"), self.vec.env_timeout)


def validate(config: RunConfig) -> None:
    """Raises UserError naming the first option whose value cannot work."""
    _check_types(config)
    vec, network, loss, optimiser = config.vec, config.network, config.loss, config.optimiser
    _check_positive(
        frame_stack=config.frame_stack,
        steps=config.steps,
        threads=config.threads,
        evaluate_every=config.evaluate_every,
        evaluation_episodes=config.evaluation_episodes,
        checkpoint_every=config.checkpoint_every,
        keep_checkpoints=config.keep_checkpoints,
        actors=config.actors,
        batch_size=config.batch_size,
        inference_minimum=config.inference_minimum,
        inference_maximum=config.inference_maximum,
        inference_timeout=config.inference_timeout,
        num_envs=vec.num_envs,
        groups=vec.groups,
        ready_envs=vec.ready_envs,
        workers=vec.workers,
        env_timeout=vec.env_timeout,
        layers=min(network.layers, default=1),
        torso=min(network.torso, default=1),
        core_size=network.core_size,
        initial_std=network.initial_std,
        observation_clip=network.observation_clip,
        unroll_length=loss.unroll_length,
        learning_rate=optimiser.learning_rate,
        epsilon=optimiser.epsilon,
        max_gradient_norm=optimiser.max_gradient_norm,
    )
    _check_not_negative(
        seed=config.seed,
        max_policy_lag=config.max_policy_lag,
        force_lag=config.force_lag,
        env_restarts=vec.env_restarts,
        value_cost=loss.value_cost,
        entropy_cost=loss.entropy_cost,
    )
    _check_fraction(discount=loss.discount)
    _check_known(algorithm=(config.algorithm, LOSSES), image_encoder=(network.image_encoder, IMAGE_ENCODERS))
    _check_all_known(sinks=(config.sinks, SINKS), callbacks=(config.callbacks, CALLBACKS))
    if vec.groups > vec.num_envs:
        raise UserError(f"--groups {vec.groups} is more than --num-envs {vec.num_envs}; use at most one per env")
    if config.frame_stack > 1 and vec.layout == "native":
        raise UserError(
            f"--frame-stack {config.frame_stack} is for envs that are stepped one by one; an engine stacks by an "
            "option of its own (Atari: --env-arg stack=N), or use --layout serial or pool"
        )
    if config.runner == "async":
        _validate_async(config)
    elif config.inference == "learner":
        raise UserError("--inference learner belongs to --runner async; with sync the learner's process acts anyway")
    elif config.batch_size is not None:
        raise UserError("--batch-size belongs to --runner async; with sync a batch is one unroll of every env")
    if vec.ready_envs is not None:
        if vec.groups > 1:
            raise UserError(f"--ready-envs takes envs as they come, --groups {vec.groups} in turn; use one of them")
        if vec.ready_envs > vec.num_envs:
            raise UserError(f"--ready-envs {vec.ready_envs} is more than --num-envs {vec.num_envs}; use fewer")
    wanted = LOSSES[config.algorithm]
    if not isinstance(loss, wanted):
        raise UserError(
            f"--algorithm {config.algorithm} learns by the options of {wanted.__name__}, not {type(loss).__name__}; "
            "give the algorithm where the configuration is made"
        )
    if isinstance(loss, PPOConfig):
        _validate_ppo(loss, config.columns_per_update * loss.unroll_length)
    else:
        _check_positive(rho_bar=loss.rho_bar, c_bar=loss.c_bar, pg_rho_bar=loss.pg_rho_bar)
        _check_fraction(trace_lambda=loss.trace_lambda)
        _validate_replay(config, loss)


def _validate_async(config: RunConfig) -> None:
    vec = config.vec
    if config.loss.episodes_per_update is not None:
        raise UserError("--runner async learns from unrolls; use --episodes-per-update none")
    if vec.layout == "pool" or vec.groups > 1 or vec.ready_envs is not None:
        raise UserError("--layout pool, --groups and --ready-envs belong to --runner sync; actors step their own envs")
    if config.actors is not None and config.actors > vec.num_envs:
        raise UserError(f"--actors {config.actors} is more than --num-envs {vec.num_envs}; use at most one per env")
    if config.inference == "learner":
        _validate_inference(config)
    if not config.max_policy_lag and config.batch_size not in (None, vec.num_envs):
        raise UserError(
            f"--max-policy-lag 0 learns from one unroll of each of the {vec.num_envs} envs, not from --batch-size "
            f"{config.batch_size}; leave it out or allow some lag"
        )
    least = -(-vec.num_envs // config.columns_per_update)
    if 0 < config.max_policy_lag < least:
        raise UserError(
            f"--max-policy-lag {config.max_policy_lag} is too small: {vec.num_envs} unrolls are under way at once and "
            f"a batch takes {config.columns_per_update}, so they grow {least} updates old; use --max-policy-lag "
            f"{least} or --batch-size {-(-vec.num_envs // config.max_policy_lag)}"
        )


def _validate_inference(config: RunConfig) -> None:
    minimum, maximum, num_envs = config.inference_minimum, config.inference_maximum, config.vec.num_envs
    if not config.max_policy_lag:
        raise UserError(
            "--inference learner may change weights within an unroll, which --max-policy-lag 0 forbids; allow some lag "
            "or use --inference actor"
        )
    if minimum > min(maximum, num_envs):
        raise UserError(
            f"--inference-minimum {minimum} is more than --inference-maximum {maximum} or --num-envs {num_envs}; use "
            "fewer"
        )


def _validate_ppo(loss: PPOConfig, rows: int) -> None:
    _check_positive(
        episodes_per_update=loss.episodes_per_update,
        epochs=loss.epochs,
        minibatches=loss.minibatches,
        clip_ratio=loss.clip_ratio,
        kl_penalty=loss.kl_penalty,
        kl_target=loss.kl_target,
        kl_cutoff_factor=loss.kl_cutoff_factor,
        reward_clip=loss.reward_clip,
    )
    _check_not_negative(kl_cutoff_coefficient=loss.kl_cutoff_coefficient)
    _check_fraction(gae_lambda=loss.gae_lambda)
    if loss.clip_ratio is None and loss.kl_penalty is None:
        raise UserError("--clip-ratio and --kl-penalty are both off; PPO needs one of them")
    if loss.minibatches > rows:
        raise UserError(f"--minibatches {loss.minibatches} is more than the {rows} rows of a batch; use fewer")


def _validate_replay(config: RunConfig, loss: ImpalaConfig) -> None:
    share, burn_in, fresh = loss.replay_share, loss.replay_burn_in, config.columns_per_update
    _check_positive(replay_capacity=loss.replay_capacity)
    _check_not_negative(replay_burn_in=burn_in)
    if not 0 <= share < 1:
        raise UserError(f"--replay-share must be at least 0 and less than 1, not {share}")
    if burn_in and config.network.core == "none":
        raise UserError(f"--replay-burn-in {burn_in} is for a recurrent core; use one with --core or leave it out")
    if burn_in >= loss.unroll_length:
        raise UserError(
            f"--replay-burn-in {burn_in} leaves nothing of --unroll-length {loss.unroll_length}; it must be less"
        )
    if share and not config.replayed_columns:
        raise UserError(f"--replay-share {share} is not one unroll beside {fresh} fresh ones; use a larger share, or 0")
    if share and loss.replay_capacity < max(fresh, config.replayed_columns):
        raise UserError(
            f"--replay-capacity {loss.replay_capacity} is less than a batch takes and adds, {config.replayed_columns} "
            f"and {fresh} unrolls; use more"
        )


def _check_positive(**options: float | None) -> None:
    for name, value in options.items():
        if value is not None and not value > 0:
            raise UserError(f"{_flag(name)} must be positive, not {value}")


def _check_not_negative(**options: float) -> None:
    for name, value in options.items():
        if not value >= 0:
            raise UserError(f"{_flag(name)} must not be negative, not {value}")


def _check_known(**options: tuple[str, Iterable[str]]) -> None:
    for name, (value, known) in options.items():
        if value not in known:
            raise UserError(f"{_flag(name)} must be one of {', '.join(known)}, not {value!r}")


def _check_all_known(**options: tuple[tuple[str, ...], Iterable[str]]) -> None:
    for name, (values, known) in options.items():
        for value in values:
            if value not in known:
                hint = nearest(value, known, "" if known else "register it in a file and name that with --import")
                raise UserError(f"unknown {name.removesuffix('s')} {value!r} in {_flag(name)}; {hint}")


def _check_fraction(**options: float) -> None:
    for name, value in options.items():
        if not 0 <= value <= 1:
            raise UserError(f"{_flag(name)} must be between 0 and 1, not {value}")


def check_free(what: str, name: str, built_in: Iterable[str]) -> None:
    """Raises UserError unless a user may register ``what`` as ``name``, to be named in a list with commas."""
    if not name or name == "none" or name in built_in or re.search(r"[,\s]", name):
        raise UserError(
            f"a {what} cannot be registered as {name!r}; use a name without commas and blanks that is not one of ours"
        )


def default_run(config: RunConfig) -> str:
    """runs/ENV-ALGORITHM-seedSEED, a path of two parts whatever ENV holds."""
    env = re.sub(r"[^\w.]+", "-", config.env).strip("-.")
    return f"runs/{env}-{config.algorithm}-seed{config.seed}"


def to_json(config: Any) -> dict[str, Any]:
    """Nested dict of plain values."""
    return dataclasses.asdict(config)


def from_json(cls: type[Config], data: dict[str, Any]) -> Config:
    """The inverse of ``to_json``, also after a trip through JSON text. A missing key means the default.

    Raises UserError for a key that ``cls`` does not have, naming the nearest, and for a missing one without default.
    """
    if not isinstance(data, dict):
        raise UserError(f"{cls.__name__} must be an object with options, not {data!r}")
    hints = typing.get_type_hints(cls)
    if issubclass(cls, RunConfig):
        hints["loss"] = LOSSES.get(str(data.get("algorithm", "ppo")), PPOConfig)
        data = {"loss": {}, **data}
    values = {}
    for key, value in data.items():
        if key not in hints:
            raise UserError(f"unknown option {key!r} in {cls.__name__}; {nearest(key, list(hints))}")
        hint = hints[key]
        nested = dataclasses.is_dataclass(hint)
        values[key] = from_json(typing.cast(type[Any], hint), value) if nested else _sequence(hint, value)
    for item in dataclasses.fields(typing.cast(Any, cls)):
        if item.name not in values and item.default is item.default_factory is dataclasses.MISSING:
            raise UserError(f"option {item.name!r} is missing in {cls.__name__}")
    return cls(**values)


def override(config: Config, **changes: Any) -> Config:
    """``config`` with some options changed, wherever in the nesting they live.

    Raises UserError for an option that does not exist, naming the nearest.
    """
    fields = {item.name: getattr(config, item.name) for item in dataclasses.fields(typing.cast(Any, config))}
    hints = typing.get_type_hints(type(config))
    own = {name: _sequence(hints[name], changes.pop(name)) for name in list(changes) if name in fields}
    for name, part in fields.items():
        if changes and dataclasses.is_dataclass(part):
            inner = {key: changes.pop(key) for key in list(changes) if key in option_names(part)}
            if inner:
                own[name] = override(part, **inner)
    if changes:
        unknown = next(iter(changes))
        raise UserError(f"unknown option {unknown!r}; {nearest(unknown, option_names(config))}")
    changed: Config = dataclasses.replace(typing.cast(Any, config), **own)
    return changed


def option_names(config: Any) -> list[str]:
    """Every option's name, nested ones included."""
    names: list[str] = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        names += option_names(value) if dataclasses.is_dataclass(value) else [item.name]
    return names


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """ "did you mean …?" with the nearest known name, else ``otherwise``, or the list of all."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else otherwise or f"known: {', '.join(names)}"


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, ``None`` as ``NoneType``; any other type is its own only alternative."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _check_types(config: Any) -> None:
    hints = typing.get_type_hints(type(config))
    for item in dataclasses.fields(config):
        value, hint = getattr(config, item.name), hints[item.name]
        if dataclasses.is_dataclass(value):
            _check_types(value)
        elif not any(_conforms(value, option) for option in alternatives(hint)):
            if typing.get_origin(hint) is Literal:
                wanted = f"one of {', '.join(typing.get_args(hint))}"
            else:
                wanted = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
            raise UserError(f"{_flag(item.name)} must be {wanted}, not {value!r}")


def _conforms(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_conforms(entry, typing.get_args(hint)[0]) for entry in value)
    if isinstance(value, bool):  # a bool is an int to isinstance
        return hint is bool
    return isinstance(value, (int, float) if hint is float else origin or hint)


def _sequence(hint: Any, value: Any) -> Any:
    is_tuple = any(typing.get_origin(option) is tuple for option in alternatives(hint))
    return tuple(value) if is_tuple and isinstance(value, list) else value


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
