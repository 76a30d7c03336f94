"""What a run shows on standard output: a live view in a terminal, a line per report elsewhere, or nothing.

Rich is imported only for the live view. Values that do not exist are left out; NaN is never shown.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from pronghorn.telemetry.bottleneck import stale_actors
from pronghorn.telemetry.writers import finite

if TYPE_CHECKING:
    from rich.live import Live
    from rich.panel import Panel as Frame

_COLUMNS = 80
_LABEL = 12
_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 24
_ACTORS = 8
_WINDOW = 100
"""Episodes in ``return/mean``."""


class Panel:
    """Shows the newest record of a run called ``name`` that is to take ``total`` steps. Use as a context manager.

    ``file`` is where it goes (standard output). Reports that come less than ``every`` seconds after the last one shown
    wait (default: 0.1 in a terminal, 5 for lines); evaluations and the last report never do.
    """

    def __init__(
        self,
        name: str,
        total: int,
        *,
        quiet: bool = False,
        file: TextIO | None = None,
        every: float | None = None,
    ) -> None:
        self._name = name
        self._total = total
        self._quiet = quiet
        self._file = sys.stdout if file is None else file
        self._returns: deque[float] = deque(maxlen=_CURVE)
        self._newest: dict[str, Any] = {}
        self._evaluated_at: int | None = None
        self._live: Live | None = None
        self._every = 5.0 if every is None else every
        self._live_every = 0.1 if every is None else every
        self._bottleneck: tuple[str, str] | None = None
        self._unseen: int | None = None
        self._shown_at = float("-inf")

    def __enter__(self) -> Panel:
        if not self._quiet and self._file.isatty() and (self._file.encoding or "").lower().startswith("utf"):
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._file, highlight=False)
            if not console.is_dumb_terminal:
                self._every = self._live_every
                self._live = Live(console=console, auto_refresh=False)
                self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """The last view stays on the screen; without one, a line names the bottleneck."""
        self._show()
        if self._live is not None:
            with self._while_it_is_read():
                self._live.stop()
            self._live = None
        elif self._bottleneck is not None:
            self._print(f"bottleneck: {': '.join(self._bottleneck)}")

    def update(
        self, record: dict[str, Any], longest_running: int = 0, bottleneck: tuple[str, str] | None = None
    ) -> None:
        """Shows ``record``, whose keys are those of ``metrics.jsonl``; what it lacks is as it was last.

        ``longest_running`` is the length in steps, so far, of the longest episode under way, ``bottleneck`` what the
        function of that name says.
        """
        if self._quiet:
            return
        record = finite(record)
        self._newest |= record
        self._bottleneck = bottleneck or self._bottleneck
        if "eval/return" in record:
            self._evaluated_at = record["step"]
        if "return/mean" in record:
            self._returns.append(record["return/mean"])
        self._unseen = longest_running
        if "eval/return" in record or time.monotonic() - self._shown_at >= self._every:
            self._show()

    def _show(self) -> None:
        if self._unseen is None:
            return
        longest_running, self._unseen = self._unseen, None
        self._shown_at = time.monotonic()
        if self._live is None:
            self._print(line(self._newest, self._total, longest_running))
        else:
            shown = list(rows(self._newest, longest_running, list(self._returns), self._evaluated_at, self._bottleneck))
            with self._while_it_is_read():
                self._live.update(_frame(self._name, self._newest, self._total, shown), refresh=True)

    def message(self, text: str) -> None:
        """A line of its own, above the live view."""
        if self._quiet:
            return
        if self._live is None:
            self._print(text)
        else:
            with self._while_it_is_read():
                self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _print(self, text: str) -> None:
        encoding = self._file.encoding or "utf-8"
        with self._while_it_is_read():
            print(text.encode(encoding, "replace").decode(encoding), file=self._file, flush=True)

    @contextmanager
    def _while_it_is_read(self) -> Iterator[None]:
        """Whoever reads may have seen enough, or the terminal be closed: the run goes on."""
        try:
            yield
        except OSError:
            self._quiet = True


def line(record: dict[str, Any], total: int, longest_running: int) -> str:
    """A report in one line of less than 80 columns, the most important first; what does not fit is left out."""
    parts = [f"{_count(record['step'])} steps ({record['step'] / total:.0%})"]
    if "steps_per_second" in record:
        parts.append(f"{_count(record['steps_per_second'])}/s")
    left = _time_left(record, total)
    if left is not None:
        parts.append(f"{left} left")
    parts.append(_training(record, longest_running))
    if "eval/return" in record:
        parts.append(f"eval {_evaluation(record)}")
    if record.get("restarts"):
        parts.append(f"{_count(record['restarts'])} restarts")
    if record.get("actors/stale"):
        parts.append(f"{_count(record['actors/stale'])} stale actors")
    parts += [f"{word} {_number(record[key])}" for key, word in _LEARNING if key in record]
    text = parts[0]
    for part in parts[1:]:
        if len(text) + len(part) + 2 < _COLUMNS:
            text += f", {part}"
    return text


def rows(
    record: dict[str, Any],
    longest_running: int,
    returns: list[float],
    evaluated_at: int | None,
    bottleneck: tuple[str, str] | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """The live view, without its progress bar: labels, each with the parts of its text. Pure.

    ``returns`` are the newest values of ``return/mean``, oldest first.
    """
    steps = [_count(record["step"])]
    if "frames" in record:
        steps.append(f"{_count(record['frames'])} frames")
    if "steps_per_second" in record:
        steps.append(f"{_count(record['steps_per_second'])} steps/s")
    yield "steps", steps

    training = [_training(record, longest_running)]
    if "return/mean" in record:
        if "episodes" in record:
            episodes = record["episodes"]
            training.append(f"mean of the last {min(_WINDOW, episodes)} of {_count(episodes)} episodes")
        if "length/mean" in record:
            training.append(f"{_number(record['length/mean'])} steps each")
        if len(returns) > 1:
            training.append(_sparkline(returns))
    yield "training", training

    if "eval/return" in record:
        evaluation = f"return {_evaluation(record)}"
        if "eval/episodes" in record:
            evaluation += f" over {_count(record['eval/episodes'])} episodes"
        yield "evaluation", [evaluation, *([] if evaluated_at is None else [f"at step {_count(evaluated_at)}"])]

    yield "learning", [f"{word} {_number(record[key])}" for key, word in _LEARNING if key in record]
    yield "losses", [f"{name} {_number(value)}" for name, value in _below("loss/", record)]
    lag = [f"{name} {_number(value)}" for name, value in _below("lag/", record)]
    if "queue/columns" in record:
        lag.append(f"{_count(record['queue/columns'])} unrolls in the queue")
    yield "policy lag", lag
    actors = [name.removesuffix("/lag/mean") for name, _ in _below("actor/", record) if name.endswith("/lag/mean")]
    if actors:
        yield "actors' lag", [f"{actor}: {_actor_lag(record, actor)}" for actor in actors[:_ACTORS]]
    yield "alarm", stale_actors(record)
    yield "time", [f"{name} {value:.0%}" for name, value in _below("time/", record)]
    yield "bottleneck", list(bottleneck or ())
    if record.get("restarts"):
        yield "restarts", [f"{_count(record['restarts'])} of failed environments or their workers"]
    if record.get("steps/dropped"):
        yield "dropped", [f"{_count(record['steps/dropped'])} steps"]


_LEARNING = (
    ("policy/kl", "KL"),
    ("policy/entropy", "entropy"),
    ("value/explained_variance", "explained variance"),
)


def _frame(name: str, record: dict[str, Any], total: int, shown: list[tuple[str, list[str]]]) -> Frame:
    """The view as something Rich can print. Parts are wrapped whole, in 80 columns or less."""
    from rich import box
    from rich.console import Group
    from rich.panel import Panel as Frame
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    left = _time_left(record, total)
    share = f"{record['step'] / total:.0%} of {_count(total)}" + ("" if left is None else f", {left} left")
    progress = Table.grid(expand=True, padding=(0, 1))
    progress.add_column(ratio=1)
    progress.add_column(no_wrap=True)
    progress.add_row(ProgressBar(total=total, completed=record["step"]), share)
    table = Table.grid()
    table.add_column(style="dim", width=_LABEL)
    table.add_column()
    for label, parts in shown:
        for index, text in enumerate(_fill(parts, _COLUMNS - 4 - _LABEL)):
            table.add_row(Text(label if index == 0 else ""), Text(text))
    return Frame(Group(progress, table), title=Text(name), title_align="left", box=box.ROUNDED, width=_COLUMNS)


def _fill(parts: list[str], width: int) -> list[str]:
    """Lines of at most ``width`` columns, broken between parts only."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def _training(record: dict[str, Any], longest_running: int) -> str:
    if "return/mean" in record:
        return f"return {_number(record['return/mean'])}"
    return f"0 episodes finished, longest running {_count(longest_running)} steps"


def _actor_lag(record: dict[str, Any], actor: str) -> str:
    mean, p95, most = (record[f"actor/{actor}/lag/{name}"] for name in ("mean", "p95", "max"))
    return f"{mean:.1f}, 95% {p95:.0f}, max {most:.0f}"


def _evaluation(record: dict[str, Any]) -> str:
    spread = f" ± {_number(record['eval/return_std'])}" if "eval/return_std" in record else ""
    return _number(record["eval/return"]) + spread


def _below(prefix: str, record: dict[str, Any]) -> list[tuple[str, float]]:
    return [(key.removeprefix(prefix), value) for key, value in record.items() if key.startswith(prefix)]


def _time_left(record: dict[str, Any], total: int) -> str | None:
    """Hours, minutes and seconds at the newest speed; None while it is unknown."""
    speed = record.get("steps_per_second", 0)
    if speed <= 0:
        return None
    minutes, seconds = divmod(round(max(0, total - record["step"]) / speed), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _number(value: float) -> str:
    """Four significant digits, no exponent for everyday sizes."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def _count(value: float) -> str:
    """12,345 or 12.35M."""
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}"


def _sparkline(values: list[float]) -> str:
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)
