"""Notice, blame, restart: what every part that looks after others shares.

Whoever calls an env writes down beforehand which env and what for (``Notes``). Whoever looks on (the parent of a
worker, or a thread) reads it now and then, and knows which call has not returned for too long (``Patience``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

PHASES = ("idle", "start", "construct", "reset", "step", "close", "pause")
"""What a call is for; "start" is that of a process, "pause" the back-off before a restart."""

IDLE, START, CONSTRUCT, RESET, STEP, CLOSE, PAUSE = range(len(PHASES))
NOTE_WORDS = 8
"""int64 words per cell of notes: a cache line, so that neighbours do not slow each other down."""

WINDOW = 3600.0
"""Seconds over which restarts are counted."""

LONGEST_PAUSE = 5.0
LONGEST_SLEEP = 0.25
"""Seconds between two looks at those who may hang, at most: whoever does is noticed within two of them."""


@dataclass(frozen=True)
class Incident:
    """Something failed and was replaced, or closed. ``env`` is an index over the whole run (-1: none in particular).

    ``lost`` are the envs whose running episodes went with it; ``trace`` is empty where there is none.
    """

    env: int
    phase: str
    cause: str
    lost: tuple[int, ...] = ()
    trace: str = ""


class Notes:
    """Writes into ``cell`` [NOTE_WORDS] int64 (memory that somebody else reads) which call is about to be made.

    One word says it all, and so changes at once: number of the call, row, phase.
    """

    def __init__(self, cell: NDArray[np.int64]) -> None:
        self._cell = cell.data
        self._calls = 0

    def __call__(self, row: int, phase: int) -> None:
        """A call for ``row`` begins; ``phase`` is an index into ``PHASES``."""
        self._calls += 1
        self._cell[0] = (self._calls << 32) | (row << 4) | phase

    def idle(self) -> None:
        """Nothing is being called."""
        self(0, IDLE)


def unread() -> Notes:
    """Notes that nobody reads."""
    return Notes(np.zeros(1, np.int64))


def read_note(word: int) -> tuple[int, str]:
    """(row, phase) of a word written by ``Notes``."""
    return (word >> 4) & 0xFFF_FFFF, PHASES[word & 15]


class Patience:
    """How long each cell has held the same word. ``seconds`` by phase is how long it may."""

    def __init__(self, cells: NDArray[np.int64], seconds: Mapping[str, float]) -> None:
        self._cells, self._seconds = cells, seconds
        self._seen = cells[:, 0].copy()
        self._since = [time.monotonic()] * len(cells)

    def forget(self, index: int) -> None:
        """The clock of a cell starts anew."""
        self._seen[index], self._since[index] = self._cells[index, 0], time.monotonic()

    def over(self, index: int) -> float | None:
        """The seconds that the call of a cell was given, if they have passed; else None."""
        if self._cells[index, 0] != self._seen[index]:
            self.forget(index)
        limit = self._seconds[read_note(int(self._seen[index]))[1]]
        return limit if time.monotonic() - self._since[index] > limit else None


class Supervisor:
    """Decides whether what failed is started again: ``restarts`` times in an hour, with growing pauses.

    Args:
        errors: "fail" lets nothing be restarted.
        restarts: budget over an hour, for all that this supervisor looks after.
        report: is told of every incident that was permitted.
    """

    def __init__(
        self,
        errors: Literal["restart", "fail"] = "restart",
        restarts: int = 10,
        report: Callable[[Incident], None] = lambda incident: None,
    ) -> None:
        self._errors, self._most = errors, restarts
        self.report = report
        self._times: deque[float] = deque()

    def permit(self, incident: Incident) -> float | None:
        """Seconds to wait before the restart; None where it must not be."""
        now = time.monotonic()
        while self._times and now - self._times[0] > WINDOW:
            self._times.popleft()
        if self._errors == "fail" or len(self._times) >= self._most:
            return None
        recent = sum(now - moment < 60 for moment in self._times)
        self._times.append(now)
        self.report(incident)
        return min(0.05 * 2.0**recent, LONGEST_PAUSE)

    @property
    def verdict(self) -> str:
        """Why nothing is restarted any more, for the end of an error's message."""
        if self._errors == "fail":
            return "(--env-errors restart would start it again)"
        return f"(after {len(self._times)} restarts within an hour; --env-restarts allows {self._most})"


class Watchdog:
    """A thread that notices a call of this process which does not return. Use as a context manager.

    It sees what lets the interpreter go: Python, sleeping, C and C++ that release its lock.

    Args:
        seconds: that a call may take, by phase.
        fire: is called once, from the thread, with (row, phase, seconds); the call is still running then.
    """

    def __init__(self, seconds: Mapping[str, float], fire: Callable[[int, str, float], None]) -> None:
        self._cells = np.zeros((1, NOTE_WORDS), np.int64)
        self.note = Notes(self._cells[0])
        self._patience = Patience(self._cells, {"idle": float("inf"), "pause": float("inf"), **seconds})
        self._every = min(LONGEST_SLEEP, *(value / 4 for value in seconds.values()))
        self._fire = fire
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._closed.set()
        self._thread.join()

    @contextmanager
    def watch(self, phase: str) -> Iterator[None]:
        """For calls that concern many envs at once."""
        self.note(0, PHASES.index(phase))
        try:
            yield
        finally:
            self.note.idle()

    def _look(self) -> None:
        while not self._closed.wait(self._every):
            limit = self._patience.over(0)
            if limit is not None:
                row, phase = read_note(int(self._cells[0, 0]))
                self._fire(row, phase, limit)
                return
