"""IMPALA on Pong, on the CPU: Pronghorn against its own bound, and against peers. See README.md beside this file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

import rounds

from pronghorn.tools import bench, contest
from pronghorn.tools.contest import Contestant, Spread
from pronghorn.types import UserError

ENV = "ALE/Pong-v5"
NUM_ENVS = 32
OURS = "pronghorn-async"
PARTS = ("env", "inference", "learning")
STEPS = {"nature": 40_000, "shallow": 80_000, "deep": 12_000}
"""About a minute's work on two cores."""


PEERS = {
    "sample-factory": ("sample_factory_impala.py", "sample_factory", ("nature", "deep")),
    "rllib": ("rllib_impala.py", "ray", ("nature", "shallow")),
}
"""Script, module, and the networks that each can be told to use."""


def contestants(network: str, core: str, steps: int, pythons: list[str]) -> list[Contestant]:
    """All that train, in the order of a round; ours first. A peer runs in the first of ``pythons`` that has it."""

    def run(name: str, **options: Any) -> Contestant:
        common = {"image_encoder": network, "core": core, "num_envs": NUM_ENVS}
        chosen = ("--options", json.dumps(common | options))
        arguments = ("--env", ENV, "--algorithm", "impala", "--steps", str(steps), *chosen)
        return Contestant(name, sys.executable, rounds.SCRIPTS / "pronghorn_run.py", "pronghorn", arguments)

    entered = [run(OURS, runner="async"), run("pronghorn-sync", runner="sync")]
    if core != "none":
        entered.insert(1, run(f"{OURS}-feed-forward", runner="async", core="none"))
    work = ("--steps", str(steps), "--network", network, "--core", core)
    for name, (script, module, networks) in PEERS.items():
        if network in networks:
            peer = Contestant(name, sys.executable, rounds.SCRIPTS / script, module, work)
            entered.append(contest.at_home(peer, pythons))
    return entered


def parts(network: str, core: str, seconds: float, cores: int) -> list[Contestant]:
    """Each part by itself, with one thread and with two. Their rates are steps per core-second."""
    options = ("--options", json.dumps({"image_encoder": network, "core": core, "num_envs": NUM_ENVS}))
    return [
        Contestant(
            f"{part}-{threads}",
            sys.executable,
            rounds.SCRIPTS / "impala_parts.py",
            "pronghorn",
            ("--part", part, "--env", ENV, "--threads", str(threads), "--seconds", str(seconds), *options),
        )
        for part in PARTS
        for threads in range(1, min(cores, 2) + 1)
    ]


class Bound:
    """What no system that does the same work can exceed: cores ÷ (e + i + l), in core-seconds per step.

    Each part counts with whichever number of threads takes the least; ``rates`` are those of ``parts`` by name.
    """

    def __init__(self, rates: dict[str, list[float]], cores: int) -> None:
        self.chosen: dict[str, str] = {}
        for part in PARTS:
            names = [name for name in rates if name.startswith(f"{part}-")]
            self.chosen[part] = max(names, key=lambda name: Spread.over(rates[name]).median)
        self._costs = {part: [1 / rate for rate in rates[name]] for part, name in self.chosen.items()}
        rounds = zip(*self._costs.values(), strict=True)
        self.rounds = [bench.Costs(env, acting, learn, learn).bound(cores) for env, acting, learn in rounds]

    def efficiency(self, loop: list[float]) -> Spread:
        """Of a whole loop with these steps per second, round by round."""
        return Spread.over([rate / bound for rate, bound in zip(loop, self.rounds, strict=True)])

    def cost(self, part: str) -> Spread:
        """Core-seconds per step."""
        return Spread.over(self._costs[part])

    def report(self, loop: list[float]) -> dict[str, Any]:
        """As plain values, for JSON; ``loop`` may be empty."""
        return {
            "core_seconds_per_step": {part: dataclasses.asdict(self.cost(part)) for part in PARTS},
            "parts": self.chosen,
            "bound": dataclasses.asdict(Spread.over(self.rounds)),
            "efficiency": dataclasses.asdict(self.efficiency(loop)) if loop else None,
        }

    def text(self, loop: list[float], cores: int) -> str:
        """The same for people."""
        rows = [["", "core-µs per step", "threads"]]
        for part in PARTS:
            micro = Spread.over([1e6 * cost for cost in self._costs[part]])
            rows.append([part, micro.text(0), self.chosen[part].removeprefix(f"{part}-")])
        lines = [contest.aligned(rows), f"bound = {cores} ÷ sum = {Spread.over(self.rounds).text(0)} steps/s"]
        if loop:
            lines.append(f"efficiency of {OURS} = loop ÷ bound = {self.efficiency(loop).text(2)}")
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=STEPS, default="nature")
    parser.add_argument("--core", choices=("none", "lstm"), default="none")
    parser.add_argument("--steps", type=int, help="of each run, warm-up included (default: about a minute's work)")
    parser.add_argument("--seconds", type=float, default=10.0, help="timed seconds of each part")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--peers-python", action="append", help="interpreter that has a peer; may be given again")
    parser.add_argument("--only", default="", help='names of contestants, and "parts", separated by commas')
    parser.add_argument("--json", action="store_true", help="one object on one line instead of the tables")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats must be positive, not {options.repeats}")
    try:
        named = options.peers_python or [sys.executable]
        pythons = [contest.interpreter(given, "--peers-python") for given in named]
    except UserError as error:
        parser.error(str(error))

    before = bench.machine()
    cores, steps = before["cores"], options.steps or STEPS[options.network]
    everyone = contestants(options.network, options.core, steps, pythons)
    names = [*(item.name for item in everyone), "parts"]
    chosen = options.only.split(",") if options.only else names
    if unknown := set(chosen) - set(names):
        parser.error(f"--only {', '.join(sorted(unknown))}: known are {', '.join(names)}")
    entered = [item for item in everyone if item.name in chosen]
    measured = parts(options.network, options.core, options.seconds, cores) if "parts" in chosen else []
    # Anything below 20 steps/s counts as hung; the rest is for imports, the last evaluation, and whoever else works.
    standings = rounds.hold([*entered, *measured], options.repeats, timeout=300 + 4 * options.seconds + steps / 20)

    trained = {item.name: standings[item.name] for item in entered}
    rates = {item.name: standings[item.name].rates for item in measured}
    bound = Bound(rates, cores) if measured and not any(standings[name].trouble for name in rates) else None
    loop = standings[OURS].rates if OURS in standings and not standings[OURS].trouble else []
    if options.json:
        about = {"work": f"pong-impala-{options.network}", "core": options.core, "steps": steps, "machine": before}
        print(json.dumps(about | contest.report(trained, [OURS]) | (bound.report(loop) if bound else {})))
        return 0
    place = f"{cores} cores, load {before['load']} at the start"
    print(f"pong-impala-{options.network}, core {options.core}, {steps:,} steps × {options.repeats} rounds, {place}")
    if trained:
        print(contest.table(trained, [OURS]))
    if bound:
        print(bound.text(loop, cores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
