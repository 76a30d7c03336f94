"""``pronghorn bench ENV --peers``: PPO on ENV, by Pronghorn and by other libraries, in rounds."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pronghorn.config import PPOConfig, RunConfig, to_json
from pronghorn.envs.ale import require_game
from pronghorn.envs.gymnasium import env_factory
from pronghorn.tools import contest
from pronghorn.tools.bench import machine
from pronghorn.tools.contest import Contestant
from pronghorn.tools.peers.work import Work
from pronghorn.types import Leaf, UserError
from pronghorn.vec.layout import look_at

OURS = "pronghorn"

ELSEWHERE = "benchmarks/pong_impala.py compares IMPALA"

PATIENCE = 300.0
"""Seconds that a contestant may take beyond ten times those that it is timed for: imports, compilation, warm-up."""

PEERS = (
    ("stable-baselines3", "sb3_ppo.py", "stable_baselines3"),
    ("skrl", "skrl_ppo.py", "skrl"),
    ("sample-factory", "sample_factory_ppo.py", "sample_factory"),
    ("rllib", "rllib_ppo.py", "ray"),
)
"""Name, script, and the module that it needs."""

COMMON: dict[str, Any] = {
    "imports": (),
    "frame_stack": 1,
    "runner": "sync",
    "force_lag": 0,
    "device": "cpu",
    "precision": "float32",
    "core": "none",
    "torso": (),
    "last_action_and_reward": False,
    "image_encoder": "nature",
    "normalise_images": False,
    "episodes_per_update": None,
    "kl_penalty": None,
    "optimiser_name": "adam",
}
"""Values of the options that change the work, and that not all have."""


@dataclass(frozen=True)
class Comparison:
    """``found`` is what ``--json`` prints, ``table`` the same for people."""

    found: dict[str, Any]
    table: str


def compare(
    config: RunConfig, pythons: Sequence[str], seconds: float, rounds: int, say: Callable[[str], None]
) -> Comparison:
    """Holds ``rounds``, in which each is timed for ``seconds``.

    Peers are looked for in the interpreters ``pythons``, and in ours. ``say`` is told of every rate, in a line.

    Raises:
        UserError: peers cannot be told to do this work, an interpreter does not exist, or the env cannot be used.
    """
    asked, about = work(config, seconds), machine()
    entered = contestants(asked, [*(contest.interpreter(given, "--peers") for given in pythons), sys.executable])
    say(
        f"{config.env}, {config.preset}, PPO by {len(entered)} contestants, {about['cores']} cores, "
        f"load {about['load']}"
    )
    standings = contest.hold(entered, rounds, PATIENCE + 10 * seconds, say)
    found = {
        "peers": contest.report(standings, [OURS]),
        "work": {name: value for name, value in dataclasses.asdict(asked).items() if name != "config"},
        "rounds": rounds,
        "preset": config.preset,
        "machine": about,
    }
    return Comparison(found, contest.table(standings, [OURS]))


def contestants(asked: Work, pythons: Sequence[str]) -> list[Contestant]:
    """All of them, in the order of a round. A peer runs in the first of ``pythons`` that has it."""
    arguments = (json.dumps(dataclasses.asdict(asked)),)

    def entry(name: str, script: str, module: str) -> Contestant:
        return Contestant(name, sys.executable, contest.PEERS / script, module, arguments)

    return [
        entry(OURS, "pronghorn_ppo.py", "pronghorn"),
        entry("cleanrl-style", "clean_ppo.py", "gymnasium"),
        *(contest.at_home(entry(*peer), pythons) for peer in PEERS),
    ]


def work(config: RunConfig, seconds: float) -> Work:
    """The work of a run, of which one is timed for ``seconds``.

    Raises:
        UserError: not all can do it.
    """
    loss, network, optimiser = config.loss, config.network, config.optimiser
    if config.algorithm != "ppo" or not isinstance(loss, PPOConfig):
        raise UserError(f"--peers compares PPO, not {config.algorithm}; {ELSEWHERE}")
    plain = to_json(config)
    options = plain | plain["network"] | plain["loss"] | plain["optimiser"]
    for name, value in COMMON.items():
        if options[name] != value:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"--peers compares what all can do, which {flag} {options[name]} is not; leave it out")
    if loss.clip_ratio is None:
        raise UserError("--peers compares PPO with a clipped ratio, which --clip-ratio none is not; leave it out")
    _check_env(config)
    return Work(
        env=config.env,
        env_args=config.env_args,
        seconds=seconds,
        seed=config.seed,
        num_envs=config.vec.num_envs,
        unroll_length=loss.unroll_length,
        epochs=loss.epochs,
        minibatches=loss.minibatches,
        layers=network.layers,
        activation=network.activation,
        initial_std=network.initial_std,
        discount=loss.discount,
        gae_lambda=loss.gae_lambda,
        clip_ratio=loss.clip_ratio,
        value_cost=loss.value_cost,
        entropy_cost=loss.entropy_cost,
        learning_rate=optimiser.learning_rate,
        epsilon=optimiser.epsilon,
        max_gradient_norm=optimiser.max_gradient_norm,
        normalise_observations=network.normalise_observations,
        normalise_rewards=loss.reward_scaling != "none",
        config=plain,
    )


def _check_env(config: RunConfig) -> None:
    """Raises UserError unless all can make and see the env: a Gymnasium id with a vector, or a game of Atari."""
    if config.env.startswith("ALE/"):
        require_game(config.env)
        if config.env_args:
            raise UserError("--peers plays Atari as all see it, without --env-arg; leave it out")
        return
    if ":" in config.env or config.env.startswith(("dm_control/", "dmlab/", "envpool/", "Vizdoom")):
        raise UserError(f"--peers compares Gymnasium's own environments, which {config.env} is not: others lack it")
    spec = look_at(env_factory(config.env, config.env_args))
    seen, acts = spec.observation, spec.action
    if not (isinstance(seen, Leaf) and seen.kind == "box" and len(seen.shape) == 1):
        raise UserError(f"--peers compares environments with one vector to see, or Atari's; {config.env} has neither")
    vector = isinstance(acts, Leaf) and acts.kind == "box" and len(acts.shape) == 1
    choice = isinstance(acts, Leaf) and acts.kind == "discrete" and acts.start is None
    if not (vector or choice):
        raise UserError(
            f"--peers compares environments with one vector, or one choice, as action; {config.env} has not"
        )
