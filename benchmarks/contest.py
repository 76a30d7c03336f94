"""Runs contestants in turn (A B C A B C …), each round in fresh processes, and compares their rates.

A contestant is a script that prints, as its last line, ``{"steps": …, "seconds": …}``. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent / "contestants"

THREAD_BUDGET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
}
"""Set before torch is imported: networks this small gain nothing from a second thread, and threads that spin while
they wait take the cores of the envs."""


@dataclass(frozen=True)
class Contestant:
    """``module`` is what must be importable in ``python`` for ``script`` to run."""

    name: str
    python: str
    script: str
    module: str
    arguments: tuple[str, ...] = ()

    def installed(self) -> bool:
        """Whether the interpreter finds the module."""
        question = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({self.module!r}) is None)"
        return subprocess.run([self.python, "-c", question], timeout=60).returncode == 0

    def rate(self, timeout: float) -> float:
        """Runs once, in a folder of its own (simulators leave log files): steps per second.

        Raises:
            RuntimeError: it failed, or took longer than ``timeout`` seconds; with the end of what it printed.
        """
        command = [self.python, str(SCRIPTS / self.script), *self.arguments]
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | THREAD_BUDGET,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            try:
                printed, complaints = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as error:
                raise RuntimeError(f"{self.name} did not finish within {timeout:.0f} s") from error
            finally:
                with contextlib.suppress(ProcessLookupError):  # none is left, as it should be
                    os.killpg(process.pid, signal.SIGKILL)  # with its children, who would hold our pipes open
                process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{self.name} exited with {process.returncode}:\n{complaints[-2000:]}")
        answer = json.loads(printed.strip().splitlines()[-1])
        return float(answer["steps"] / answer["seconds"])


@dataclass(frozen=True)
class Spread:
    """Median and extremes of one figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int) -> str:
        """ "median (low–high)"."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


def hold(contestants: Sequence[Contestant], repeats: int, timeout: float) -> dict[str, list[float]]:
    """Rates of each contestant, one per round; an empty list for one that is not installed."""
    # So that whoever ends us ends the contestant too, which runs in a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    present = [contestant for contestant in contestants if contestant.installed()]
    rates: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for number in range(repeats):
        for contestant in present:
            rate = contestant.rate(timeout)
            rates[contestant.name].append(rate)
            print(f"round {number + 1}/{repeats}  {contestant.name:<24} {rate:>10,.0f} steps/s", file=sys.stderr)
    return rates


def ratios(rates: dict[str, list[float]], ours: str) -> dict[str, Spread]:
    """How many times as fast as each other contestant ``ours`` is, compared round by round.

    Rounds are pairs taken minutes apart at most, so a machine that slows down half way does not tilt the result.
    """
    own = rates.get(ours, [])
    return {
        name: Spread.over([mine / theirs for mine, theirs in zip(own, other, strict=True)])
        for name, other in rates.items()
        if name != ours and own and other
    }


def table(rates: dict[str, list[float]], ours: Sequence[str]) -> str:
    """One line per contestant: its rate, and for each name in ``ours`` how many times as fast that one is."""
    compared = [name for name in ours if rates.get(name)]
    by_name = {name: ratios(rates, name) for name in compared}
    rows = [["", "steps/s", *(f"{name} ÷ this" for name in compared)]]
    for name, values in rates.items():
        if not values:
            rows.append([name, "not installed", *("" for _ in compared)])
            continue
        cells = [by_name[own][name].text(2) if name in by_name[own] else "" for own in compared]
        rows.append([name, Spread.over(values).text(0), *cells])
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equally many cells as lines, with the columns below one another."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def report(rates: dict[str, list[float]], ours: Sequence[str]) -> dict[str, Any]:
    """The same as plain values, for JSON; contestants that are not installed have ``null``."""
    return {
        "steps_per_second": {
            name: dataclasses.asdict(Spread.over(values)) if values else None for name, values in rates.items()
        },
        "ratios": {
            name: {other: dataclasses.asdict(spread) for other, spread in ratios(rates, name).items()} for name in ours
        },
    }
