"""What ``layout="auto"`` chooses, against both layouts: envs of 5 µs to 5 ms a step. See README.md beside this file."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import Any

from pronghorn.envs.probes import CountingEnv
from pronghorn.processes.launch import available_cores
from pronghorn.tree import Tree
from pronghorn.vec.layout import choose, round_seconds

MICROSECONDS = (5, 30, 150, 1000, 5000)


class BusyEnv(CountingEnv):
    """Computes for ``seconds`` in every step."""

    def __init__(self, seconds: float) -> None:
        super().__init__((200,))
        self._seconds = seconds

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """Counts, at leisure."""
        until = time.perf_counter() + self._seconds
        answer = super().step(action)
        while time.perf_counter() < until:
            pass
        return answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    cores = len(available_cores())
    num_envs = options.num_envs
    print(f"{num_envs} envs, {cores} cores; µs in which all take a step, the best of {options.repeats}")
    print(f"{'a step':>8} {'serial':>10} {'pool':>10} {'auto':>8} {'auto ÷ best':>12}")
    for microseconds in MICROSECONDS:
        factory = functools.partial(BusyEnv, microseconds * 1e-6)
        chosen, _, _ = choose(factory, num_envs, cores)
        rounds = {
            layout: min(
                round_seconds(factory, num_envs, layout, min(cores, num_envs), 1) for _ in range(options.repeats)
            )
            for layout in ("serial", "pool")
        }
        ratio = rounds[chosen] / min(rounds.values())
        serial, pool = (rounds[layout] * 1e6 for layout in ("serial", "pool"))
        print(f"{microseconds:>5} µs {serial:>10.0f} {pool:>10.0f} {chosen:>8} {ratio:>12.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
