"""Runs contestants in turn (A B C A B C …), each time in a fresh process, and compares their rates.

A contestant is a script that prints, as its last line, ``{"steps": …, "seconds": …}``. It runs in an interpreter of
its own, with one thread for arithmetic, and finds ``work`` of ``tools/peers`` when it imports it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pronghorn.processes.launch import thread_budget
from pronghorn.types import UserError

PEERS = Path(__file__).resolve().parent / "peers"
"""Where our scripts for peers are."""

NOT_INSTALLED = "not installed"

LONGEST = 200
"""Characters of an error that are shown."""


class Failure(Exception):
    """A contestant has none of the rate that it was asked for; why, on one line."""


@dataclass(frozen=True)
class Contestant:
    """``module`` is what must be importable in the interpreter ``python`` for ``script`` to run."""

    name: str
    python: str
    script: Path
    module: str
    arguments: tuple[str, ...] = ()

    def installed(self) -> bool:
        """Whether the interpreter finds the module. One that says nothing for a minute does not."""
        question = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({self.module!r}) is None)"
        command = [self.python, "-c", question]
        try:
            # Elsewhere, since what lies in the current directory could be imported, too.
            asked = subprocess.run(command, env=self._environment(), cwd="/", capture_output=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return asked.returncode == 0

    def rate(self, timeout: float) -> float:
        """Runs once, in a folder of its own (simulators leave log files): steps per second.

        It does not outlive the call, nor does what it has started, however the call ends.

        Raises:
            Failure: it failed, or took longer than ``timeout`` seconds.
        """
        with tempfile.TemporaryDirectory(prefix="pronghorn-bench-", ignore_cleanup_errors=True) as folder:
            # Files, since a pipe stays open, and we would wait, as long as any of its descendants lives.
            out, err = Path(folder) / "out", Path(folder) / "err"
            with out.open("wb") as printed, err.open("wb") as complaints:
                process = subprocess.Popen(
                    [self.python, str(self.script), *self.arguments],
                    cwd=folder,
                    env=self._environment(),
                    stdin=subprocess.PIPE,  # which closes when we end, even by SIGKILL: see work.end_with_parent
                    stdout=printed,
                    stderr=complaints,
                    start_new_session=True,
                )
                try:
                    code = process.wait(timeout)
                except subprocess.TimeoutExpired:
                    raise Failure(f"did not finish within {timeout:.0f} s") from None
                finally:
                    with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left, as it should be
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait(10)
                    if process.stdin is not None:
                        process.stdin.close()
            return _rate(code, out.read_text(errors="replace"), err.read_text(errors="replace"))

    def _environment(self) -> dict[str, str]:
        """Ours, with a thread budget. Where our modules are is nobody's business but ours."""
        ours = [entry or str(Path.cwd()) for entry in sys.path] if self.python == sys.executable else []
        return os.environ | thread_budget(1) | {"PYTHONPATH": os.pathsep.join([str(PEERS), *ours])}


@dataclass
class Standing:
    """Rates of a contestant, one per round, and the ``trouble`` because of which there are no more."""

    rates: list[float] = field(default_factory=list)
    trouble: str = ""


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


def interpreter(given: str, option: str) -> str:
    """The path of the interpreter that ``option`` names.

    Raises:
        UserError: there is no such program.
    """
    found = shutil.which(given)
    if found is None:
        raise UserError(f"{option} {given}: no such program; name a Python in which peers are installed")
    # Made absolute, since contestants run elsewhere, but not resolved: a venv's python is a link.
    return str(Path(found).absolute())


def at_home(contestant: Contestant, pythons: Sequence[str]) -> Contestant:
    """``contestant`` in the first of ``pythons`` that has what it needs, or in the first, where none has."""
    homes = [dataclasses.replace(contestant, python=python) for python in pythons]
    return next((home for home in homes if home.installed()), homes[0])


def hold(
    contestants: Sequence[Contestant], rounds: int, timeout: float, say: Callable[[str], None]
) -> dict[str, Standing]:
    """What each has reached, by name. One that fails, or takes more than ``timeout`` seconds, is in no later round.

    ``say`` is told of every rate and every failure, in a line.
    """
    standings = {contestant.name: Standing() for contestant in contestants}
    for contestant in contestants:
        if not contestant.installed():
            standings[contestant.name].trouble = NOT_INSTALLED
    for number in range(rounds):
        for contestant in contestants:
            standing = standings[contestant.name]
            if standing.trouble:
                continue
            try:
                standing.rates.append(contestant.rate(timeout))
                told = f"{standing.rates[-1]:>10,.0f} steps/s"
            except Failure as failure:
                standing.trouble = told = str(failure)
            say(f"round {number + 1}/{rounds}  {contestant.name:<24} {told}")
    return standings


def ratios(standings: Mapping[str, Standing], ours: str) -> dict[str, Spread]:
    """How many times as fast each other contestant ``ours`` is, compared round by round, as far as both came.

    Rounds are pairs taken minutes apart at most, so a machine that slows down half way does not tilt the result.
    """
    own = standings[ours].rates if ours in standings else []
    return {
        name: Spread.over([mine / theirs for mine, theirs in zip(own, standing.rates, strict=False)])
        for name, standing in standings.items()
        if name != ours and own and standing.rates
    }


def table(standings: Mapping[str, Standing], ours: Sequence[str]) -> str:
    """One line per contestant: its rate, and for each name in ``ours`` how many times as fast that one is. Below, what
    has failed."""
    compared = [name for name in ours if name in standings and standings[name].rates]
    by_name = {name: ratios(standings, name) for name in compared}
    rows = [["", "steps/s", *(f"{name} ÷ this" for name in compared)]]
    for name, standing in standings.items():
        if not standing.rates:
            missing = standing.trouble == NOT_INSTALLED
            rows.append([name, NOT_INSTALLED if missing else "failed", *("" for _ in compared)])
            continue
        cells = [by_name[own][name].text(2) if name in by_name[own] else "" for own in compared]
        rows.append([name, Spread.over(standing.rates).text(0), *cells])
    failures = [
        f"{name}, round {len(standing.rates) + 1}: {standing.trouble}"
        for name, standing in standings.items()
        if standing.trouble not in ("", NOT_INSTALLED)
    ]
    return "\n".join([aligned(rows), *failures])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equally many cells as lines, with the columns below one another."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def report(standings: Mapping[str, Standing], ours: Sequence[str]) -> dict[str, Any]:
    """The same as plain values, for JSON; contestants without a rate have ``null``, and their trouble beside it."""
    return {
        "steps_per_second": {
            name: dataclasses.asdict(Spread.over(standing.rates)) if standing.rates else None
            for name, standing in standings.items()
        },
        "ratios": {
            name: {other: dataclasses.asdict(spread) for other, spread in ratios(standings, name).items()}
            for name in ours
        },
        "troubles": {name: standing.trouble for name, standing in standings.items() if standing.trouble},
    }


def _rate(code: int, printed: str, complaints: str) -> float:
    """Of what a contestant has left behind."""
    if code != 0:
        ended = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        lines = complaints.split("\n")
        last = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
        raise Failure(f"{ended}: {last[-LONGEST:]}" if last else ended)
    try:
        answer = json.loads(printed.strip().splitlines()[-1])
        return float(answer["steps"] / answer["seconds"])
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        raise Failure("did not print how many steps it took in how many seconds") from None
