"""PPO on HalfCheetah-v5, on the CPU: Pronghorn against stable-baselines3 and skrl. See README.md beside this file."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import contest
from contest import Contestant

from pronghorn.tools import bench

OURS = "pronghorn"


def contestants(peers_python: str, steps: int) -> list[Contestant]:
    """All of them, in the order of a round."""
    arguments = ("--steps", str(steps))
    return [
        Contestant(OURS, sys.executable, "pronghorn_ppo.py", "pronghorn", arguments),
        Contestant("stable-baselines3", peers_python, "sb3_ppo.py", "stable_baselines3", arguments),
        Contestant("skrl", peers_python, "skrl_ppo.py", "skrl", arguments),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=81_920, help="env steps of each run, warm-up included")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter in which the peers are installed")
    parser.add_argument("--only", default="", help="names of contestants, separated by commas")
    parser.add_argument("--json", action="store_true", help="one object on one line instead of the table")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats must be positive, not {options.repeats}")

    peers_python = shutil.which(options.peers_python)
    if peers_python is None:
        parser.error(f"--peers-python {options.peers_python}: no such program")
    # Made absolute, since contestants run elsewhere, but not resolved: a venv's python is a link.
    entered = contestants(str(Path(peers_python).absolute()), options.steps)
    chosen = options.only.split(",") if options.only else [contestant.name for contestant in entered]
    if unknown := set(chosen) - {contestant.name for contestant in entered}:
        parser.error(f"--only {', '.join(sorted(unknown))}: known are {', '.join(item.name for item in entered)}")
    before = bench.machine()
    # Anything below 100 steps/s counts as hung; the rest is for imports and compilation.
    rates = contest.hold(
        [contestant for contestant in entered if contestant.name in chosen],
        options.repeats,
        timeout=180 + options.steps / 100,
    )
    if options.json:
        about = {"work": "cheetah-ppo", "steps": options.steps, "repeats": options.repeats, "machine": before}
        print(json.dumps(about | contest.report(rates, [OURS])))
    else:
        place = f"{before['cores']} cores, load {before['load']} at the start"
        print(f"cheetah-ppo, {options.steps:,} steps × {options.repeats} rounds, {place}")
        print(contest.table(rates, [OURS]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
