"""Table 1 of the paper of IMPALA, as far as one machine goes: who waits for whom, and what it costs. See README.md."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

import rounds

from pronghorn.tools import bench, contest
from pronghorn.tools.contest import Contestant, Spread, Standing

NUM_ENVS = 32
REFERENCE = "impala"


@dataclass(frozen=True)
class Row:
    """``options`` of the run (None: A3C, which is none of ours), and what the paper measured on its two tasks, in
    thousands of frames per second."""

    algorithm: str
    options: dict[str, Any] | None
    paper: tuple[float, float]


def table_rows(cores: int) -> dict[str, Row]:
    """By name, in the order of the paper."""
    together = {"runner": "async", "max_policy_lag": 0, "actors": cores}  # none of them acts while there is learning
    return {
        "a3c": Row("a2c", None, (6.5, 9.0)),
        "a2c-sync-step": Row("a2c", {"runner": "sync"}, (9.0, 5.0)),
        "a2c-sync-trajectory": Row("a2c", together, (16.0, 17.5)),
        REFERENCE: Row("impala", {"runner": "async"}, (17.0, 20.5)),
        "impala-inference-on-learner": Row("impala", {"runner": "async", "inference": "learner"}, (21.0, 24.0)),
    }


def contestant(name: str, row: Row, env: str, steps: int, cores: int) -> Contestant:
    """What measures a row."""
    common = ("--env", env, "--steps", str(steps))
    if row.options is None:
        arguments = (*common, "--num-envs", str(NUM_ENVS), "--workers", str(cores))
        return Contestant(name, sys.executable, rounds.SCRIPTS / "a3c.py", "pronghorn", arguments)
    options = json.dumps({"num_envs": NUM_ENVS} | row.options)
    arguments = (*common, "--algorithm", row.algorithm, "--options", options)
    return Contestant(name, sys.executable, rounds.SCRIPTS / "pronghorn_run.py", "pronghorn", arguments)


def text(standings: dict[str, Standing], rows: dict[str, Row], frames_per_step: int) -> str:
    """The table, with the paper's beside it."""
    ratios = contest.ratios(standings, REFERENCE)
    lines = [["", "frames/s", f"{REFERENCE} ÷ this", "paper, task 1 and 2", f"{REFERENCE} ÷ this"]]
    for name, standing in standings.items():
        rates = [frames_per_step * rate for rate in standing.rates]
        frames = Spread.over(rates).text(0) if rates else standing.trouble
        ours = ratios[name].text(2) if name in ratios else ""
        paper = rows[name].paper
        quotients = [there / here for there, here in zip(rows[REFERENCE].paper, paper, strict=True)]
        lines.append([name, frames, ours, "{:.3g}K, {:.3g}K".format(*paper), "{:.2f}, {:.2f}".format(*quotients)])
    return contest.aligned(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--rows", default="", help="names of rows, separated by commas")
    parser.add_argument("--steps", type=int, default=60_000, help="of each run")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--json", action="store_true", help="one object on one line instead of the table")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats must be positive, not {options.repeats}")
    before = bench.machine()
    rows = table_rows(before["cores"])
    chosen = options.rows.split(",") if options.rows else list(rows)
    if unknown := set(chosen) - set(rows):
        parser.error(f"--rows {', '.join(sorted(unknown))}: known are {', '.join(rows)}")

    entered = [
        contestant(name, row, options.env, options.steps, before["cores"])
        for name, row in rows.items()
        if name in chosen
    ]
    # Anything below 20 steps/s counts as hung; the rest is for imports and the last evaluation.
    standings = rounds.hold(entered, options.repeats, timeout=300 + options.steps / 20)
    frames_per_step = 4 if options.env.startswith("ALE/") else 1
    if options.json:
        about = {"work": "throughput-table", "env": options.env, "frames_per_step": frames_per_step, "machine": before}
        print(json.dumps(about | contest.report(standings, [REFERENCE])))
    else:
        place = f"{before['cores']} cores, load {before['load']} at the start"
        print(f"{options.env}, {NUM_ENVS} envs, {options.steps:,} steps × {options.repeats} rounds, {place}")
        print(text(standings, rows, frames_per_step))
    return 0


if __name__ == "__main__":
    sys.exit(main())
