"""A run of Pronghorn through its public ``train``, timed from its own reports; no checkpoint before the end."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pronghorn
from pronghorn.tools import bench
from pronghorn.tools.peers import work

WARM_UP = 6
"""Updates that are not timed: start-up is over by then, and so is what actors had in stock when learning began."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True)
    parser.add_argument("--algorithm", required=True)
    parser.add_argument("--steps", type=int, required=True, help="warm-up included")
    parser.add_argument("--options", type=json.loads, default={}, help="of the run, as a JSON object")
    arguments = parser.parse_args()
    steps = arguments.steps
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        pronghorn.train(
            arguments.env,
            arguments.algorithm,
            quiet=True,
            run=str(run),
            steps=steps,
            evaluate_every=2 * steps,
            evaluation_episodes=1,
            checkpoint_every=2 * steps,
            **arguments.options,
        )
        records = bench.reports(run)
    timed = [record for record in records if record["updates"] >= WARM_UP]
    if len(timed) < 2:
        parser.error(f"--steps {steps} ends within the warm-up of {WARM_UP} updates; use more")
    work.answer(timed[-1]["step"] - timed[0]["step"], timed[-1]["seconds"] - timed[0]["seconds"])


if __name__ == "__main__":
    main()
