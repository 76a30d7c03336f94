"""Whole trainings with a known standard. ``make learn`` runs them all, the ordinary tests one."""

import pytest

import pronghorn


def returns(env, seeds, tmp_path, **options):
    found = []
    for seed in seeds:
        run = tmp_path / f"{env}-{seed}"
        pronghorn.train(env, quiet=True, seed=seed, run=str(run), **options)
        found.append(pronghorn.evaluate(run, episodes=20)["return_mean"])
    return found


@pytest.mark.timeout(300)
def test_cartpole_is_solved(tmp_path):
    assert min(returns("CartPole-v1", [0], tmp_path, steps=100_000)) >= 475


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("env", "steps", "standard", "failures"),
    [("CartPole-v1", 100_000, 475, 0), ("Pendulum-v1", 300_000, -250, 0), ("HalfCheetah-v5", 500_000, 2000, 1)],
)
def test_five_seeds(env, steps, standard, failures, tmp_path):
    found = returns(env, range(5), tmp_path, steps=steps)
    assert sum(value < standard for value in found) <= failures, found
