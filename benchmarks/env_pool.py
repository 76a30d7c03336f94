"""Envs with random actions and no network: Pronghorn's layouts against the vector envs of others. See README.md."""

from __future__ import annotations

import argparse
import json
import sys

import rounds

from pronghorn.tools import bench, contest
from pronghorn.tools.contest import Contestant

WORKS = (("HalfCheetah-v5", 16), ("HalfCheetah-v5", 64), ("CartPole-v1", 64), ("ALE/Pong-v5", 32))


def contestants(env: str, num_envs: int, seconds: float, cores: int, peers: str) -> list[Contestant]:
    """All of them, in the order of a round; ours first."""

    def entry(name: str, layout: str, module: str, python: str = sys.executable, workers: int = 1) -> Contestant:
        common = ("--env", env, "--num-envs", str(num_envs), "--seconds", str(seconds), "--workers", str(workers))
        return Contestant(name, python, rounds.SCRIPTS / "env_stepping.py", module, ("--layout", layout, *common))

    if env.startswith("ALE/"):
        return [
            entry("pronghorn-native", "pronghorn-native", "pronghorn", workers=cores),
            entry("bare-ale", "bare-ale", "ale_py", workers=cores),
        ]
    return [
        entry("pronghorn-pool", "pronghorn-pool", "pronghorn", workers=cores),
        *(
            entry(f"pronghorn-pool-{workers}", "pronghorn-pool", "pronghorn", workers=workers)
            for workers in range(1, cores)
        ),
        entry("pronghorn-serial", "pronghorn-serial", "pronghorn"),
        entry("single-env", "single-env", "gymnasium"),
        entry("bare-loops", "bare-loops", "gymnasium", workers=cores),
        entry("gymnasium-sync", "gymnasium-sync", "gymnasium"),
        entry("gymnasium-async", "gymnasium-async", "gymnasium"),
        entry("sb3-dummy", "sb3-dummy", "stable_baselines3", peers),
        entry("sb3-subproc", "sb3-subproc", "stable_baselines3", peers),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="", help="one Gymnasium id (default: HalfCheetah, CartPole and Pong in turn)")
    parser.add_argument("--num-envs", type=int, help="parallel envs (default: 16 and 64, 64 of CartPole, 32 of Pong)")
    parser.add_argument("--seconds", type=float, default=5.0, help="timed seconds of each run")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--only", default="", help="names of contestants, separated by commas")
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter that has stable-baselines3")
    parser.add_argument("--json", action="store_true", help="one object on one line for each env instead of a table")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats must be positive, not {options.repeats}")

    chosen = set(options.only.split(",")) if options.only else set()
    works = WORKS
    if options.env:
        works = ((options.env, options.num_envs or dict(WORKS).get(options.env, 16)),)
    for env, usual in works:
        num_envs = options.num_envs or usual
        before = bench.machine()
        everyone = contestants(env, num_envs, options.seconds, before["cores"], options.peers_python)
        entered = [item for item in everyone if item.name in (chosen or {item.name})]
        if not entered:
            parser.error(f"--only {options.only}: known are {', '.join(item.name for item in everyone)}")
        ours = tuple(item.name for item in entered if item.name in ("pronghorn-pool", "pronghorn-native"))
        standings = rounds.hold(entered, options.repeats, timeout=120 + 2 * options.seconds)
        if options.json:
            about = {"work": "env-pool", "env": env, "num_envs": num_envs, "machine": before}
            print(json.dumps(about | contest.report(standings, ours)))
        else:
            print(f"{env}, {num_envs} envs, {before['cores']} cores, load {before['load']} at the start")
            print(contest.table(standings, ours), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
