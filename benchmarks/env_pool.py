"""Envs with random actions and no network: Pronghorn's layouts against gymnasium's. See README.md beside this file."""

from __future__ import annotations

import argparse
import json
import sys

import contest
from contest import Contestant

LAYOUTS = {
    "pronghorn-pool": "pronghorn",
    "pronghorn-serial": "pronghorn",
    "gymnasium-sync": "gymnasium",
    "gymnasium-async": "gymnasium",
}
OURS = ("pronghorn-pool", "pronghorn-serial")
WORKS = (("HalfCheetah-v5", 16), ("CartPole-v1", 64))


def contestants(env: str, num_envs: int, seconds: float) -> list[Contestant]:
    """All of them, in the order of a round."""
    common = ("--env", env, "--num-envs", str(num_envs), "--seconds", str(seconds))
    return [
        Contestant(name, sys.executable, "env_stepping.py", module, ("--layout", name, *common))
        for name, module in LAYOUTS.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="", help="one Gymnasium id (default: HalfCheetah-v5, then CartPole-v1)")
    parser.add_argument("--num-envs", type=int, help="parallel envs (default: 16, and 64 of CartPole-v1)")
    parser.add_argument("--seconds", type=float, default=5.0, help="timed seconds of each run")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--only", default="", help="names of layouts, separated by commas")
    parser.add_argument("--json", action="store_true", help="one object on one line for each env instead of a table")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats must be positive, not {options.repeats}")

    chosen = options.only.split(",") if options.only else list(LAYOUTS)
    if unknown := set(chosen) - set(LAYOUTS):
        parser.error(f"--only {', '.join(sorted(unknown))}: known are {', '.join(LAYOUTS)}")
    works = [(options.env, dict(WORKS).get(options.env, 16))] if options.env else WORKS
    for env, usual in works:
        num_envs = options.num_envs or usual
        before = contest.machine()
        entered = [item for item in contestants(env, num_envs, options.seconds) if item.name in chosen]
        rates = contest.hold(entered, options.repeats, timeout=120 + 2 * options.seconds)
        if options.json:
            about = {"work": "env-pool", "env": env, "num_envs": num_envs, "machine": before}
            print(json.dumps(about | contest.report(rates, OURS)))
        else:
            print(f"{env}, {num_envs} envs, {before['cores']} cores, load {before['load']} at the start")
            print(contest.table(rates, OURS), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
