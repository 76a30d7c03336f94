"""Which preset an env gets, and the numbers of the published ones."""

from __future__ import annotations

import pytest

from pronghorn.config import ImpalaConfig, OptimiserConfig, PPOConfig, RunConfig, override, validate
from pronghorn.presets.resolve import algorithms, presets, resolve
from pronghorn.types import UserError


@pytest.mark.parametrize(
    ("env", "algorithm", "name"),
    [
        ("HalfCheetah-v5", "ppo", "ppo-mujoco"),
        ("HalfCheetah-v4", "", "ppo-mujoco"),
        ("InvertedDoublePendulum-v5", "ppo", "ppo-mujoco"),
        ("CartPole-v1", "ppo", "ppo-cartpole"),
        ("Pendulum-v1", "ppo", "ppo-pendulum"),
        ("MountainCarContinuous-v0", "ppo", "ppo-classic"),
        ("generic", "ppo", "ppo-generic"),
        ("generic-v1", "ppo", "ppo-generic"),
        ("mine.envs:CartPole", "ppo", "ppo-generic"),
        ("HalfCheetah-v5", "batchppo", "batchppo-halfcheetah"),
        ("Swimmer-v5", "batchppo", "batchppo-mujoco"),
        ("Acrobot-v1", "batchppo", "batchppo-classic"),
        ("./env.py:Maze", "batchppo", "batchppo-generic"),
        ("ALE/Pong-v5", "", "ppo-atari"),
        ("ALE/MsPacman-v5", "ppo", "ppo-atari"),
        ("ALE/Pong-v5", "batchppo", "batchppo-generic"),
        ("ALE/Pong-v5", "impala", "impala-atari"),
        ("CartPole-v1", "impala", "impala-cartpole"),
        ("Ant-v5", "impala", "impala-mujoco"),
        ("Acrobot-v1", "a2c", "a2c-classic"),
        ("LunarLander-v3", "a2c", "a2c-box2d"),
        ("BipedalWalkerHardcore-v3", "ppo", "ppo-box2d"),
        ("CarRacing-v3", "ppo", "ppo-generic"),
        ("dm_control/cheetah-run", "ppo", "ppo-dm-control"),
        ("dm_control/cartpole-swingup", "impala", "impala-dm-control"),
        ("VizdoomBasic-v1", "ppo", "ppo-vizdoombasic"),
        ("VizdoomDefendCenter-v1", "ppo", "ppo-vizdoom"),
        ("VizdoomBasic-v1", "impala", "impala-vizdoombasic"),
        ("VizdoomTakeCover-v1", "impala", "impala-vizdoom"),
        ("VizdoomDeathmatch-MultiBinary-v1", "batchppo", "batchppo-generic"),
        ("envpool/CartPole-v1", "ppo", "ppo-cartpole"),
        ("envpool/HalfCheetah-v5", "batchppo", "batchppo-halfcheetah"),
        ("envpool/HumanoidStandup-v4", "ppo", "ppo-mujoco"),
        ("envpool/LunarLanderContinuous-v3", "ppo", "ppo-box2d"),
        ("envpool/Pong-v5", "impala", "impala-atari"),
        ("envpool/FishingDerby-v5", "ppo", "ppo-atari"),
        ("envpool/FishSwim-v1", "ppo", "ppo-dm-control"),
        ("envpool/PendulumSwingup-v1", "ppo", "ppo-dm-control"),
        ("envpool/D1Basic-v1", "ppo", "ppo-vizdoom"),
        ("envpool/CoinrunEasy-v0", "ppo", "ppo-procgen"),
        ("envpool/BigfishHard-v0", "impala", "impala-procgen"),
        ("Pong-v5", "ppo", "ppo-generic"),
    ],
)
def test_preset_of_an_env(env: str, algorithm: str, name: str) -> None:
    preset, config = resolve(env, algorithm)
    assert preset == config.preset == name
    assert config.env == env
    assert config.algorithm == name.partition("-")[0]


def test_a_named_preset_brings_its_algorithm() -> None:
    preset, config = resolve("mine:Hopper", preset="batchppo-hopper")
    assert (preset, config.algorithm, config.loss.episodes_per_update) == ("batchppo-hopper", "batchppo", 60)


@pytest.mark.parametrize(
    ("algorithm", "preset", "message"),
    [
        ("pppo", "", "unknown algorithm 'pppo'; did you mean ppo?"),
        ("zzz", "", "unknown algorithm 'zzz'; known: a2c, batchppo, impala, ppo"),
        ("ppo", "ppo-cartpol", "unknown preset 'ppo-cartpol'; did you mean ppo-cartpole?"),
        ("ppo", "batchppo-ant", "preset batchppo-ant belongs to batchppo, not to --algorithm ppo"),
    ],
)
def test_unknown_names(algorithm: str, preset: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        resolve("CartPole-v1", algorithm, preset)
    assert str(error.value) == message


@pytest.mark.parametrize("preset", sorted(presets()))
def test_every_preset_can_run(preset: str) -> None:
    assert preset.partition("-")[0] in algorithms()
    validate(resolve("e", preset=preset)[1])


@pytest.mark.parametrize("algorithm", algorithms())
def test_every_algorithm_has_a_preset_for_every_family(algorithm: str) -> None:
    for family in ("generic", "classic", "mujoco", "box2d", "dm-control"):
        assert f"{algorithm}-{family}" in presets()


def test_families_of_envpool_are_those_of_its_registry() -> None:
    pytest.importorskip("envpool")
    from envpool.registration import registry

    families = {
        "envpool.atari": "ppo-atari",
        "envpool.box2d": "ppo-box2d",
        "envpool.mujoco.dmc": "ppo-dm-control",
        "envpool.mujoco.gym": "ppo-mujoco",
        "envpool.procgen": "ppo-procgen",
        "envpool.vizdoom": "ppo-vizdoom",
    }
    wrong = []
    for task, (family, *_) in registry.specs.items():
        preset = resolve(f"envpool/{task}", "ppo")[0]
        expected = families.get(family, "ppo-generic")
        if preset != expected and family != "envpool.classic_control" and not task.startswith("CarRacing"):
            wrong.append((task, family, preset))
    assert wrong == []


def test_presets_share_nothing() -> None:
    presets()["batchppo-ant"]["num_envs"] = 1
    assert presets()["batchppo-ant"]["num_envs"] == 30


def test_ppo_on_mujoco_is_the_defaults_but_for_small_minibatches() -> None:
    defaults = RunConfig(env="Ant-v5", preset="ppo-mujoco")
    assert resolve("Ant-v5", "ppo")[1] == override(defaults, minibatches=16)


@pytest.mark.parametrize(
    ("env", "longest", "steps", "discount", "episodes"),
    [
        ("Pendulum-v1", 200, 1, 0.995, 30),
        ("CartPole-v1", 500, 0.2, 0.995, 30),
        ("Reacher-v5", 50, 5, 0.985, 60),
        ("HalfCheetah-v5", 1000, 10, 0.99, 30),
        ("Walker2d-v5", 1000, 10, 0.995, 30),
        ("Hopper-v5", 1000, 10, 0.995, 60),
        ("Ant-v5", 1000, 20, 0.995, 30),
        ("Humanoid-v5", 1000, 50, 0.995, 60),
    ],
)
def test_batchppo_tasks(env: str, longest: int, steps: float, discount: float, episodes: int) -> None:
    config = resolve(env, "batchppo")[1]
    assert (config.loss.unroll_length, config.steps) == (longest, steps * 1e6)
    assert (config.loss.discount, config.loss.episodes_per_update) == (discount, episodes)


def test_batchppo_parameters() -> None:
    config = resolve("HalfCheetah-v5", "batchppo")[1]
    assert config.vec.num_envs == 30
    network = config.network
    assert (network.layers, network.activation, network.mean_activation) == ((200, 100), "relu", "tanh")
    assert (network.initial_std, network.std_parametrisation, network.init) == (0.35, "softplus", "glorot")
    assert (network.normalise_observations, network.observation_clip) == (True, 5.0)
    assert config.loss == PPOConfig(
        unroll_length=1000,
        episodes_per_update=30,
        epochs=25,
        minibatches=1,
        discount=0.99,
        gae_lambda=1.0,
        recompute_advantages=False,
        normalise_advantages="batch",
        clip_ratio=None,
        kl_penalty=1.0,
        kl_target=0.01,
        kl_cutoff_factor=2.0,
        kl_cutoff_coefficient=1000.0,
        value_cost=1.0,
        entropy_cost=0.0,
        reward_scaling="rewards",
        reward_clip=10.0,
    )
    optimiser = config.optimiser
    assert (optimiser.learning_rate, optimiser.schedule, optimiser.epsilon) == (1e-4, "constant", 1e-8)
    assert optimiser.max_gradient_norm is None


def test_ppo_on_atari() -> None:
    config = resolve("ALE/Breakout-v5", "ppo")[1]
    assert (config.steps, config.env_args, config.vec.num_envs) == (10_000_000, {}, 8)
    assert (config.network.layers, config.network.image_encoder) == ((), "nature")
    assert not config.network.normalise_observations
    assert config.loss == PPOConfig(
        unroll_length=128,
        epochs=4,
        minibatches=4,
        discount=0.99,
        gae_lambda=0.95,
        recompute_advantages=False,
        clip_ratio=0.1,
        value_cost=0.5,
        entropy_cost=0.01,
        reward_scaling="none",
        reward_clip=1.0,
    )
    optimiser = config.optimiser
    assert (optimiser.learning_rate, optimiser.schedule, optimiser.epsilon) == (2.5e-4, "linear", 1e-5)
    assert optimiser.max_gradient_norm == 0.5


def test_ppo_on_procgen_is_as_published() -> None:
    config = resolve("envpool/CoinrunEasy-v0", "ppo")[1]
    assert (config.steps, config.vec.num_envs) == (25_000_000, 64)
    assert (config.network.layers, config.network.image_encoder) == ((), "deep")
    assert config.loss == PPOConfig(
        unroll_length=256,
        epochs=3,
        minibatches=8,
        discount=0.999,
        gae_lambda=0.95,
        recompute_advantages=False,
        clip_ratio=0.2,
        value_cost=0.5,
        entropy_cost=0.01,
        reward_scaling="returns",
    )
    assert config.optimiser == OptimiserConfig(learning_rate=5e-4, schedule="constant", max_gradient_norm=0.5)


def test_impala_on_atari_is_the_table_of_the_paper() -> None:
    config = resolve("ALE/Breakout-v5", "impala")[1]
    assert (config.steps, config.env_args, config.vec.num_envs) == (50_000_000, {"life_loss": True}, 32)
    assert (config.network.layers, config.network.image_encoder) == ((), "shallow")
    assert config.loss == ImpalaConfig(
        unroll_length=20,
        discount=0.99,
        corrections="vtrace",
        rho_bar=1.0,
        c_bar=1.0,
        pg_rho_bar=1.0,
        trace_lambda=1.0,
        mix_bootstrap=False,
        reduction="sum",
        value_cost=0.5,
        entropy_cost=0.01,
        reward_scaling="none",
        reward_clip="unit",
    )
    assert config.optimiser == OptimiserConfig(
        optimiser_name="rmsprop", learning_rate=6e-4, schedule="linear", epsilon=0.01, max_gradient_norm=40.0
    )
    assert config.columns_per_update == 32


@pytest.mark.parametrize("name", [name for name in presets() if name.startswith("a2c-")])
def test_a2c_corrects_nothing(name: str) -> None:
    loss = resolve("e", preset=name)[1].loss
    assert isinstance(loss, ImpalaConfig) and loss.corrections == "none"
