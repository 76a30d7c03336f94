"""What policy lag costs with each correction: the experiment of IMPALA's section 5.2.2, small.

Runs of the sync runner act with weights that are 0, 4, 16 updates old (``--force-lag``), so the lag is exact and the
runs can be repeated bit for bit. The score of a run is the mean return of its last 100 training episodes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

TIMEOUT = 3600.0
COLOURS = {"vtrace": "#0072b2", "one-step": "#009e73", "epsilon": "#e69f00", "none": "#d55e00"}
NAMES = {"vtrace": "V-trace", "one-step": "one-step", "epsilon": "ε-correction", "none": "no correction"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 4, 16])
    parser.add_argument("--corrections", nargs="+", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/policy_lag"), help="where the runs are kept")
    parser.add_argument("--out", type=Path, help="a picture to draw")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--json", action="store_true")
    arguments, options = parser.parse_known_args()
    cells = list(product(arguments.corrections, arguments.lags, range(arguments.seeds)))
    with ThreadPoolExecutor(arguments.at_once) as pool:
        scores = list(pool.map(lambda cell: score(arguments, options, *cell), cells))
    found: dict[str, dict[int, list[float]]] = {name: {lag: [] for lag in arguments.lags} for name in NAMES}
    for (corrections, lag, _), value in zip(cells, scores, strict=True):
        found[corrections][lag].append(value)
    found = {name: found[name] for name in arguments.corrections}
    if arguments.json:
        print(json.dumps(found))
    else:
        print("\n".join(table(found)))
    if arguments.out is not None:
        draw(found, arguments.env, arguments.out)


def score(arguments: argparse.Namespace, options: list[str], corrections: str, lag: int, seed: int) -> float:
    """Of one run, which is made unless it is already there."""
    run = arguments.runs / f"{corrections}-lag{lag}-seed{seed}"
    if not (run / "metrics.jsonl").exists():
        command = [sys.executable, "-m", "pronghorn", "train", arguments.env, "--algorithm", "impala", "--quiet"]
        command += ["--layout", "serial", "--threads", "1", "--evaluate-every", str(10**9), *options]
        command += ["--corrections", corrections, "--force-lag", str(lag), "--seed", str(seed)]
        command += ["--steps", str(arguments.steps), "--run", str(run)]
        subprocess.run(command, check=True, timeout=TIMEOUT, stdout=subprocess.DEVNULL)
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float([report["return/mean"] for report in reports if "return/mean" in report][-1])


def table(found: dict[str, dict[int, list[float]]]) -> list[str]:
    """Markdown: the median of each cell, its extremes, and its share of the median without lag."""
    lags = list(next(iter(found.values())))
    lines = ["| corrections | " + " | ".join(f"lag {lag}" for lag in lags) + " |", "| --- |" + " --- |" * len(lags)]
    for name, by_lag in found.items():
        base = float(np.median(by_lag[lags[0]]))
        cells = []
        for lag in lags:
            middle = float(np.median(by_lag[lag]))
            share = "" if lag == lags[0] or base <= 0 else f", {middle / base:.0%}"
            cells.append(f"{middle:.1f} ({min(by_lag[lag]):.1f}–{max(by_lag[lag]):.1f}){share}")
        lines.append(f"| {NAMES[name]} | " + " | ".join(cells) + " |")
    return lines


def draw(found: dict[str, dict[int, list[float]]], env: str, out: Path) -> None:
    """Median and quartiles over lag, a line for each correction."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    lags: list[Any] = list(next(iter(found.values())))
    places = range(len(lags))
    for number, (name, by_lag) in enumerate(found.items()):
        low, middle, high = np.array([np.percentile(by_lag[lag], (25, 50, 75)) for lag in lags]).T
        panel.fill_between(places, low, high, color=COLOURS[name], alpha=0.15, linewidth=0)
        # The first on top, those below broader: equal lines are all seen.
        look = {"color": COLOURS[name], "linewidth": 2.0 + 1.2 * number, "zorder": 3.0 - number / 10}
        panel.plot(places, middle, marker="o", markersize=6.0 + 1.2 * number, label=NAMES[name], **look)
    panel.set_xticks(places, [str(lag) for lag in lags])
    panel.set_xlabel("policy lag in updates")
    panel.set_ylabel("return (mean of the last 100 episodes)")
    panel.set_title(env, fontweight="bold", loc="left", fontsize=12)
    panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
    panel.grid(color="#e5e5e5", linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=160)


if __name__ == "__main__":
    main()
