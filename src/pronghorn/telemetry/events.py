"""``events.jsonl``: what happened to a run, and when. One JSON object a line."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pronghorn.telemetry.writers import LineFile, finite


class EventLog:
    """Appends events; each is on its way to the disk before ``write`` returns.

    ``seconds`` is what the run has taken before this process (0 for a new run); events count on from there.
    """

    def __init__(self, path: Path, seconds: float = 0.0) -> None:
        self._file = LineFile(path)
        self._start = time.monotonic() - seconds

    def write(self, event: str, step: int, **details: Any) -> None:
        """``event`` is start, resume, checkpoint, restart, warning, stop, …

        ``details`` are JSON values; those that are NaN or infinite are left out.
        """
        seconds = round(time.monotonic() - self._start, 3)
        self._file.write({"event": event, "seconds": seconds, "step": step, **finite(details)})

    def close(self) -> None:
        """May be called twice."""
        self._file.close()
