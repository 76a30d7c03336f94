"""Pronghorn, its update compiled; no evaluation and no checkpoint before the end."""

from __future__ import annotations

import tempfile
from pathlib import Path

import work

from pronghorn import api
from pronghorn.config import override
from pronghorn.presets.resolve import resolve
from pronghorn.tools import bench


def main() -> None:
    steps = work.steps()
    _, config = resolve(work.ENV, "ppo")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        config = override(
            config,
            run=str(run),
            steps=steps,
            num_envs=work.NUM_ENVS,
            unroll_length=work.UNROLL_LENGTH,
            epochs=work.EPOCHS,
            minibatches=work.MINIBATCHES,
            layers=work.LAYERS,
            learning_rate=work.LEARNING_RATE,
            # The peers compute advantages once a batch; ours, by default, before each of the ten passes.
            recompute_advantages=False,
            compile=True,
            evaluate_every=2 * steps,
            evaluation_episodes=1,
            checkpoint_every=2 * steps,
        )
        api.train(config, quiet=True)
        records = bench.reports(run)
    timed = [record for record in records if record["updates"] >= work.WARM_UP]
    work.answer(timed[-1]["step"] - timed[0]["step"], timed[-1]["seconds"] - timed[0]["seconds"])


if __name__ == "__main__":
    main()
