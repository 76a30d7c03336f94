"""Whole trainings with a known standard. ``make learn`` runs them all, the ordinary tests the short ones."""

import pytest
from learnable import ImageAndVectorEnv

import pronghorn

BANDIT = {
    "layers": (),
    "num_envs": 8,
    "unroll_length": 32,
    "epochs": 4,
    "learning_rate": 1e-2,
    "discount": 0.5,
    "entropy_cost": 0.01,
    "reward_scaling": "none",
    "layout": "serial",
    "threads": 1,
    "compile": False,
}
"""Options for envs in which every step is a question of its own."""


def returns(env, seeds, tmp_path, episodes=20, **options):
    found = []
    for seed in seeds:
        run = tmp_path / f"run-{seed}"
        pronghorn.train(env, quiet=True, seed=seed, run=str(run), **options)
        found.append(pronghorn.evaluate(run, episodes=episodes)["return_mean"])
    return found


@pytest.mark.timeout(300)
def test_cartpole_is_solved(tmp_path):
    assert min(returns("CartPole-v1", [0], tmp_path, steps=100_000)) >= 475


@pytest.mark.timeout(300)
@pytest.mark.parametrize("algorithm", ["impala", pytest.param("a2c", marks=pytest.mark.learning)])
def test_cartpole_is_balanced_by_one_pass_over_each_batch(algorithm, tmp_path):
    found = returns("CartPole-v1", [0], tmp_path, algorithm=algorithm, steps=100_000, layout="serial", threads=1)
    assert min(found) > 400


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("image_encoder", "channels"), [("shallow", 1), ("nature", 4)])
def test_what_only_an_image_tells_is_learnt(image_encoder, channels, tmp_path):
    options = {
        "env_args": {"channels": channels},
        "image_encoder": image_encoder,
        "layers": (),
        "num_envs": 8,
        "unroll_length": 32,
        "epochs": 4,
        "learning_rate": 1e-3,
        "discount": 0.5,
        "entropy_cost": 0.01,
        "reward_scaling": "none",
        "layout": "serial",
        "threads": 1,
    }
    (found,) = returns("pronghorn.envs.probes:ImageBanditEnv", [0], tmp_path, steps=4000, **options)
    assert found > 0.95 * 4


@pytest.mark.timeout(300)
@pytest.mark.parametrize("told", [True, False])
def test_an_instruction_is_read(told, tmp_path):
    options = {**BANDIT, "env_args": {"told": told}}
    env = "pronghorn.envs.probes:InstructionEnv"
    (found,) = returns(env, [0], tmp_path, episodes=200, steps=6000, **options)
    assert found > 0.95 * 4 if told else 0.45 * 4 < found < 0.55 * 4


@pytest.mark.timeout(300)
@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
def test_a_cue_is_remembered_by_what_has_a_memory(core, tmp_path):
    options = {
        "core": core,
        "core_size": 16,
        "layers": (),
        "normalise_observations": False,
        "unroll_length": 16,
        "epochs": 4,
        "minibatches": 2,
        "learning_rate": 1e-2,
        "discount": 0.95,
        "entropy_cost": 0.01,
        "reward_scaling": "none",
        "layout": "serial",
        "threads": 1,
        "compile": False,
    }
    (found,) = returns("pronghorn.envs.probes:CueRecallEnv", [0], tmp_path, episodes=200, steps=10_000, **options)
    assert 0.35 < found < 0.65 if core == "none" else found > 0.95


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("env", "steps", "standard", "failures"),
    [("CartPole-v1", 100_000, 475, 0), ("Pendulum-v1", 300_000, -250, 0), ("HalfCheetah-v5", 500_000, 2000, 1)],
)
def test_five_seeds(env, steps, standard, failures, tmp_path):
    found = returns(env, range(5), tmp_path, steps=steps)
    assert sum(value < standard for value in found) <= failures, found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("env", "env_args", "steps", "standard"),
    [
        ("learnable:MixedEnv", {}, 8000, 0.9),
        ("learnable:FromMinusOneEnv", {}, 2000, 1.0),
        ("pronghorn.envs.probes:MaskedBanditEnv", {"arms": 700, "legal": 1}, 600, 1.0),
    ],
    ids=["mixed actions", "from -1", "one of 700 legal"],
)
def test_every_part_of_a_space_counts(env, env_args, steps, standard, tmp_path):
    options = {**BANDIT, "env_args": env_args}
    (found,) = returns(env, [0], tmp_path, episodes=50, steps=steps, **options)
    assert found >= standard * 4


IMAGE_AND_VECTOR = {**BANDIT, "image_encoder": "shallow", "learning_rate": 1e-3}


@pytest.mark.timeout(300)
def test_an_image_and_a_number_beside_it_are_both_seen(tmp_path):
    (found,) = returns("learnable:ImageAndVectorEnv", [0], tmp_path, episodes=50, steps=3000, **IMAGE_AND_VECTOR)
    assert found > 0.9 * 4


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_an_image_and_a_number_beside_it_are_both_seen_by_every_seed(algorithm, tmp_path):
    options = {**IMAGE_AND_VECTOR, "steps": 6000}
    if algorithm == "impala":
        del options["epochs"]
        options |= {"steps": 12_000, "unroll_length": 16, "learning_rate": 3e-3}
    found = returns("learnable:ImageAndVectorEnv", range(3), tmp_path, episodes=50, algorithm=algorithm, **options)
    assert min(found) > 0.95 * 4, found


def test_neither_image_nor_number_is_enough():
    env = ImageAndVectorEnv()

    def play(decide):
        total = 0
        for seed in range(300):
            (seen, _), over = env.reset(seed=seed), False
            while not over:
                quarters = seen["image"][0].reshape(2, 10, 2, 10).mean((1, 3))
                seen, reward, over, *_ = env.step(decide(int(quarters.argmax()), int(seen["bit"][0])))
                total += reward
        return total / 300

    assert play(lambda quadrant, bit: quadrant + 4 * bit) == 4
    assert 1.85 < play(lambda quadrant, bit: quadrant) < 2.15
    assert 1.85 < play(lambda quadrant, bit: quadrant + 4 * (quadrant // 2)) < 2.15  # no quadrant tells the bit
    assert 0.85 < play(lambda quadrant, bit: 4 * bit) < 1.15


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("env", "package", "algorithm", "steps", "standard"),
    [
        ("VizdoomBasic-v1", "vizdoom", "ppo", 30_000, 70),
        ("VizdoomBasic-v1", "vizdoom", "impala", 60_000, 70),
        ("LunarLander-v3", "Box2D", "ppo", 500_000, 200),
        ("dm_control/cartpole-swingup", "dm_control", "ppo", 400_000, 300),
    ],
)
def test_presets_of_other_families(env, package, algorithm, steps, standard, tmp_path, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # ViZDoom leaves a folder where it is started
    assert min(returns(env, [0], tmp_path, algorithm=algorithm, steps=steps)) >= standard
