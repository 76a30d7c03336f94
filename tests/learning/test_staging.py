"""Batches on their way to the learner's device: the same numbers, and the next one while another is learnt from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rig
import torch

from pronghorn import api, build, tree
from pronghorn.learning.staging import Staging

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.fixture(scope="module")
def batches():
    with rig.parts(rig.config("rig:CameraBanditEnv", "impala", image_encoder="shallow")) as (actor, _learner):
        return [actor.collect() for _ in range(3)]


@pytest.mark.parametrize("device", DEVICES)
def test_what_arrives_is_what_was_sent(device, batches):
    staging = Staging(torch.device(device))
    under_way = [staging.begin(batch) for batch in batches]
    for batch, staged in zip(batches, under_way, strict=True):
        arrived = staging.finish(staged)

        def same(sent, tensor):
            assert tensor.device.type == device and np.array_equal(tensor.cpu().numpy(), sent)

        for name, part in vars(batch).items():
            tree.map(same, part, getattr(arrived, name))


def test_to_a_cpu_nothing_is_copied(batches):
    staged = Staging(torch.device("cpu")).begin(batches[0])
    assert staged.batch.reward.data_ptr() == batches[0].reward.ctypes.data


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_what_a_cpu_learns(batches):
    found = {}
    for device in ("cpu", "cuda"):
        made = rig.config("rig:CameraBanditEnv", "impala", image_encoder="shallow", device=device)
        learner = build.learner(made, build.env_spec(made))
        under_way = [learner.staging.begin(batch) for batch in batches]
        for staged in under_way:
            learner.update(staged, 0.0)
        found[device] = {name: value.cpu() for name, value in learner.weights().items()}
    for name, value in found["cpu"].items():
        torch.testing.assert_close(found["cuda"][name], value, rtol=1e-3, atol=1e-4)


def test_a_run_that_takes_batches_ahead_counts_every_row_once(monkeypatch, tmp_path):
    """As on a GPU: where copying takes no time the order is the same."""
    begin, update, learnt = Staging.__init__, build.Learner.update, []

    def copying(staging, device):
        begin(staging, device)
        staging.copies = True

    def noted(learner, staged, *arguments, **options):
        learnt.append((learner.version, staged.batch))
        return update(learner, staged, *arguments, **options)

    monkeypatch.setattr(Staging, "__init__", copying)
    monkeypatch.setattr(build.Learner, "update", noted)
    made = rig.config(
        "CountingEnv",
        "impala",
        runner="async",
        actors=2,
        max_policy_lag=3,
        replay_share=0.5,
        replay_capacity=50,
        run=str(tmp_path / "run"),
        steps=1500,
        evaluation_episodes=2,
    )
    assert api.train(made, quiet=True).exit_code == 0
    fresh = [int((batch.valid & ~batch.replayed).sum()) for _, batch in learnt]
    last = json.loads((Path(made.run) / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] >= 1500 and sum(fresh) <= last["step"] <= sum(fresh) + 2 * 35
    assert all((version - batch.policy_version[batch.fresh] <= 3).all() for version, batch in learnt)
