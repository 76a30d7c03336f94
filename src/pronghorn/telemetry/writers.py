"""Where metrics go: ``metrics.jsonl``, CSV and TensorBoard. A value that does not exist is left out, never NaN."""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import time
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

_FLOATS = (float, np.floating)


class MetricsWriter(Protocol):
    """Takes one record per report. Keys are those of ``metrics.jsonl``; ``step`` is always among them.

    All numbers are finite: what does not exist has been left out.
    """

    def write(self, record: dict[str, Any]) -> None:
        """Writes ``record``."""

    def close(self) -> None:
        """Writes what is still in memory. May be called twice."""


class LineFile:
    """A ``MetricsWriter`` that appends JSON objects to a file, one a line.

    Each has left the process before ``write`` returns. One cut short by a crash is removed when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Raises ValueError for NaN or an infinity, TypeError for what JSON does not know."""
        self._file.write(json.dumps(record, default=_plain, allow_nan=False, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """May be called twice."""
        self._file.close()


class Csv:
    """A ``MetricsWriter`` to a table with a row for each record, and a column for each key in the order they appeared;
    a cell without a value is empty.

    Each row has left the process before ``write`` returns. A new key rewrites the file, which is replaced in one go.
    ``resumed_at`` is the step a run continues from: rows beyond it are dropped, and a last one cut short by a crash.
    """

    def __init__(self, path: Path, resumed_at: int | None = None) -> None:
        self._path = path
        self._columns = ["step"]
        rows = []
        if resumed_at is not None and path.exists():
            lines = path.read_text().splitlines(keepends=True)
            table = csv.DictReader(line for line in lines if line.endswith("\n"))
            rows = [row for row in table if int(row["step"]) <= resumed_at]
            self._columns = list(table.fieldnames or self._columns)
        self._begin(rows)

    def write(self, record: dict[str, Any]) -> None:
        if new := [key for key in record if key not in self._columns]:
            self.close()
            with self._path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            self._columns += new
            self._begin(rows)
        self._table.writerow(record)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _begin(self, rows: list[dict[str, Any]]) -> None:
        """Replaces the file by one with these rows, and goes on in it."""
        fresh = self._path.with_name(f".{self._path.name}")
        self._file = fresh.open("w", newline="")
        self._table = csv.DictWriter(self._file, self._columns, lineterminator="\n")
        self._table.writeheader()
        self._table.writerows(rows)
        self._file.flush()
        os.fsync(self._file.fileno())
        fresh.replace(self._path)


class TensorBoard:
    """A ``MetricsWriter`` to an event file in ``directory``: every key but ``step`` becomes a scalar.

    ``resumed_at`` is the step a run continues from: what an earlier event file holds beyond it is not shown. What is
    written has left the process before ``write`` returns.
    """

    def __init__(self, directory: Path, resumed_at: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = event_pb2.Event
        self._summary = summary_pb2.Summary
        directory.mkdir(parents=True, exist_ok=True)
        # They are read in the order of their names.
        name = f"events.out.tfevents.{time.time_ns() // 1000:016d}.{platform.node()}.{os.getpid()}"
        self._writer: Any = RecordWriter((directory / name).open("xb"))
        self._write(file_version="brain.Event:2")
        if resumed_at is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=resumed_at + 1, session_log=start)

    def write(self, record: dict[str, Any]) -> None:
        values = [self._summary.Value(tag=key, simple_value=value) for key, value in record.items() if key != "step"]
        self._write(step=int(record["step"]), summary=self._summary(value=values))

    def close(self) -> None:
        self._writer.close()

    def _write(self, **contents: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **contents).SerializeToString())
        self._writer.flush()


def finite(record: dict[str, Any]) -> dict[str, Any]:
    """``record`` without NaN and infinities."""
    return {key: value for key, value in record.items() if not isinstance(value, _FLOATS) or math.isfinite(value)}


def kind(record: dict[str, Any]) -> Literal["report", "evaluation"]:
    """What a record of metrics is of."""
    return "evaluation" if "eval/episodes" in record else "report"


def replace_text(path: Path, text: str) -> None:
    """Writes a small file in one go: whoever reads it finds the old text or the new, also after a crash."""
    _replace(path, text.encode())


def truncate_after(path: Path, step: int) -> None:
    """Drops the lines of ``path`` whose ``step`` is beyond ``step``, and those that are no JSON objects with a step.

    A resumed run calls it before it logs, so that no step is logged twice. The file is replaced in one go; one that
    does not exist is left so.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        kept = [line for line in file if _is_upto(line, step)]
    _replace(path, b"".join(kept))


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _is_upto(line: bytes, step: int) -> bool:
    try:
        return line.endswith(b"\n") and bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):
        return False


def _plain(value: Any) -> Any:
    """NumPy numbers and arrays as Python's, paths as text."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
