"""One configuration gives the same weights, bit for bit, wherever its envs run."""

from __future__ import annotations

from pathlib import Path

import pytest
import rig
import torch

from pronghorn import api, checkpoint


def weights(env: str, run: Path, layout: str, workers: int) -> dict[str, torch.Tensor]:
    options = {"steps": 300, "num_envs": 6, "groups": 2, "unroll_length": 16, "evaluation_episodes": 1}
    api.train(
        rig.config(f"gymnasium:{env}", run=str(run), layout=layout, workers=workers, evaluate_every=10**6, **options),
        quiet=True,
    )
    tensors = checkpoint.load_latest(run).tensors
    return {name: tensors[name] for name in tensors if name.startswith(("agent/", "optimiser/"))}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"])
def test_serial_and_pools_of_every_size_learn_the_same(env, tmp_path):
    if env.startswith("HalfCheetah"):
        pytest.importorskip("mujoco")
    expected = weights(env, tmp_path / "serial", "serial", 1)
    for workers in (1, 2, 3):
        found = weights(env, tmp_path / f"pool-{workers}", "pool", workers)
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert torch.equal(tensor, expected[name]), (workers, name)
